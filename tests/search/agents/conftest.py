"""Tasks on real geometries, with losses drawn from a known law."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tightfit.search.agents import Task
from tightfit.search.solvers import Side, least_violating, solve
from tightfit.spaces import Space, WeightRules, build_space, get_target, read_geometry

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
# Of the size of Qwen2.5-0.5B, with an embedding and a head of their own.
QWEN = {
    **LLAMA,
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "dtype": "float32", "vocab_size": 331, "n_embd": 48, "n_layer": 4, "n_head": 4}
WIDE = (2, 3, 4, 5, 6, 8, 16)
RULES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "fused": (LLAMA, "vllm", {"bits": (2, 3, 4, 8), "groups": (32, 64)}),
    "pinned": (
        {**LLAMA, "num_hidden_layers": 4},
        "vllm",
        {
            "bits": (3, 4, 8, 16),
            "pin": {"head": "8b-g64-int", "layers.1.attn.v_proj": "4b-g32-sym"},
            "only": {"layers.2.mlp.*": (8, 16)},
            "exclude": ("layers.0.*",),
        },
    ),
    "conv1d": (GPT2, "any", {"bits": (3, 4, 5, 6, 16), "groups": (0,), "zeros": ("float",)}),
    "untied": (QWEN, "any", {"bits": (3, 4, 5, 6)}),
    # 96 input features split into groups of 32 but not of 64; zeros and groups all mixed.
    "uneven": (
        {**LLAMA, "hidden_size": 96, "head_dim": 16},
        "any",
        {"bits": WIDE, "groups": (32, 64), "zeros": ("none", "integer", "float")},
    ),
    # Only down_proj splits into groups of 64, and it offers other bits: no format is near to them all.
    "crossed": (
        {**LLAMA, "hidden_size": 160, "head_dim": 24, "intermediate_size": 128},
        "any",
        {"bits": (4, 5), "groups": (32, 64), "only": {"*.down_proj": (8, 16)}},
    ),
}
BUDGETS: dict[str, Callable[[Space], int]] = {
    "the floor": lambda space: space.floor,
    "a tenth": lambda space: space.floor + (space.ceiling - space.floor) // 10,
    "half": lambda space: (space.floor + space.ceiling) // 2,
    "nearly all": lambda space: space.ceiling - 1,
    "more than enough": lambda space: 2 * space.ceiling,
}


@cache
def space_of(name: str) -> Space:
    config, target, rules = RULES[name]
    return build_space(read_geometry(config), WeightRules(**rules), get_target(target))


def draw_losses(space: Space, seed: int) -> list[np.ndarray]:
    """Losses that fall with the bits of an option, about fourfold per bit, each a little off."""
    tables = []
    for index, decision in enumerate(space.decisions):
        rng = np.random.default_rng([seed, 21, index])
        bits = 8 * np.array(decision.costs) / decision.weights
        tables.append(rng.lognormal(0, 0.7) * 4.0**-bits * rng.lognormal(0, 0.2, len(bits)))
    return tables


def make_task(space: Space, limit: int) -> Task:
    losses = {name: draw_losses(space, seed) for seed, name in enumerate(("fitted", "calibrated"))}
    return Task(space, limit, losses)


@pytest.fixture(params=[f"{space}: {budget}" for space in RULES for budget in BUDGETS])
def task(request: pytest.FixtureRequest) -> Task:
    """Every space under every budget."""
    return _task(request.param)


@cache
def _task(name: str) -> Task:
    space, _, budget = name.partition(": ")
    return make_task(space_of(space), BUDGETS[budget](space_of(space)))


@pytest.fixture
def task_of() -> Callable[..., Task]:
    """A task by the name of its space and its limit: bytes, or a share of the feasible range."""

    def build(name: str, limit: float, **losses: Any) -> Task:
        space = space_of(name)
        if limit <= 1:
            limit = space.floor + limit * (space.ceiling - space.floor)
        return make_task(space, int(limit)) if not losses else Task(space, int(limit), losses)

    return build


def draw_side(task: Task, seed: int, share: float = 0.5) -> Side:
    """Seconds in no order of bits: every format has its own rate, and every matrix is a little off.

    Args:
        task: the problem.
        seed: of the rates.
        share: of the way from the fastest plan to the plan of least loss, where the limit lies.
    """
    names = sorted({option.name for d in task.space.decisions for option in d.options})
    rates = dict(zip(names, np.random.default_rng([seed, 22]).uniform(0.3, 2.0, len(names)), strict=True))
    rows = []
    for index, decision in enumerate(task.space.decisions):
        rng = np.random.default_rng([seed, 23, index])
        row = np.array([rates[option.name] for option in decision.options]) * decision.weights * 1e-9
        rows.append(row * rng.lognormal(0, 0.1, len(row)))
    loose = Side("budget.tokens_per_second", tuple(rows), 1.0, 1e-6, "tokens/s", per=True)
    best = solve(task.costs, task.trusted, task.free_bytes).levels
    fastest = least_violating(task.costs, task.trusted, task.free_bytes, [loose]).levels
    low, high = loose.total(fastest), loose.total(best)
    return replace(loose, limit=low + share * (high - low))


TIMED = ("fused: half", "pinned: a tenth", "conv1d: half", "uneven: nearly all", "crossed: half")


@pytest.fixture(params=TIMED)
def timed_task(request: pytest.FixtureRequest) -> Task:
    """Some spaces and budgets with a bound on seconds that the best plan by bytes alone breaks."""
    return _timed(request.param)


@cache
def _timed(name: str) -> Task:
    task = _task(name)
    side = draw_side(task, 3)
    assert not side.keeps(solve(task.costs, task.trusted, task.free_bytes).levels)
    return replace(task, sides=(side,))


@pytest.fixture
def with_side() -> Callable[..., Task]:
    """A task with a bound on seconds: the task, a seed and the share of the way to the best plan."""
    return lambda task, seed=3, share=0.5: replace(task, sides=(draw_side(task, seed, share),))


@pytest.fixture
def loss_of() -> Callable[[Task, Any], float]:
    """Loss of a proposal under the most trusted table of a task."""

    def total(task: Task, levels: Any) -> float:
        tables: Mapping[str, Any] = task.losses
        return float(sum(row[x] for row, x in zip(next(iter(tables.values())), levels, strict=True)))

    return total
