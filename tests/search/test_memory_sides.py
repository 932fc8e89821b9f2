"""Bounds on weights alone and on caches alone, as sides of a knapsack over both."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tightfit.search.agents import History, Task
from tightfit.search.agents.uniform import Uniform
from tightfit.search.memory_sides import memory_sides
from tightfit.search.sides import Side, keeps_all
from tightfit.spaces import (
    Budget,
    InfeasibleError,
    KvRules,
    Space,
    WeightRules,
    build_space,
    get_target,
    read_geometry,
)

CONTEXT = 300
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
PIN = {"embed": "8b-g64-float", "*.mlp.*": "4b-g64-float", "*.[kv]_proj": "4b-g64-float"}
RULES = WeightRules((2, 4), groups=(64,), zeros=("float",), pin=PIN)


def space_of(kv: KvRules | None, **load: int) -> Space:
    budget = Budget(weights=1, context=CONTEXT, **load)
    return build_space(read_geometry(CONFIG), RULES, get_target("any"), kv, budget.load)


JOINT = space_of(KvRules((2, 4, 16)), batch=2, shared_prefix=100)


def plans(space: Space) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(decision.options)) for decision in space.decisions)))


def test_a_plan_with_one_part_has_no_sides() -> None:
    weights_only = space_of(None)
    assert memory_sides(Budget(weights=10**6, context=CONTEXT), weights_only) == ()
    assert memory_sides(Budget(total=10**6, context=CONTEXT), JOINT) == ()


@pytest.mark.parametrize("part", ["weights", "kv", "effective_bits"])
def test_a_side_is_kept_by_the_very_plans_whose_part_is_within_its_bound(part: str) -> None:
    """To the byte: at every size that some plan has, and a byte below it."""
    both = set()
    for levels in plans(JOINT):
        plan = JOINT.plan(levels)
        size = JOINT.cache_bytes(plan) if part == "kv" else JOINT.weight_bytes(plan)
        for bound in (size, size - 1):
            asked: Any = (
                8 * (bound + 0.5 - JOINT.fixed_bytes) / JOINT.weights if part == "effective_bits" else bound
            )
            budget = Budget(**{part: asked}, context=CONTEXT, batch=2, shared_prefix=100)
            (side,) = memory_sides(budget, JOINT)
            assert side.name == f"budget.{part}"
            assert side.keeps(levels) == (size <= bound)
            both.add(side.keeps(levels))
    assert both == {True, False}


def test_large_bounds_are_kept_to_the_byte_too() -> None:
    """A billionth of some gigabytes is some bytes: more than none."""
    limit = 5 * 10**9
    rows = (np.array([limit - 1.0, limit, limit + 1.0, limit + 4.0]),)
    side = Side("budget.kv", rows, float(limit), unit="B")
    assert [side.keeps((level,)) for level in range(4)] == [True, True, False, False]


def test_all_bounds_together_are_sides_of_their_own() -> None:
    budget = Budget(
        total=10**6, weights=9000, kv=9000, effective_bits=5.0, context=CONTEXT, batch=2, shared_prefix=100
    )
    sides = memory_sides(budget, JOINT)
    assert [side.name for side in sides] == ["budget.weights", "budget.effective_bits", "budget.kv"]
    assert all(side.unit == "B" for side in sides)
    levels = plans(JOINT)[5]
    plan = JOINT.plan(levels)
    assert sides[0].total(levels) == sides[1].total(levels) == JOINT.weight_bytes(plan) - JOINT.fixed_bytes
    assert sides[2].total(levels) == JOINT.cache_bytes(plan)


def test_the_smallest_plan_keeps_every_side_that_was_not_refused() -> None:
    least = [sum(d.costs[0] for d in part) for part in (JOINT.matrix_decisions, JOINT.kv_decisions)]
    common: dict[str, int] = {"context": CONTEXT, "batch": 2, "shared_prefix": 100}
    tight = Budget(weights=JOINT.fixed_bytes + least[0], kv=least[1], **common)
    assert tight.check(JOINT) == JOINT.floor
    assert keeps_all(memory_sides(tight, JOINT), [0] * len(JOINT.decisions))
    for less in ({"weights": JOINT.fixed_bytes + least[0] - 1}, {"kv": least[1] - 1}):
        with pytest.raises(InfeasibleError):
            Budget(**less, **common).check(JOINT)


def test_where_no_uniform_plan_keeps_the_bounds_the_smallest_one_stands_in() -> None:
    """The smallest option of the pinned caches is not the one that all may have."""
    floor = JOINT.floor
    plan = JOINT.plan([0] * len(JOINT.decisions))
    budget = Budget(
        weights=JOINT.weight_bytes(plan),
        kv=JOINT.cache_bytes(plan),
        context=CONTEXT,
        batch=2,
        shared_prefix=100,
    )
    losses = [np.linspace(1, 0, len(decision.options)) for decision in JOINT.decisions]
    task = Task(JOINT, floor, {"fitted": losses}, sides=memory_sides(budget, JOINT))
    proposals = Uniform().propose(task, History(), 10)
    assert [p.levels for p in proposals] == [tuple([0] * len(JOINT.decisions))]
