"""Joint losses of a block's projections and its cache: what is measured, and what is made of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tightfit.search.archive import SENSING
from tightfit.search.stages.pairs import measure_pairs
from tightfit.search.store import Store
from tightfit.spaces import KvRules, Load, Plan, Space, WeightRules, build_space, get_target, read_geometry
from tightfit.workers.crew import Outcome
from tightfit.workers.measurement import DocumentLoss, Failure, Measurement

LAYERS = 4
CONFIG = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def space_of(target: str = "any", kv: KvRules | None = None, **rules: Any) -> Space:
    options: dict[str, Any] = {"bits": (2, 3, 4), "groups": (64,), "zeros": ("integer",), **rules}
    kv = kv or KvRules(bits=(2, 4, 8, 16))
    return build_space(
        read_geometry(CONFIG), WeightRules(**options), get_target(target), kv, Load(context=300)
    )


class Lab:
    """A bench whose losses are a function of the plan."""

    def __init__(self, store: Store, space: Space, loss: Callable[[Mapping[str, str]], float | None]) -> None:
        self.store, self.space, self.archive = store, space, self
        self.settings = SimpleNamespace(sense=SimpleNamespace(marginal_tokens=64))
        self.progress = SimpleNamespace(stage=_quiet, note=lambda text: None)
        self._loss = loss
        self.asked: list[dict[str, str]] = []

    def measure_all(
        self, plans: Sequence[tuple[Plan, str]], split: str, tokens: int, tick: Any
    ) -> list[Outcome]:
        assert (split, tokens) == (SENSING, 64)
        self.asked += [dict(plan.choices) for plan, _ in plans]
        return [self._outcome(plan) for plan, _ in plans]

    def _outcome(self, plan: Plan) -> Outcome:
        loss = self._loss(dict(plan.choices))
        if loss is None:
            return Failure(plan.digest, SENSING, "protocol", "not finite", "kl is nan")
        documents = (DocumentLoss("a", 10, 10 * loss, 40.0, 30.0, 9),)
        return Measurement(plan.digest, SENSING, "protocol", documents, 1.0, 1.0)


@contextmanager
def _quiet(*_: str) -> Iterator[Callable[[int, int], None]]:
    yield lambda done, total: None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "run.db") as opened:
        yield opened


def table(space: Space) -> list[np.ndarray]:
    """Losses that fall with the bytes, different for every decision."""
    rng = np.random.default_rng([7, 9])
    return [rng.lognormal(-4, 0.5) * 4.0 ** -np.arange(len(d.options), dtype=float) for d in space.decisions]


def correlated(space: Space, losses: list[np.ndarray], rho: Callable[[int], float]) -> Any:
    """Losses of projections and a cache whose errors are correlated, by layer."""
    at = {decision.name: i for i, decision in enumerate(space.decisions)}

    def loss(choices: Mapping[str, str]) -> float:
        parts = {
            name: float(losses[at[name]][space.decisions[at[name]].index(option)])
            for name, option in choices.items()
        }
        cache = sum(value for name, value in parts.items() if name.endswith(".kv"))
        rest = sum(parts.values()) - cache
        layer = int(next(iter(choices)).split(".")[1])
        return rest + cache + 2 * rho(layer) * float(np.sqrt(rest * cache))

    return loss


def run(store: Store, space: Space, count: int, loss: Any) -> tuple[Any, Lab]:
    lab = Lab(store, space, loss)
    return measure_pairs(lab, table(space), count), lab  # type: ignore[arg-type]


def position(space: Space, name: str) -> int:
    return [decision.name for decision in space.decisions].index(name)


def test_the_correlation_of_every_block_is_measured_where_both_are_most_aggressive(store: Store) -> None:
    space = space_of()
    losses = table(space)
    couplings, lab = run(store, space, LAYERS, correlated(space, losses, lambda layer: 0.1 + 0.2 * layer))
    pairs = store.get_fit("pairs")
    assert pairs is not None
    assert pairs["blocks"] == [f"layers.{layer}.kv" for layer in range(LAYERS)]
    assert pairs["correlations"] == pytest.approx([0.1, 0.3, 0.5, 0.7])
    for layer, coupling in enumerate(couplings):
        names = [space.decisions[i].name for i in coupling.decisions]
        assert names == [
            f"layers.{layer}.attn.k_proj",
            f"layers.{layer}.attn.v_proj",
            f"layers.{layer}.kv",
        ]
    # Its cache alone, its projections at their worst, and both.
    worst = {d.name: d.options[0].name for d in space.decisions}
    for layer in range(LAYERS):
        k, v, kv = (f"layers.{layer}.{name}" for name in ("attn.k_proj", "attn.v_proj", "kv"))
        for names in ((kv,), (k, v), (k, v, kv)):
            assert {name: worst[name] for name in names} in lab.asked
    assert len(lab.asked) == 3 * LAYERS


def test_the_excess_is_that_of_correlated_errors_where_both_are_aggressive_and_nothing_elsewhere(
    store: Store,
) -> None:
    space = space_of()
    losses = table(space)
    couplings, _ = run(store, space, LAYERS, correlated(space, losses, lambda layer: 0.4))
    for coupling in couplings:
        k, v, kv = (losses[i] for i in coupling.decisions)
        assert coupling.excess.shape == (3, 3, 4)
        for a, b, c in itertools.product(range(3), range(3), range(4)):
            # One of three options, and two of four, lose most.
            joint = (a < 1 or b < 1) and c < 2
            expected = 2 * 0.4 * np.sqrt((k[a] + v[b]) * kv[c]) if joint else 0.0
            assert coupling.excess[a, b, c] == pytest.approx(expected)


def test_blocks_that_are_not_measured_take_the_mean_of_those_that_are(store: Store) -> None:
    space = space_of()
    losses = table(space)
    couplings, lab = run(store, space, 2, correlated(space, losses, lambda layer: 0.2 * layer))
    pairs = store.get_fit("pairs")
    assert pairs is not None
    assert pairs["blocks"] == ["layers.0.kv", "layers.3.kv"]  # spread over depth
    assert pairs["correlations"] == pytest.approx([0.0, 0.6], abs=1e-12)
    assert len(lab.asked) == 6
    factors = []
    for coupling in couplings:
        k, v, kv = (losses[i] for i in coupling.decisions)
        factors.append(float(coupling.excess[0, 0, 0] / (2 * np.sqrt((k[0] + v[0]) * kv[0]))))
    assert factors == pytest.approx([0.0, 0.3, 0.3, 0.6], abs=1e-12)


def test_correlations_are_none_beyond_one_and_negative_where_errors_cancel(store: Store) -> None:
    space = space_of()
    losses = table(space)
    rho = {0: 3.0, 1: -0.5, 2: -4.0, 3: 1.0}
    run(store, space, LAYERS, correlated(space, losses, lambda layer: rho[layer]))
    pairs = store.get_fit("pairs")
    assert pairs is not None
    assert pairs["correlations"] == pytest.approx([1.0, -0.5, -1.0, 1.0])


def test_what_cannot_be_measured_or_loses_nothing_is_left_to_the_others(store: Store) -> None:
    space = space_of()
    known = correlated(space, table(space), lambda layer: 0.3)

    def loss(choices: Mapping[str, str]) -> float | None:
        if any(name.startswith("layers.1.") for name in choices):
            return None
        if set(choices) == {"layers.2.kv"}:
            return 0.0
        return float(known(choices))

    couplings, _ = run(store, space, LAYERS, loss)
    pairs = store.get_fit("pairs")
    assert pairs is not None
    assert pairs["correlations"] == [pytest.approx(0.3), None, None, pytest.approx(0.3)]
    assert len(couplings) == LAYERS
    assert all((coupling.excess >= 0).all() and coupling.excess.max() > 0 for coupling in couplings)


def test_without_any_correlation_nothing_is_coupled(store: Store) -> None:
    couplings, _ = run(store, space_of(), LAYERS, lambda choices: None)
    assert couplings == ()
    pairs = store.get_fit("pairs")
    assert pairs is not None
    assert pairs["correlations"] == [None] * LAYERS


@pytest.mark.parametrize("count", [0, 1, 9])
def test_no_more_blocks_than_asked_for_are_measured(store: Store, count: int) -> None:
    space = space_of()
    couplings, lab = run(store, space, count, correlated(space, table(space), lambda layer: 0.3))
    assert len(lab.asked) == 3 * min(count, LAYERS)
    assert len(couplings) == (LAYERS if count else 0)
    assert measure_pairs(lab, table(space), 0) == ()  # type: ignore[arg-type]
    assert store.get_fit("pairs") is None  # nor does what was measured before count any more


def test_projections_and_caches_without_a_choice_are_left_out(store: Store) -> None:
    space = space_of(
        kv=KvRules(bits=(4, 16), pin={"layers.3.kv": "k16v16"}),
        pin={"layers.0.attn.v_proj": "4b-g64-int", "layers.1.attn.[kv]_proj": "4b-g64-int"},
    )
    couplings, _ = run(store, space, LAYERS, correlated(space, table(space), lambda layer: 0.3))
    named = [[space.decisions[i].name for i in coupling.decisions] for coupling in couplings]
    assert named == [
        ["layers.0.attn.k_proj", "layers.0.kv"],
        ["layers.2.attn.k_proj", "layers.2.attn.v_proj", "layers.2.kv"],
    ]


def test_a_fused_projection_is_one_decision(store: Store) -> None:
    space = space_of("vllm", KvRules(bits=(8, 16)))
    couplings, _ = run(store, space, LAYERS, correlated(space, table(space), lambda layer: 0.3))
    assert [[space.decisions[i].name for i in c.decisions] for c in couplings] == [
        [f"layers.{layer}.attn.qkv_proj", f"layers.{layer}.kv"] for layer in range(LAYERS)
    ]


@pytest.mark.parametrize("target", ["llama.cpp", "weights only"])
def test_nothing_is_measured_where_no_cache_belongs_to_one_block(store: Store, target: str) -> None:
    if target == "weights only":
        space = build_space(read_geometry(CONFIG), WeightRules((2, 4)), get_target("any"))
    else:
        rules = WeightRules(types=("Q4_0", "Q8_0"))
        caches = KvRules(bits=(4, 8, 16))
        space = build_space(read_geometry(CONFIG), rules, get_target(target), caches, Load(300))
    couplings, lab = run(store, space, LAYERS, lambda choices: 1.0)
    assert (couplings, lab.asked) == ((), [])
    assert store.get_fit("pairs") is None
