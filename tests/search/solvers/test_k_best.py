from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.search.solvers import solve, solve_k_best
from tightfit.spaces import InfeasibleError, InputError


def test_equals_brute_force_on_random_instances(random_small: Callable[[int], Any]) -> None:
    for seed in range(1000):
        instance, k = random_small(seed), 1 + seed % 12
        solutions = solve_k_best(instance.costs, instance.losses, instance.limit, k)
        assert [s.loss for s in solutions] == pytest.approx(instance.ranked()[:k], abs=1e-9), seed
        assert len({s.levels for s in solutions}) == len(solutions)
        assert all(s.cost == instance.cost(s.levels) <= instance.limit for s in solutions)
        assert all(s.gap == 0 for s in solutions)


@given(data=st.data(), k=st.integers(1, 30))
def test_equals_brute_force(data: st.DataObject, k: int, instances: st.SearchStrategy[Any]) -> None:
    instance = data.draw(instances)
    solutions = solve_k_best(instance.costs, instance.losses, instance.limit, k)
    assert [s.loss for s in solutions] == pytest.approx(instance.ranked()[:k], rel=1e-9, abs=1e-9)
    assert len({s.levels for s in solutions}) == len(solutions)


def test_large_instance(random_large: Callable[..., Any]) -> None:
    instance = random_large(560, 12)
    solutions = solve_k_best(instance.costs, instance.losses, instance.limit, 16)
    assert len({s.levels for s in solutions}) == 16
    assert solutions[0].loss == solve(instance.costs, instance.losses, instance.limit).loss
    assert all(s.gap == 0 and s.cost <= instance.limit for s in solutions)
    assert [s.loss for s in solutions] == sorted(s.loss for s in solutions)


def test_dominated_options_are_plans_too() -> None:
    solutions = solve_k_best([np.array([1, 2])], [np.array([0.0, 5.0])], 2, 5)
    assert [(s.levels, s.loss) for s in solutions] == [((0,), 0.0), ((1,), 5.0)]


def test_bad_input() -> None:
    with pytest.raises(InfeasibleError):
        solve_k_best([np.array([1, 2])], [np.array([0.0, 5.0])], 0, 3)
    with pytest.raises(InputError, match="k must be at least 1, not 0"):
        solve_k_best([np.array([1, 2])], [np.array([0.0, 5.0])], 2, 0)
