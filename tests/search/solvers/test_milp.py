from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import milp

from tightfit.search.solvers import Solution, Table, greedy, solve
from tightfit.search.solvers._milp import solve_milp


def start(table: Table, instance: Any) -> Solution:
    levels = np.array(greedy(instance.costs, instance.losses, instance.limit))
    return Solution.of(table, levels, -np.inf)


def test_agrees_with_brute_force(random_small: Callable[[int], Any]) -> None:
    for seed in range(60):
        instance = random_small(seed)
        table = Table.of(instance.costs, instance.losses)
        solution = solve_milp(table, instance.limit, start(table, instance), tolerance=1e-9)
        optimum = instance.ranked()[0]
        assert solution.cost <= instance.limit
        assert solution.bound <= optimum + 1e-9
        assert solution.loss == pytest.approx(optimum, abs=1e-5)


def test_agrees_with_the_core_search_where_brute_force_cannot_go(random_large: Callable[..., Any]) -> None:
    instance = random_large(60, 6)
    table = Table.of(instance.costs, instance.losses)
    solution = solve_milp(table, instance.limit, start(table, instance), tolerance=1e-5)
    best = solve(instance.costs, instance.losses, instance.limit)
    assert best.gap == 0
    assert solution.bound <= best.loss <= solution.loss
    assert solution.loss == pytest.approx(best.loss, rel=1e-4)


def test_a_better_known_plan_and_bound_are_kept(random_large: Callable[..., Any]) -> None:
    instance = random_large(30, 6)
    table = Table.of(instance.costs, instance.losses)
    best = solve(instance.costs, instance.losses, instance.limit)
    assert solve_milp(table, instance.limit, best, tolerance=0.5) == best


def test_the_search_ends_after_a_number_of_nodes_and_never_by_the_clock(
    random_large: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit would give a busy machine another plan than an idle one."""
    given: list[dict[str, Any]] = []

    def watched(*arguments: Any, options: dict[str, Any], **more: Any) -> Any:
        given.append(dict(options))  # SciPy empties it
        return milp(*arguments, options=options, **more)

    monkeypatch.setattr("tightfit.search.solvers._milp.milp", watched)
    instance = random_large(60, 6)
    table = Table.of(instance.costs, instance.losses)
    first, second = (solve_milp(table, instance.limit, start(table, instance), 0.0, nodes=3) for _ in "ab")
    assert first == second
    assert [(options["node_limit"], "time_limit" in options) for options in given] == [(3, False)] * 2


def test_a_plan_over_the_limit_is_not_taken(
    random_large: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # HiGHS counts bytes in floating point, and may take a plan that is a few too large.
    instance = random_large(10, 4)
    table = Table.of(instance.costs, instance.losses)
    dearest = np.arange(table.losses.size) % 4 == 3
    answer = SimpleNamespace(x=dearest.astype(float), mip_dual_bound=None)
    monkeypatch.setattr("tightfit.search.solvers._milp.milp", lambda *_, **__: answer)
    known = start(table, instance)
    assert solve_milp(table, instance.limit, known) == known
