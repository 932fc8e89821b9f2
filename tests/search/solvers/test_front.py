from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.search.solvers import solve, solve_front
from tightfit.spaces import InfeasibleError


def check_points(instance: Any, front: Any) -> None:
    """Points are non-dominated, their costs and losses are those of their plans, bounds hold."""
    assert (np.diff(front.costs) > 0).all()
    assert (np.diff(front.losses) < 0).all()
    assert (front.bounds <= front.losses).all()
    assert (front.gaps >= 0).all()
    for position in range(len(front.costs)):
        levels = front.levels(position)
        assert front.costs[position] == instance.cost(levels)
        assert front.losses[position] == pytest.approx(instance.loss(levels), abs=1e-9)


@given(data=st.data(), buckets=st.sampled_from([1, 5, 64, 4096]))
def test_points_are_true_plans(data: st.DataObject, buckets: int, instances: st.SearchStrategy[Any]) -> None:
    instance = data.draw(instances)
    front = solve_front(instance.costs, instance.losses, buckets)
    check_points(instance, front)
    solution = front.solution(instance.limit)
    optimum = instance.ranked()[0]
    assert solution.cost <= instance.limit
    assert solution.bound <= optimum + 1e-9
    assert solution.loss >= optimum - 1e-9


def test_is_optimal_everywhere_where_nothing_was_rounded(random_small: Callable[[int], Any]) -> None:
    exact = 0
    for seed in range(500):
        instance = random_small(seed)
        front = solve_front(instance.costs, instance.losses)
        if front.exact:
            exact += 1
            loss = front.losses[front.at(instance.limit)]
            assert loss == pytest.approx(instance.ranked()[0], abs=1e-9), seed
    assert exact > 100


def test_large_front_is_close_to_the_bound(random_large: Callable[..., Any]) -> None:
    instance = random_large(150, 8)
    front = solve_front(instance.costs, instance.losses, buckets=16384)
    assert not front.exact
    assert front.costs[0] == sum(int(row.min()) for row in instance.costs)
    assert float(np.median(front.gaps)) < 5e-3
    best = solve(instance.costs, instance.losses, instance.limit)
    near = front.solution(instance.limit)
    assert best.loss <= near.loss <= best.loss * (1 + near.gap) * (1 + 1e-9)
    assert near.cost <= instance.limit


def test_finer_tables_come_closer(random_large: Callable[..., Any]) -> None:
    instance = random_large(60, 6)
    gaps = [
        solve_front(instance.costs, instance.losses, buckets).solution(instance.limit).gap
        for buckets in (100, 1000, 10000)
    ]
    assert gaps[0] > gaps[1] > gaps[2]


def test_structured_bytes_need_no_rounding() -> None:
    costs = [41472 * np.array([2, 3, 4, 8]) + 10368] * 20
    front = solve_front(costs, [np.array([4.0, 2.0, 1.0, 0.0])] * 20)
    assert (front.unit, front.exact) == (41472, True)


def test_pins_alone_give_one_point() -> None:
    front = solve_front([np.array([7]), np.array([5])], [np.array([1.0]), np.array([-2.0])])
    assert (front.costs.tolist(), front.losses.tolist(), front.levels(0)) == ([12], [-1.0], (0, 0))


def test_many_options_need_wider_choices() -> None:
    front = solve_front([np.arange(300)], [-np.arange(300.0)])
    assert front.levels(front.at(299)) == (299,)


def test_limit_below_the_floor() -> None:
    front = solve_front([np.array([3, 4])], [np.array([1.0, 0.0])])
    assert front.at(3) == 0
    with pytest.raises(InfeasibleError, match="below the floor of 3 bytes"):
        front.at(2)
