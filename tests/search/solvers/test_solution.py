from __future__ import annotations

import math

import numpy as np
import pytest

from tightfit.search.solvers import Solution, Table


def one_decision(*losses: float) -> Table:
    return Table.of([np.arange(len(losses))], [np.array(losses)])


def test_gap_is_relative_to_the_loss_whatever_its_sign() -> None:
    assert Solution.of(one_decision(2.0), np.array([0]), 1.5).gap == pytest.approx(0.25)
    assert Solution.of(one_decision(-2.0), np.array([0]), -2.5).gap == pytest.approx(0.25)


def test_bound_above_the_loss_means_proven() -> None:
    solution = Solution.of(one_decision(2.0), np.array([0]), math.inf)
    assert (solution.bound, solution.gap) == (2.0, 0.0)


def test_gap_of_a_loss_near_zero_stays_finite() -> None:
    table = Table.of([np.array([1]), np.array([1])], [np.array([1e6]), np.array([-1e6])])
    solution = Solution.of(table, np.array([0, 0]), -1e-9)
    assert solution.loss == 0
    assert 0 < solution.gap < 1
    assert Solution.of(one_decision(0.0), np.array([0]), 0.0).gap == 0


def test_fields_are_plain_numbers() -> None:
    solution = Solution.of(one_decision(3.0, 1.0), np.array([1]), 0.5)
    assert solution == Solution((1,), 1, 1.0, 0.5, 0.5)
    assert [type(x) for x in (solution.levels[0], solution.cost, solution.loss, solution.gap)] == [
        int, int, float, float,
    ]  # fmt: skip
