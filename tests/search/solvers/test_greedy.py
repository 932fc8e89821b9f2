from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tightfit.search.solvers import Table, greedy, solve
from tightfit.search.solvers._greedy import fill
from tightfit.spaces import InfeasibleError

COSTS = [np.array([0, 10]), np.array([0, 4]), np.array([0, 3])]
LOSSES = [np.array([100.0, 0.0]), np.array([8.0, 0.0]), np.array([3.0, 0.0])]


def test_takes_the_best_loss_per_byte_first_then_whatever_fits() -> None:
    assert greedy(COSTS, LOSSES, 17) == (1, 1, 1)
    assert greedy(COSTS, LOSSES, 14) == (1, 1, 0)
    # The first upgrade does not fit in 9, nor does the second beside the third in 3.
    assert greedy(COSTS, LOSSES, 9) == (0, 1, 1)
    assert greedy(COSTS, LOSSES, 3) == (0, 0, 1)
    assert greedy(COSTS, LOSSES, 0) == (0, 0, 0)


def test_fill_reaches_options_off_the_hull() -> None:
    # Option 1 lies above the line from 0 to 2, but it is all that fits.
    assert greedy([np.array([0, 5, 6])], [np.array([10.0, 8.0, 0.0])], 5) == (1,)


def test_fill_ends_on_gains_too_small_to_divide() -> None:
    table = Table.of([np.array([0, 10**9])], [np.array([5e-324, 0.0])])
    assert fill(table, np.array([0]), 10**9).tolist() == [1]


def test_plans_fit_and_are_close_to_optimal(
    random_small: Callable[[int], Any], random_large: Callable[..., Any]
) -> None:
    for seed in range(300):
        instance = random_small(seed)
        levels = greedy(instance.costs, instance.losses, instance.limit)
        assert instance.cost(levels) <= instance.limit
        assert instance.loss(levels) >= instance.ranked()[0] - 1e-9
    large = random_large(200, 8)
    levels = greedy(large.costs, large.losses, large.limit)
    best = solve(large.costs, large.losses, large.limit)
    assert best.loss <= large.loss(levels) <= 1.02 * best.loss


def test_below_the_floor() -> None:
    with pytest.raises(InfeasibleError):
        greedy(COSTS, LOSSES, -1)
