from __future__ import annotations

import numpy as np
import pytest

from tightfit.search.solvers import Table
from tightfit.spaces import InfeasibleError, InputError

COSTS = [np.array([30, 10, 20]), np.array([5])]
LOSSES = [np.array([0.0, 2.0, -1.0]), np.array([0.5])]


def test_short_rows_are_padded_with_their_first_option() -> None:
    table = Table.of(COSTS, LOSSES)
    assert table.costs.tolist() == [[30, 10, 20], [5, 5, 5]]
    assert table.losses.tolist() == [[0.0, 2.0, -1.0], [0.5, 0.5, 0.5]]
    assert table.real.tolist() == [[True, True, True], [True, False, False]]


def test_cost_loss_and_floor() -> None:
    table = Table.of(COSTS, LOSSES)
    assert table.floor == 15
    assert table.cost(np.array([2, 0])) == 25
    assert table.loss(np.array([2, 0])) == -0.5


def test_limit_is_lowered_to_the_common_unit_of_all_steps() -> None:
    table = Table.of(COSTS, LOSSES)
    assert [table.reachable(limit) for limit in (15, 24, 25, 1000)] == [15, 15, 25, 995]
    assert Table.of(COSTS[1:], LOSSES[1:]).reachable(7) == 7


def test_limit_below_the_floor_names_both() -> None:
    with pytest.raises(InfeasibleError, match="14 bytes is below the floor of 15 bytes"):
        Table.of(COSTS, LOSSES).reachable(14)


@pytest.mark.parametrize(
    ("costs", "losses", "message"),
    [
        ([], [], "0 decisions have costs"),
        (COSTS, LOSSES[:1], "2 decisions have costs and 1 have losses"),
        ([[1, 2]], [[0.0]], r"decision 0 has costs of shape \(2,\) and losses of shape \(1,\)"),
        ([[1], []], [[0.0], []], r"decision 1 has costs of shape \(0,\)"),
        ([[1.5, 2.0]], [[0.0, 1.0]], "whole numbers"),
        ([[1, 2]], [[0.0, float("nan")]], "decision 0 has losses .*nan.*finite"),
        ([[1, 2]], [[0.0, float("inf")]], "finite"),
    ],
)
def test_bad_input_is_refused(costs: list[list[float]], losses: list[list[float]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Table.of([np.array(row) for row in costs], [np.array(row) for row in losses])
