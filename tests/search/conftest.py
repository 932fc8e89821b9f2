"""A made-up run in a real store: the shape of a real one, with losses drawn from a known model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tightfit.search.facts import SpaceFacts
from tightfit.search.records import Score
from tightfit.search.store import Store
from tightfit.spaces import KvRules, Load, Plan, Space, WeightRules, build_space, get_target, read_geometry
from tightfit.workers.measurement import DocumentLoss, Measurement

MIB = 2**20
REFERENCE_NLL = 3.27
CONFIG = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
RULES: dict[str, Any] = {"bits": (3, 4, 5, 6), "groups": (64,), "zeros": ("float",), "only": {"embed": (8,)}}
KV_RULES: dict[str, Any] = {"bits": (2, 4, 8, 16), "keep": (0.5, 1.0)}
KV_LOAD = Load(4096, 2)


def small_space(layers: int = 4, target: str = "any", kv: bool = False) -> Space:
    """The space of a SmolLM2-shaped model with an 8-bit embedding, and perhaps with its KV caches."""
    geometry = read_geometry({**CONFIG, "num_hidden_layers": layers})
    rules = WeightRules(**RULES)
    if not kv:
        return build_space(geometry, rules, get_target(target))
    return build_space(geometry, rules, get_target(target), KvRules(**KV_RULES), KV_LOAD)


class FakeRun:
    """Writes a run into a store, stage by stage.

    Args:
        store: where to.
        layers: decoder blocks of the model.
        decorate: changes every text that a user or a file could have supplied.
        kv: whether plans decide about KV caches too.
    """

    def __init__(
        self, store: Store, layers: int = 4, decorate: Callable[[str], str] = str, kv: bool = False
    ) -> None:
        self.store, self.text = store, decorate
        self.space = small_space(layers, kv=kv)
        rng = np.random.default_rng([7, 1])
        depth = np.linspace(-1, 1, layers)
        scales = []
        for decision in self.space.decisions:
            name = decision.sites[0]
            layer = int(name.split(".")[1]) if "." in name else None
            bend = 0.0 if layer is None else 1.4 * depth[layer] ** 2
            module = {"v_proj": 0.5, "down_proj": 1.0, "q_proj": -0.9, "k_proj": -0.7}
            scales.append(bend + module.get(decision.name.rsplit(".", 1)[-1], 0.0) + rng.normal(0, 0.45))
        # Stored at 4 bits, all decisions alone lose 0.25 nats together.
        sizes = 0.25 * np.exp(scales) / np.exp(scales).sum()
        self.losses = [
            size * 4.2 ** -np.array([float(option.bits - 4) for option in decision.options])
            for decision, size in zip(self.space.decisions, sizes, strict=True)
        ]
        self.limit = int(self.space.floor + 0.30 * (self.space.ceiling - self.space.floor))

    def write(self, until: str = "report") -> None:
        """Write everything up to and with one of the stages inspect, sense, solve, validate, report."""
        for stage in ("inspect", "sense", "solve", "validate", "report"):
            self.store.add_event(stage, "start")
            getattr(self, stage)()
            if stage == until:
                return

    def inspect(self) -> None:
        """Everything known before any weights are loaded."""
        geometry, put, text = self.space.geometry, self.store.put, self.text
        self.store.set_space(self.space)
        put(
            "settings",
            {
                "model": text("smollm2-135m-offgrid"),
                "seed": 0,
                "budget": {"weights": "76MiB"},
                "space": {"weights": RULES},
                **self._kv_settings(),
            },
        )
        put(
            "model",
            {
                "name": text("smollm2-135m-offgrid"),
                "folder": text("models/smollm2"),
                "digest": "5f" * 32,
                "family": text("llama"),
                "parameters": geometry.parameters,
                "layers": geometry.layers,
            },
        )
        facts = SpaceFacts.of(self.space)
        put(
            "space",
            {
                **vars(facts),
                "prefix": 1024 if self.space.has_kv else None,
                "notes": [text("group 128 divides no width of this model")],
                "patterns": {},
                "config": {**CONFIG, "num_hidden_layers": geometry.layers},
            },
        )
        put("budget", {"limit": self.limit, "text": text(f"{self.limit / MIB:.2f}MiB")})
        put("cost", {"forward_tokens": {"sense": 9000, "validate": 24000}, "estimate_seconds": 412.0})
        splits = {
            "calibration": {"asked": 2048, "used": 2048, "documents": 8},
            "selection": {"asked": 512, "used": 512, "documents": 6},
            "validation": {"asked": 2048, "used": 2048, "documents": 9},
            "holdout": {"asked": 4096, "used": 3711, "documents": 12},
        }
        put("text", {"source": text("pydoc topics"), "removed_share": 0.204, "splits": splits})

    def sense(self) -> None:
        """Scores of every option, and what their halves say about them."""
        for kind, noise in (("prescreen", 0.3), ("calibrated", 0.08)):
            rng = np.random.default_rng([7, 2, len(kind)])
            self.store.add_scores(
                kind,
                [
                    Score(d.name, o.name, loss * np.exp(rng.normal(0, noise)), noise * loss)
                    for d, losses in zip(self.space.decisions, self.losses, strict=True)
                    for o, loss in zip(d.options, losses, strict=True)
                ],
            )
        self.store.add_fit("sensing", {"split_half_tau": 0.862})

    def solve(self) -> None:
        """The front over the loss model and the plan for the budget."""
        front = self._greedy_front()
        put = self.store.put
        put(
            "front",
            [
                {
                    "bytes": self.space.bytes_of(levels),
                    "cache_bytes": self._cache(levels),
                    "effective_bits": self.space.effective_bits(
                        self.space.bytes_of(levels) - self._cache(levels)
                    ),
                    "loss": 0.94 * self.loss(levels),
                    "digest": self.space.plan(levels).digest,
                }
                for levels in front[:: max(1, len(front) // 150)]
            ],
        )
        self.best = max(
            (x for x in front if self.space.bytes_of(x) <= self.limit), key=lambda x: self.space.bytes_of(x)
        )
        loss = 0.94 * self.loss(self.best)
        digest = self.add_plan(self.best, "exact")
        put("solution", {"loss_predicted": loss, "bound": loss * 0.99998, "gap": 2e-5, "digest": digest})
        table = [
            {"link": "identity", "error": 0.0121, "excess": 2.4},
            {"link": "amplifying", "error": 0.0084, "excess": 0.0},
        ]
        weights = [losses.tolist() for losses in self.losses]
        model: dict[str, Any] = {"weights": weights, "link": {"link": "amplifying", "kappa": 0.9}}
        self.store.add_fit("link", {"model": model, "table": table, "plans": 32, "synergy": 1.31})

    def validate(self) -> None:
        """Finalists, baselines, and both certificates."""
        rng = np.random.default_rng([7, 3])
        finalists = [self.best]
        for _ in range(5):
            near = list(self.best)
            for position in rng.integers(1, len(near), size=6):
                near[position] = int(np.clip(near[position] + rng.choice([-1, 1]), 0, 3))
            if self.space.bytes_of(near) <= self.limit:
                finalists.append(tuple(near))
        self.finalists = [self.add_plan(x, "exact" if x == self.best else "k-best") for x in finalists]
        self.store.put("finalists", self.finalists)
        uniform = [(0, *[level] * (len(self.space.decisions) - 1)) for level in range(3)]
        mixes = [self._mix(level, back) for level in (0, 1) for back in (False, True)]
        mixes = [mix for mix in mixes if mix not in uniform]
        labels = [f"uniform {3 + level}b-g64-float" for level in range(3)]
        labels += [f"mix {3 + min(mix[1:])}b/{4 + min(mix[1:])}b" for mix in mixes]
        self.baselines = [self.add_plan(x, "baseline") for x in [*uniform, *mixes]]
        self.store.put(
            "baselines",
            [
                {"digest": digest, "kind": label.split()[0], "label": self.text(label)}
                for digest, label in zip(self.baselines, labels, strict=True)
            ],
        )
        for levels in [*finalists, *uniform, *mixes]:
            self.measure(levels, "validation", 9, 228)
        points = [
            {
                "digest": f"{i:064x}",
                "predicted": p,
                "measured": p * float(np.exp(rng.normal(0.02, 0.07))),
                "se": 0.05 * p,
            }
            for i, p in enumerate(np.exp(rng.normal(np.log(self.loss(self.best)), 0.25, 24)).tolist())
        ]
        self.store.add_fit(
            "certificate_variance",
            {
                "unexplained": 0.087,
                "bias": 0.004,
                "interval": {"low": 0.052, "high": 0.139},
                "distribution": "drawn independently, tilted to a mean of 84.44 MiB",
                "plans": 24,
                "points": points,
            },
        )
        self.store.add_fit(
            "certificate_band",
            {
                "band": 0.01,
                "r2": 0.74,
                "r2_interval": {"low": -0.12, "high": 0.9},
                "tau": 0.63,
                "tau_interval": {"low": 0.4, "high": None},
                "misordered": 3 / 71,
                "pairs": 71,
                "plans": 16,
            },
        )

    def report(self) -> None:
        """One reading of the holdout, and the verdict."""
        for digest in [self.finalists[0], *self.baselines]:
            levels = self.space.levels(self.store.plans()[digest].plan)
            self.measure(levels, "holdout", 12, 309)
        if self.space.has_kv:
            self._probe([self.finalists[0], *self.baselines])
        self.store.put(
            "result",
            {
                "chosen": self.finalists[0],
                "offered": self.finalists[0],
                "best_baseline": self.baselines[:5][-1],
                "agrees": True,
                "verdict": self.text(
                    "Fits: 84.40 of 84.44 MiB, KL 0.210 nats/token, 0.44 times the best baseline."
                ),
                "recounted_bytes": self.space.bytes_of(self.best),
                "fits": True,
                "next": [
                    self.text("tightfit export runs/demo --to json --out plan.json"),
                    "tightfit front runs/demo",
                ],
            },
        )
        self.store.put(
            "timing", {"load": 6.2, "sense": 171.0, "solve": 0.7, "validate": 214.0, "report": 3.1}
        )
        self.store.put("peak_memory", 2_410_000_000)

    def _kv_settings(self) -> dict[str, Any]:
        if not self.space.has_kv:
            return {}
        budget = {"total": f"{self.limit}B", "context": KV_LOAD.context, "batch": KV_LOAD.batch}
        return {"budget": budget, "space": {"weights": RULES, "kv": KV_RULES}}

    def _probe(self, plans: list[str]) -> None:
        """Less context, copying, and what blocks lose jointly."""
        for digest in plans:
            levels = self.space.levels(self.store.plans()[digest].plan)
            self.measure(levels, "holdout after half the context", 12, 309, times=0.8)
            self.measure(levels, "copying", 12, 31)
        splits = ("holdout after half the context", "copying")
        self.store.put("probes", dict.fromkeys(splits, plans))
        rho = {"blocks": ["layers.0.kv", "layers.3.kv"], "correlations": [0.3, -0.1]}
        self.store.add_fit("pairs", rho)

    def _cache(self, levels: Any) -> int:
        return self.space.cache_bytes(self.space.plan(levels))

    def loss(self, levels: Any) -> float:
        """True loss of a plan: the single losses, amplified."""
        total = sum(losses[level] for losses, level in zip(self.losses, levels, strict=True))
        return float(np.expm1(0.9 * total) / 0.9)

    def add_plan(self, levels: Any, source: str) -> str:
        """Store a plan and return its digest."""
        plan: Plan = self.space.plan(levels)
        self.store.add_plan(plan, self.space.bytes_of(levels), self.text(source), self._cache(levels))
        return plan.digest

    def measure(
        self, levels: Any, split: str, documents: int, tokens: int, times: float = 1.0
    ) -> Measurement:
        """Measure a plan; documents differ in difficulty, the same way for every plan."""
        plan = self.space.plan(levels)
        hard = np.exp(np.random.default_rng([7, 4, documents]).normal(0, 0.35, documents))
        own = np.random.default_rng([7, 5, int(plan.digest[:6], 16)]).normal(0, 0.03, documents)
        base = times * self.loss(levels)
        rows = [
            DocumentLoss(
                document=self.text(f"topic-{i}"),
                tokens=tokens,
                kl=tokens * base * float(h * np.exp(o)),
                nll=tokens * (REFERENCE_NLL + 0.95 * base * float(h)),
                reference_nll=tokens * REFERENCE_NLL,
                agree=int(tokens * np.exp(-0.9 * np.sqrt(base * h))),
            )
            for i, (h, o) in enumerate(zip(hard, own, strict=True))
        ]
        measured = Measurement(plan.digest, split, f"protocol-{split}", tuple(rows), 9 * base, 6.4)
        return self.store.add_measurement(measured)

    def _greedy_front(self) -> list[tuple[int, ...]]:
        levels = [0] * len(self.space.decisions)
        front = [tuple(levels)]
        while True:
            gains = [
                ((losses[level] - losses[level + 1]) / (d.costs[level + 1] - d.costs[level]), i)
                for i, (d, losses, level) in enumerate(
                    zip(self.space.decisions, self.losses, levels, strict=True)
                )
                if level + 1 < len(d.options)
            ]
            if not gains:
                return front
            levels[max(gains)[1]] += 1
            front.append(tuple(levels))

    def _mix(self, level: int, back: bool) -> tuple[int, ...]:
        """As many decisions as the budget allows one width up, from one end of the model."""
        levels = [0] + [level] * (len(self.space.decisions) - 1)
        order = range(1, len(levels))
        for position in reversed(order) if back else order:
            levels[position] += 1
            if self.space.bytes_of(levels) > self.limit:
                levels[position] -= 1
        return tuple(levels)


@pytest.fixture
def fake_run(tmp_path: Path) -> Callable[..., Store]:
    """Makes a store with a run in it; ``until`` names the last stage that it went through."""

    def build(until: str = "report", **options: Any) -> Store:
        store = Store.open(tmp_path / "runs" / "demo" / "run.db")
        FakeRun(store, **options).write(until)
        return store

    return build
