"""A small made-up run in a real store, and a real one on a tiny trained model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tightfit.search.facts import SpaceFacts
from tightfit.search.records import Score
from tightfit.search.store import Store
from tightfit.spaces import KvRules, Load, Space, WeightRules, build_space, get_target, read_geometry
from tightfit.workers.measurement import DocumentLoss, Measurement

CONFIG = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
RULES: dict[str, dict[str, Any]] = {
    "any": {"bits": (3, 4, 5, 6), "groups": (64,), "zeros": ("float",), "only": {"embed": (8,)}},
    "llama.cpp": {"types": ("Q4_0", "Q5_0", "Q5_1", "Q8_0"), "pin": {"embed": "Q8_0"}},
}
"""By target; four levels each."""
KV_RULES = {"any": {"bits": (4, 16), "keep": (0.5, 1.0)}, "llama.cpp": {"bits": (8, 16)}}
KV_CONFIG = {**CONFIG, "num_attention_heads": 2, "num_key_value_heads": 1}
KV_LOAD = Load(128, 3)


def small_space(target: str = "any", kv: bool = False) -> Space:
    geometry, rules = read_geometry(KV_CONFIG if kv else CONFIG), WeightRules(**RULES[target])
    if not kv:
        return build_space(geometry, rules, get_target(target))
    return build_space(geometry, rules, get_target(target), KvRules(**KV_RULES[target]), KV_LOAD)


class SmallRun:
    """Writes a run into a store, as far as a test needs it; the best plan of a size is a prefix of bits."""

    def __init__(self, store: Store, target: str = "any", kv: bool = False) -> None:
        self.store, self.space, self.target = store, small_space(target, kv), target
        rng = np.random.default_rng([3, 1])
        self.losses = [
            size * 4.0 ** -np.arange(len(decision.options))
            for decision, size in zip(
                self.space.decisions, rng.uniform(0.01, 0.1, len(self.space.decisions)), strict=True
            )
        ]
        self.limit = (self.space.floor + self.space.ceiling) // 2

    def levels(self, level: int) -> tuple[int, ...]:
        """A uniform plan, but for the embedding that has no choice."""
        return tuple(min(level, len(decision.options) - 1) for decision in self.space.decisions)

    def write(self, until: str) -> None:
        """Write the stages inspect, sense, solve, explore and report, up to one of them."""
        for stage in ("inspect", "sense", "solve", "explore", "report"):
            self.store.add_event(stage, "started")
            getattr(self, stage)()
            if stage == until:
                return

    def inspect(self) -> None:
        put = self.store.put
        self.store.set_space(self.space)
        budget: dict[str, Any] = {"weights": f"{self.limit}B"}
        rules: dict[str, Any] = {"weights": RULES[self.target]}
        if self.space.has_kv:
            budget = {"total": f"{self.limit}B", "context": KV_LOAD.context, "batch": KV_LOAD.batch}
            rules["kv"] = KV_RULES[self.target]
        put("settings", {"model": "tiny", "target": self.target, "budget": budget, "space": rules})
        put(
            "space", {**vars(SpaceFacts.of(self.space)), "config": KV_CONFIG if self.space.has_kv else CONFIG}
        )
        put(
            "model",
            {"name": "tiny <b>", "digest": "5f" * 32, "family": "llama", "parameters": 1, "layers": 2},
        )
        put("budget", {"limit": self.limit, "text": f"{self.limit}B"})
        put("cost", {"forward_tokens": {"prepare": 100, "explore": 900}, "estimate_seconds": 9.0})

    def sense(self) -> None:
        scores = [
            Score(decision.name, option.name, float(loss), 0.1 * float(loss))
            for decision, losses in zip(self.space.decisions, self.losses, strict=True)
            for option, loss in zip(decision.options, losses, strict=True)
        ]
        self.store.add_scores("calibrated", scores)

    def solve(self) -> None:
        weights = [losses.tolist() for losses in self.losses]
        model = {"weights": weights, "link": {"link": "identity"}}
        self.store.add_fit("link", {"model": model, "table": [], "plans": 4, "synergy": 1.0})
        front = [self.levels(level) for level in range(4)]
        self.store.put(
            "front",
            [
                {
                    "bytes": self.space.bytes_of(levels),
                    "loss": self.loss(levels),
                    "digest": self.space.plan(levels).digest,
                }
                for levels in front
            ],
        )

    def explore(self) -> None:
        self.plans = [self.measure(self.levels(level), f"agent {level}", "selection") for level in range(4)]
        first = {"digest": self.plans[0], "kind": "uniform", "label": "uniform 3b"}
        self.store.put("baselines", [first])
        self.store.put("predicted", dict.fromkeys(self.plans, 0.125))

    def report(self) -> None:
        for level in (0, 1):
            self.measure(self.levels(level), "", "holdout")
        self.store.put(
            "result",
            {
                "chosen": self.plans[1],
                "offered": self.plans[1],
                "best_baseline": self.plans[0],
                "agrees": True,
                "verdict": "fits: plan of the test",
                "fits": True,
            },
        )

    def loss(self, levels: tuple[int, ...]) -> float:
        return float(sum(row[level] for row, level in zip(self.losses, levels, strict=True)))

    def measure(self, levels: tuple[int, ...], source: str, split: str) -> str:
        """Store a plan and its measurement; return its digest."""
        plan = self.space.plan(levels)
        self.store.add_plan(plan, self.space.bytes_of(levels), source, self.space.cache_bytes(plan))
        loss = self.loss(levels)
        documents = tuple(
            DocumentLoss(f"d{i}", 10, 10 * loss * share, 30 + 9 * loss, 30.0, 8)
            for i, share in enumerate((0.8, 1.0, 1.2))
        )
        self.store.add_measurement(Measurement(plan.digest, split, f"p-{split}", documents, 9 * loss, 0.1))
        return plan.digest


@pytest.fixture
def small_run(tmp_path: Path) -> Callable[..., SmallRun]:
    """Makes a run that went ``until`` a stage, in a folder of runs."""

    def build(until: str = "report", name: str = "demo", target: str = "any", kv: bool = False) -> SmallRun:
        store = Store.open(tmp_path / "runs" / name / "run.db")
        run = SmallRun(store, target, kv)
        run.write(until)
        return run

    return build
