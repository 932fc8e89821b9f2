from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search.agents.simulation import additive

from tightfit.search.agents import Task
from tightfit.search.agents.projection import _nearest, fill, project
from tightfit.search.solvers import Side
from tightfit.spaces import InfeasibleError, Space, WeightRules, build_space, get_target, read_geometry

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def make_space(pin: dict[str, str]) -> Space:
    rules = WeightRules(bits=(2, 3, 4, 8, 16), groups=(32, 64), zeros=("none", "integer"), pin=pin)
    return build_space(read_geometry(CONFIG), rules, get_target("any"))


SPACES = [make_space({}), make_space({"layers.1.*": "4b-g64-int", "head": "8b-g64-int"})]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Task, tuple[int, ...], int]:
    """A task with losses of any sign and shape, any plan of it, and a limit that can be kept."""
    space = draw(st.sampled_from(SPACES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    width = space.ceiling - space.floor
    limits = [space.floor + int(draw(st.floats(0, 1.1)) * width) for _ in range(2)]
    kind = draw(st.sampled_from(["falling", "any", "whole numbers"]))
    losses = [rng.standard_normal(len(d.options)) for d in space.decisions]
    if kind == "falling":
        losses = [-np.sort(-np.abs(row)) for row in losses]
    if kind == "whole numbers":  # with many ties
        losses = [np.round(row) for row in losses]
    levels = tuple(int(rng.integers(len(d.options))) for d in space.decisions)
    return Task(space, limits[0], {"only": losses}), levels, limits[1]


@given(cases())
def test_a_projected_plan_keeps_the_smaller_of_both_limits(case: tuple[Task, tuple[int, ...], int]) -> None:
    task, levels, limit = case
    assert task.space.bytes_of(project(task, levels)) <= task.limit
    assert task.space.bytes_of(project(task, levels, limit)) <= min(limit, task.limit)


@given(cases())
def test_a_plan_that_fits_is_left_alone(case: tuple[Task, tuple[int, ...], int]) -> None:
    task, levels, _ = case
    once = project(task, levels)
    assert (once == levels) == (task.space.bytes_of(levels) <= task.limit)
    assert project(task, once) == once


@given(cases())
def test_projecting_only_ever_lowers(case: tuple[Task, tuple[int, ...], int]) -> None:
    task, levels, _ = case
    for costs, before, after in zip(task.costs, levels, project(task, levels), strict=True):
        assert costs[after] < costs[before] or after == before


@given(cases())
def test_filling_keeps_the_limit_and_loses_nothing(case: tuple[Task, tuple[int, ...], int]) -> None:
    task, levels, limit = case
    fitting = project(task, levels, limit)
    filled = fill(task, fitting, limit)
    assert task.space.bytes_of(filled) <= min(limit, task.limit)
    assert additive(task)(filled) <= additive(task)(fitting) + 1e-12
    assert fill(task, filled, limit) == filled


@given(cases())
def test_after_filling_nothing_that_gains_fits(case: tuple[Task, tuple[int, ...], int]) -> None:
    task, levels, _ = case
    filled = fill(task, project(task, levels))
    left = task.limit - task.space.bytes_of(filled)
    for row, costs, level in zip(task.trusted, task.costs, filled, strict=True):
        assert row[costs - costs[level] <= left].min() == row[level]


@given(cases())
def test_below_the_floor_nothing_can_be_done(case: tuple[Task, tuple[int, ...], int]) -> None:
    task, levels, _ = case
    below = task.space.floor - 1
    message = f"{below} B are below the floor of the space, {task.space.floor} B."
    with pytest.raises(InfeasibleError, match=re.escape(message)):
        project(task, levels, below)


def test_what_loses_least_per_byte_is_given_up_first() -> None:
    space = SPACES[0]
    top = tuple(len(d.options) - 1 for d in space.decisions)
    losses = [np.linspace(len(d.options), 0, len(d.options)) for d in space.decisions]
    losses[3] = losses[3] * 1e-3
    task = Task(space, space.ceiling - 1, {"only": losses})
    lowered = [i for i, (a, b) in enumerate(zip(top, project(task, top), strict=True)) if a != b]
    assert lowered == [3]


def brute_force(task: Task) -> list[tuple[int, ...]]:
    """Every plan of a small space that keeps everything."""
    sizes = [range(len(d.options)) for d in task.space.decisions]
    return [levels for levels in itertools.product(*sizes) if task.keeps(levels)]


SMALL = build_space(
    read_geometry({**CONFIG, "num_hidden_layers": 1}),
    WeightRules(
        bits=(3, 4, 8), pin={"*.k_proj": "4b-g64-int", "*.o_proj": "8b-g64-int", "head": "4b-g64-int"}
    ),
    get_target("any"),
)


@st.composite
def sided_cases(draw: st.DrawFn) -> tuple[Task, tuple[int, ...]]:
    """A small task with one or two bounds that are in no order of bytes, and any plan of it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    losses = [rng.standard_normal(len(d.options)) for d in SMALL.decisions]
    limit = SMALL.floor + int(draw(st.floats(0, 1.1)) * (SMALL.ceiling - SMALL.floor))
    sides = []
    for index in range(draw(st.integers(1, 2))):
        rows = tuple(rng.lognormal(0, 1, len(d.options)) for d in SMALL.decisions)
        low, high = (sum(float(pick(row)) for row in rows) for pick in (np.min, np.max))
        sides.append(Side(f"side {index}", rows, low + draw(st.floats(0, 1)) * (high - low)))
    levels = tuple(int(rng.integers(len(d.options))) for d in SMALL.decisions)
    return Task(SMALL, limit, {"only": losses}, sides=tuple(sides)), levels


@given(sided_cases())
def test_a_projected_plan_keeps_every_side_or_none_can(case: tuple[Task, tuple[int, ...]]) -> None:
    task, levels = case
    feasible = brute_force(task)
    if not feasible:
        with pytest.raises(InfeasibleError, match="keeps side"):
            project(task, levels)
        return
    projected = project(task, levels)
    assert task.keeps(projected)
    if task.keeps(levels):
        assert projected == levels
    filled = fill(task, projected)
    assert task.keeps(filled)
    assert additive(task)(filled) <= additive(task)(projected) + 1e-12
    assert task.floor == min(task.space.bytes_of(plan) for plan in feasible)


@given(sided_cases())
def test_where_single_steps_lead_nowhere_the_fewest_decisions_change(
    case: tuple[Task, tuple[int, ...]],
) -> None:
    task, levels = case
    feasible = brute_force(task)
    if feasible:
        nearest = _nearest(task, levels, task.limit)
        assert task.keeps(nearest)
        changed = [sum(a != b for a, b in zip(plan, levels, strict=True)) for plan in feasible]
        assert sum(a != b for a, b in zip(nearest, levels, strict=True)) == min(changed)


def test_a_plan_that_breaks_a_side_is_no_proposal() -> None:
    rows = tuple(np.ones(len(d.options)) / len(SMALL.decisions) for d in SMALL.decisions)
    side = Side("budget.tokens_per_second", rows, 0.5, unit="tokens/s", per=True)
    task = Task(SMALL, SMALL.ceiling, {}, sides=(side,))
    message = "mine: 1 tokens/s, but budget.tokens_per_second asks for at least 2 tokens/s."
    with pytest.raises(InfeasibleError, match=re.escape(message)):
        task.proposal((0,) * len(SMALL.decisions), "mine")
