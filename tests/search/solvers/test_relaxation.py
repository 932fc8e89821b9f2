from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from tightfit.search.solvers import Relaxation, Table


def relax(costs: list[list[int]], losses: list[list[float]]) -> Relaxation:
    return Relaxation.of(Table.of([np.array(row) for row in costs], [np.array(row) for row in losses]))


def test_steps_follow_the_lower_convex_hull() -> None:
    # Option 2 lies above the line from 0 to 3, option 4 is dominated, option 1 is dearer than 3.
    relaxation = relax([[0, 9, 2, 4, 5]], [[8.0, 1.0, 6.0, 2.0, 2.5]])
    assert relaxation.options.tolist() == [3, 1]
    assert relaxation.prices.tolist() == [1.5, 0.2]
    assert relaxation.curve.costs.tolist() == [0, 4, 9]
    assert relaxation.curve.losses.tolist() == [8.0, 2.0, 1.0]


def test_of_equally_cheap_options_the_best_is_the_start() -> None:
    relaxation = relax([[3, 1, 1]], [[0.0, 5.0, 4.0]])
    assert relaxation.start.tolist() == [2]
    assert relaxation.options.tolist() == [0]


def test_points_on_one_edge_are_one_step() -> None:
    assert relax([[0, 1, 2]], [[2.0, 1.0, 0.0]]).options.tolist() == [2]


def test_price_and_plan_at_a_limit() -> None:
    relaxation = relax([[0, 4], [0, 2]], [[8.0, 0.0], [1.0, 0.0]])
    assert [relaxation.price(limit) for limit in (0, 3, 4, 5, 6, 99)] == [2.0, 2.0, 0.5, 0.5, 0.0, 0.0]
    assert [relaxation.levels(limit).tolist() for limit in (3, 4, 6)] == [[0, 0], [1, 0], [1, 1]]


def test_bound_below_the_floor_is_infinite() -> None:
    assert relax([[3, 4]], [[1.0, 0.0]]).curve([2, 3, 4, 5]).tolist() == [np.inf, 1.0, 0.0, 0.0]


@given(data=st.data())
def test_bound_is_below_the_optimum_and_no_plan_beats_a_vertex(
    data: st.DataObject, instances: st.SearchStrategy[Any]
) -> None:
    instance = data.draw(instances)
    table = Table.of(instance.costs, instance.losses)
    relaxation = Relaxation.of(table)
    optimum = instance.ranked()[0]
    assert float(relaxation.curve(instance.limit)) <= optimum + table.rounding
    levels = relaxation.levels(instance.limit)
    assert table.cost(levels) <= instance.limit
    assert table.loss(levels) == pytest.approx(float(relaxation.curve(table.cost(levels))))


def test_bound_equals_a_linear_programme(random_small: Callable[[int], Any]) -> None:
    for seed in range(40):
        instance = random_small(seed)
        table = Table.of(instance.costs, instance.losses)
        owner = np.repeat(np.arange(len(table.counts)), table.counts)
        above = np.concatenate(instance.costs) - table.costs.min(axis=1)[owner]
        answer = linprog(
            np.concatenate(instance.losses),
            A_ub=above[None] / max(above.max(), 1),
            b_ub=[(instance.limit - table.floor) / max(above.max(), 1)],
            A_eq=owner == np.arange(len(table.counts))[:, None],
            b_eq=np.ones(len(table.counts)),
        )
        assert float(Relaxation.of(table).curve(instance.limit)) == pytest.approx(answer.fun, abs=1e-6)


def test_curve_of_some_decisions() -> None:
    relaxation = relax([[1, 5], [2, 4], [7]], [[8.0, 0.0], [1.0, 0.0], [3.0]])
    curve = relaxation.curve_of(np.array([False, True, True]))
    assert curve.costs.tolist() == [9, 11]
    assert curve.losses.tolist() == [4.0, 3.0]
    nothing = relaxation.curve_of(np.zeros(3, dtype=bool))
    assert nothing([-1, 0, 1]).tolist() == [np.inf, 0.0, 0.0]
