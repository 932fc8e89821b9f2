from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tightfit.search.solvers import Side, keeps_all, least_violating, solve, solve_k_best
from tightfit.search.solvers import _sided as sided
from tightfit.spaces import InfeasibleError, InputError


def draw_sides(instance: Any, seed: int, count: int = 1) -> list[Side]:
    """Times of no order, whole numbers now and then; limits between the fastest plan and the slowest."""
    rng = np.random.default_rng([47, seed])
    sides = []
    for index in range(count):
        rows = [rng.lognormal(0, 1, len(row)) for row in instance.costs]
        if rng.random() < 0.3:
            rows = [np.round(row) for row in rows]
        low, high = (sum(float(pick(row)) for row in rows) for pick in (np.min, np.max))
        fixed = float(rng.choice([0.0, 0.7]))
        sides.append(Side(f"side {index}", tuple(rows), fixed + low + rng.random() * (high - low), fixed))
    return sides


def ranked(instance: Any, sides: Sequence[Side]) -> list[float]:
    """Losses of all plans that keep everything, best first."""
    kept = [p for p in instance.plans() if instance.cost(p) <= instance.limit and keeps_all(sides, p)]
    return sorted(instance.loss(plan) for plan in kept)


@pytest.mark.parametrize("count", [1, 2])
def test_equals_brute_force_on_random_instances(random_small: Callable[[int], Any], count: int) -> None:
    refused = 0
    for seed in range(250):
        instance = random_small(seed)
        sides = draw_sides(instance, seed, count)
        expected = ranked(instance, sides)
        if not expected:
            refused += 1
            with pytest.raises(InfeasibleError):
                solve(instance.costs, instance.losses, instance.limit, sides=sides)
            continue
        solution = solve(instance.costs, instance.losses, instance.limit, sides=sides)
        assert solution.cost == instance.cost(solution.levels) <= instance.limit
        assert keeps_all(sides, solution.levels)
        assert solution.bound <= expected[0] + 1e-9
        assert solution.loss == pytest.approx(expected[0], rel=1e-4, abs=1e-9), seed
    assert 5 < refused < 200


def test_k_best_equal_brute_force(random_small: Callable[[int], Any]) -> None:
    for seed in range(250):
        instance, k = random_small(seed), 1 + seed % 9
        sides = draw_sides(instance, seed)
        expected = ranked(instance, sides)[:k]
        if not expected:
            continue
        solutions = solve_k_best(instance.costs, instance.losses, instance.limit, k, sides=sides)
        assert [s.loss for s in solutions] == pytest.approx(expected, rel=1e-3, abs=1e-9), seed
        assert all(s.bound <= loss + 1e-9 for s, loss in zip(solutions, expected, strict=True))
        assert len({s.levels for s in solutions}) == len(solutions)
        assert all(keeps_all(sides, s.levels) and s.cost <= instance.limit for s in solutions)


def test_without_ranking_the_program_finds_the_same(
    random_small: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HiGHS alone, where prices leave the gap open."""
    monkeypatch.setattr(sided, "_ranked", lambda *_: ([], -np.inf))
    for seed in range(120):
        instance = random_small(seed)
        sides = draw_sides(instance, seed, 1 + seed % 2)
        expected = ranked(instance, sides)
        if expected:
            solution = solve(instance.costs, instance.losses, instance.limit, sides=sides)
            assert keeps_all(sides, solution.levels)
            assert solution.cost <= instance.limit
            assert solution.bound <= expected[0] + 1e-9
            assert solution.loss == pytest.approx(expected[0], rel=1e-4, abs=1e-5), seed


@pytest.mark.parametrize("count", [1, 2])
def test_least_violating_equals_brute_force(random_small: Callable[[int], Any], count: int) -> None:
    for seed in range(150):
        instance = random_small(seed)
        sides = draw_sides(instance, seed, count)
        found = least_violating(instance.costs, instance.losses, instance.limit, sides)
        assert found.cost <= instance.limit
        within = [plan for plan in instance.plans() if instance.cost(plan) <= instance.limit]
        excess = {plan: max(side.excess(plan) for side in sides) for plan in within}
        least = min(excess.values())
        assert excess[found.levels] == pytest.approx(least, abs=1e-6), seed
        as_near = [instance.loss(plan) for plan in within if excess[plan] <= least + 1e-9]
        assert found.loss <= min(as_near) + 1e-9


def test_sides_that_bind_nothing_change_nothing(random_large: Callable[..., Any]) -> None:
    instance = random_large(60, 6)
    loose = Side("loose", tuple(row * 1e-9 for row in instance.costs), 1e9)
    bare = solve(instance.costs, instance.losses, instance.limit)
    assert solve(instance.costs, instance.losses, instance.limit, sides=[loose]).levels == bare.levels


def test_large_instances_are_solved_within_the_gap(random_large: Callable[..., Any]) -> None:
    for decisions, options in ((60, 6), (211, 10)):
        instance = random_large(decisions, options)
        rng = np.random.default_rng(decisions)
        speeds = rng.uniform(0.5, 1.5, options)  # of formats, in no order
        rows = tuple(row * speeds * rng.lognormal(0, 0.05, options) * 1e-9 for row in instance.costs)
        free = solve(instance.costs, instance.losses, instance.limit)
        fastest = least_violating(instance.costs, instance.losses, instance.limit, [Side("t", rows, 1e-3)])
        slow, fast = (sum(row[x] for row, x in zip(rows, s.levels, strict=True)) for s in (free, fastest))
        assert fast < slow
        side = Side("t", rows, (slow + fast) / 2)
        solutions = solve_k_best(instance.costs, instance.losses, instance.limit, 8, sides=[side])
        assert len({s.levels for s in solutions}) == 8
        assert all(s.gap <= 1e-3 and side.keeps(s.levels) and s.cost <= instance.limit for s in solutions)
        best = solve(instance.costs, instance.losses, instance.limit, sides=[side])
        assert best.gap <= 1e-4
        assert free.loss < best.loss < fastest.loss


def test_a_refusal_names_what_can_be_reached() -> None:
    costs, losses = [np.array([1, 2, 3])], [np.array([3.0, 2.0, 1.0])]
    side = Side("budget.tokens_per_second", (np.array([0.1, 0.04, 0.02]),), 0.03, 0.01, "tokens/s", per=True)
    message = (
        "no plan whose decisions take at most 2 bytes keeps budget.tokens_per_second "
        "(at least 33.33 tokens/s): the nearest one reaches 20 tokens/s;"
    )
    with pytest.raises(InfeasibleError, match=re.escape(message)):
        solve(costs, losses, 2, sides=[side])
    assert solve(costs, losses, 3, sides=[side]).levels == (2,)
    assert least_violating(costs, losses, 2, [side]).levels == (1,)


def test_sides_about_other_options_are_refused() -> None:
    with pytest.raises(InputError, match="odd: its values are about other decisions or options"):
        solve([np.array([1, 2])], [np.array([1.0, 0.0])], 2, sides=[Side("odd", (np.ones(3),), 9.0)])


def test_equal_plans_of_a_tie_are_all_found() -> None:
    """Layers of one shape and one sensitivity: every plan has many twins on both sides of a limit."""
    costs, losses = [np.array([1, 2])] * 6, [np.array([1.0, 0.0])] * 6
    side = Side("t", (np.array([1.0, 2.0]),) * 6, 8.5)
    solutions = solve_k_best(costs, losses, 12, 30, sides=[side])
    assert [s.loss for s in solutions] == [4.0] * 15 + [5.0] * 6 + [6.0]
    expected = [p for p in itertools.product((0, 1), repeat=6) if sum(p) <= 2]
    assert {s.levels for s in solutions} == set(expected)
