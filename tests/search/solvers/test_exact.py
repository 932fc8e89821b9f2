from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightfit.search.solvers import _core, solve
from tightfit.spaces import InfeasibleError, InputError


def test_equals_brute_force_on_thousands_of_random_instances(random_small: Callable[[int], Any]) -> None:
    for seed in range(2000):
        instance = random_small(seed)
        solution = solve(instance.costs, instance.losses, instance.limit)
        assert solution.loss == pytest.approx(instance.ranked()[0], abs=1e-9), seed
        assert solution.cost <= instance.limit
        assert solution.gap == 0
        assert solution.cost == instance.cost(solution.levels)
        assert solution.loss == pytest.approx(instance.loss(solution.levels), abs=1e-9)


@given(data=st.data())
@settings(max_examples=200)
def test_equals_brute_force(data: st.DataObject, instances: st.SearchStrategy[Any]) -> None:
    instance = data.draw(instances)
    solution = solve(instance.costs, instance.losses, instance.limit)
    assert solution.loss == pytest.approx(instance.ranked()[0], rel=1e-9, abs=1e-9)
    assert solution.cost <= instance.limit
    assert solution.gap == 0


def test_fused_decisions_take_one_option_for_all_their_sites(random_small: Callable[[int], Any]) -> None:
    for seed in range(300):
        rng, instance = np.random.default_rng([3, seed]), random_small(seed)
        twins = [rng.normal(size=len(row)) for row in instance.losses]
        plans = [plan for plan in instance.plans() if 2 * instance.cost(plan) <= instance.limit]
        if not plans:
            continue
        apart = min(
            instance.loss(plan) + sum(float(row[level]) for row, level in zip(twins, plan, strict=True))
            for plan in plans
        )
        fused = [row + twin for row, twin in zip(instance.losses, twins, strict=True)]
        solution = solve([2 * row for row in instance.costs], fused, instance.limit)
        assert solution.loss == pytest.approx(apart, abs=1e-9)


def test_large_instance_is_proven(random_large: Callable[..., Any]) -> None:
    instance = random_large(560, 12)
    solution = solve(instance.costs, instance.losses, instance.limit)
    assert solution.gap <= 1e-4
    assert solution.cost <= instance.limit


def test_the_ends_of_the_range(random_large: Callable[..., Any]) -> None:
    instance = random_large(20, 5)
    floor = sum(int(row.min()) for row in instance.costs)
    at_floor = solve(instance.costs, instance.losses, floor)
    assert at_floor.levels == tuple(int(row.argmin()) for row in instance.costs)
    assert at_floor.gap == 0
    above = solve(instance.costs, instance.losses, 10**15)
    assert above.levels == tuple(int(row.argmin()) for row in instance.losses)
    assert above.gap == 0


def test_equal_loss_takes_the_fewer_bytes() -> None:
    assert solve([np.array([9, 2, 4])], [np.array([1.0, 1.0, 1.0])], 9).levels == (1,)


def test_highs_takes_over_where_the_core_search_gives_up(
    random_large: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = random_large(40, 6)
    best = solve(instance.costs, instance.losses, instance.limit)
    monkeypatch.setattr(_core, "_WORK", 0)
    solution = solve(instance.costs, instance.losses, instance.limit, tolerance=1e-5)
    assert 0 < solution.gap <= 1e-4
    assert solution.bound <= best.loss <= solution.loss


def test_gap_within_the_tolerance_is_accepted_without_more_work(
    random_large: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = random_large(200, 8)
    monkeypatch.setattr(_core, "_WORK", 0)
    monkeypatch.setattr("tightfit.search.solvers._exact.solve_milp", None)
    assert 0 < solve(instance.costs, instance.losses, instance.limit, tolerance=0.1).gap <= 0.1


def test_sums_of_subsets_end_within_the_tolerance() -> None:
    # Losses proportional to bytes: every plan is as good per byte, and prices rule out nothing.
    rng = np.random.default_rng(5)
    costs = [np.sort(rng.integers(1, 10**7, 8)) for _ in range(60)]
    solution = solve(costs, [-1e-9 * row for row in costs], 150_000_000)
    assert solution.cost <= 150_000_000
    assert solution.gap <= 1e-4


def test_bad_input() -> None:
    with pytest.raises(InfeasibleError, match="below the floor of 3 bytes"):
        solve([np.array([3, 4])], [np.array([0.0, 1.0])], 2)
    with pytest.raises(InputError):
        solve([np.array([3, 4])], [np.array([0.0])], 5)
