from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.proxies import Coupling
from tightfit.search.solvers import Side, keeps_all, least_violating, solve, solve_front, solve_k_best
from tightfit.search.solvers import _coupled as coupled
from tightfit.search.solvers._coupled import Coupled
from tightfit.spaces import InfeasibleError, InputError


def couple(instance: Any, seed: int) -> list[Coupling]:
    """Couple two or three decisions at a time, now and then one of them twice; ties and negative excess."""
    rng = np.random.default_rng([53, seed])
    sizes = [len(row) for row in instance.costs]
    couplings = []
    for _ in range(rng.integers(1, 3)):
        count = min(int(rng.integers(2, 4)), len(sizes))
        if count < 2:
            return []
        decisions = tuple(rng.permutation(len(sizes))[:count].tolist())
        shape = tuple(sizes[decision] for decision in decisions)
        tied = rng.random() < 0.4
        excess = rng.integers(-1, 2, shape).astype(float) if tied else rng.normal(0, 1, shape)
        couplings.append(Coupling(decisions, excess))
    return couplings


def losses_of(instance: Any, couplings: Sequence[Coupling]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List all plans with their bytes and losses, counted one by one."""
    plans = instance.plans()
    losses = [instance.loss(plan) + sum(coupling.value(plan) for coupling in couplings) for plan in plans]
    return np.array(plans), np.array([instance.cost(plan) for plan in plans]), np.array(losses)


def draw_sides(instance: Any, seed: int, count: int) -> list[Side]:
    rng = np.random.default_rng([59, seed])
    sides = []
    for index in range(count):
        rows = [np.round(rng.lognormal(0, 1, len(row)), int(rng.integers(0, 3))) for row in instance.costs]
        low, high = (sum(float(pick(row)) for row in rows) for pick in (np.min, np.max))
        sides.append(Side(f"side {index}", tuple(rows), low + rng.random() * (high - low)))
    return sides


def test_solve_equals_brute_force(random_small: Callable[[int], Any]) -> None:
    changed = 0
    for seed in range(400):
        instance = random_small(seed)
        couplings = couple(instance, seed)
        plans, costs, losses = losses_of(instance, couplings)
        solution = solve(instance.costs, instance.losses, instance.limit, couplings=couplings)
        own = (plans == solution.levels).all(axis=1)
        assert solution.cost == costs[own][0] <= instance.limit
        assert solution.loss == pytest.approx(losses[own][0], abs=1e-9)
        assert solution.loss == pytest.approx(losses[costs <= instance.limit].min(), abs=1e-9), seed
        assert solution.gap == 0
        changed += solution.levels != solve(instance.costs, instance.losses, instance.limit).levels
    assert changed > 100


def test_k_best_equal_brute_force(random_small: Callable[[int], Any]) -> None:
    for seed in range(400):
        instance, k = random_small(seed), 1 + seed % 12
        couplings = couple(instance, seed)
        plans, costs, losses = losses_of(instance, couplings)
        solutions = solve_k_best(instance.costs, instance.losses, instance.limit, k, couplings=couplings)
        expected = np.sort(losses[costs <= instance.limit])[:k]
        assert [s.loss for s in solutions] == pytest.approx(expected, abs=1e-9), seed
        assert len({s.levels for s in solutions}) == len(solutions)
        for solution in solutions:
            (own,) = np.flatnonzero((plans == solution.levels).all(axis=1))
            assert (solution.cost, solution.loss) == (costs[own], pytest.approx(losses[own], abs=1e-9))
            assert solution.gap == 0


def test_front_equals_brute_force_at_every_limit(random_small: Callable[[int], Any]) -> None:
    exact = 0
    for seed in range(400):
        instance = random_small(seed)
        couplings = couple(instance, seed)
        plans, costs, losses = losses_of(instance, couplings)
        front = solve_front(instance.costs, instance.losses, couplings=couplings)
        for position in range(len(front.costs)):
            own = (plans == front.levels(position)).all(axis=1)
            assert front.costs[position] == costs[own][0]
            assert front.losses[position] == pytest.approx(losses[own][0], abs=1e-9)
        limits = np.unique(costs)
        best = np.array([losses[costs <= limit].min() for limit in limits])
        assert (front.lower(limits) <= best + 1e-9).all()
        reached = front.losses[[front.at(limit) for limit in limits]]
        assert (reached >= best - 1e-9).all()
        if front.exact:
            exact += 1
            assert reached == pytest.approx(best, abs=1e-9), seed
        solution = front.solution(instance.limit)
        assert solution.levels == front.levels(front.at(instance.limit))
        assert solution.bound <= losses[costs <= instance.limit].min() + 1e-9
    assert exact > 200


@pytest.mark.parametrize("count", [1, 2])
def test_sides_equal_brute_force(random_small: Callable[[int], Any], count: int) -> None:
    refused = 0
    for seed in range(150):
        instance, k = random_small(seed), 1 + seed % 5
        couplings, sides = couple(instance, seed), draw_sides(instance, seed, count)
        plans, costs, losses = losses_of(instance, couplings)
        kept = np.array([keeps_all(sides, plan) for plan in plans.tolist()]) & (costs <= instance.limit)
        arguments = (instance.costs, instance.losses, instance.limit)
        if not kept.any():
            refused += 1
            with pytest.raises(InfeasibleError):
                solve(*arguments, sides=sides, couplings=couplings)
            continue
        expected = np.sort(losses[kept])
        solution = solve(*arguments, sides=sides, couplings=couplings)
        assert keeps_all(sides, solution.levels)
        assert solution.cost == instance.cost(solution.levels) <= instance.limit
        assert solution.bound <= expected[0] + 1e-9
        assert solution.loss == pytest.approx(expected[0], rel=1e-4, abs=1e-9), seed
        several = solve_k_best(*arguments, k, sides=sides, couplings=couplings)
        assert [s.loss for s in several] == pytest.approx(expected[: len(several)], rel=1e-3, abs=1e-9)
        assert len(several) == min(k, len(expected))
    assert 5 < refused < 140


def test_least_violating_equals_brute_force(random_small: Callable[[int], Any]) -> None:
    for seed in range(150):
        instance = random_small(seed)
        couplings, sides = couple(instance, seed), draw_sides(instance, seed, 1)
        plans, costs, losses = losses_of(instance, couplings)
        excess = np.array([sides[0].excess(plan) for plan in plans.tolist()])
        excess[costs > instance.limit] = np.inf
        solution = least_violating(instance.costs, instance.losses, instance.limit, sides, couplings)
        assert sides[0].excess(solution.levels) == pytest.approx(excess.min(), abs=1e-8)
        nearest = losses[excess <= excess.min() + 1e-9].min()
        assert solution.loss == pytest.approx(nearest, rel=1e-4, abs=1e-9), seed


@given(data=st.data(), k=st.integers(1, 20))
def test_extremes_equal_brute_force(data: st.DataObject, k: int, instances: st.SearchStrategy[Any]) -> None:
    instance = data.draw(instances)
    couplings = []
    if len(instance.costs) > 1:
        decisions = tuple(data.draw(st.permutations(range(len(instance.costs))))[:3])
        shape = [len(instance.costs[decision]) for decision in decisions]
        value, size = st.integers(-3, 3).map(float) | st.floats(-1e3, 1e3), int(np.prod(shape))
        excess = np.array(data.draw(st.lists(value, min_size=size, max_size=size))).reshape(shape)
        couplings = [Coupling(decisions, excess)]
    _, costs, losses = losses_of(instance, couplings)
    solutions = solve_k_best(instance.costs, instance.losses, instance.limit, k, couplings=couplings)
    expected = np.sort(losses[costs <= instance.limit])[:k]
    assert [s.loss for s in solutions] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    best = solve(instance.costs, instance.losses, instance.limit, couplings=couplings)
    assert best.loss == pytest.approx(expected[0], rel=1e-9, abs=1e-9)


def test_without_couplings_the_problem_is_the_same_object() -> None:
    costs, losses = [np.array([1, 2])], [np.array([0.0, 5.0])]
    problem = Coupled.of(costs, losses, ())
    assert problem.costs is costs
    assert problem.losses is losses
    assert problem.levels([1]) == (1,)


def test_as_many_combinations_are_kept_as_the_best_plans_need() -> None:
    costs, losses = [np.arange(4), np.arange(5)], [np.zeros(4), np.zeros(5)]
    coupling = Coupling((0, 1), np.zeros((4, 5)))
    sizes = [len(Coupled.of(costs, losses, [coupling], best=best).costs[0]) for best in (1, 2, 20)]
    assert sizes == [1, 2, 20]
    side = Side("time", (np.arange(4.0)[::-1], np.zeros(5)), 9.0)
    problem = Coupled.of(costs, losses, [coupling], [side])
    assert [problem.levels([option]) for option in range(4)] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert problem.sides[0].values[0].tolist() == [3.0, 2.0, 1.0, 0.0]
    assert len(problem.costs[0]) == 4


def test_couplings_that_share_a_decision_become_one_block() -> None:
    costs = [np.array([0, 1])] * 4
    losses = [np.array([1.0, 0.0])] * 4
    joint = np.array([[0.0, 0.0], [0.0, 7.0]])
    couplings = [Coupling((0, 2), joint), Coupling((3, 2), joint)]
    problem = Coupled.of(costs, losses, couplings, best=8)
    assert [len(row) for row in problem.costs] == [8, 2]
    best = solve(costs, losses, 4, couplings=couplings)
    assert best.levels == (1, 1, 0, 1)
    assert best.loss == 1.0


def test_many_blocks_are_proven(random_large: Callable[..., Any]) -> None:
    instance = random_large(60, 6)
    rng = np.random.default_rng(0)
    couplings = [
        Coupling(
            (first, first + 1, first + 2), 0.01 * rng.normal(size=(6, 6, 6)) * (rng.random((6, 6, 6)) < 0.2)
        )
        for first in range(0, 36, 3)
    ]
    solution = solve(instance.costs, instance.losses, instance.limit, couplings=couplings)
    assert solution.gap <= 1e-4
    assert solution.cost <= instance.limit
    plain = solve(instance.costs, instance.losses, instance.limit)
    total = plain.loss + sum(coupling.value(plain.levels) for coupling in couplings)
    assert solution.loss < total
    nothing = [Coupling(coupling.decisions, np.zeros((6, 6, 6))) for coupling in couplings]
    same = solve(instance.costs, instance.losses, instance.limit, couplings=nothing)
    assert same.loss == pytest.approx(plain.loss, rel=1e-9)


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, losses = [np.array([1, 2])] * 2, [np.array([0.0, 5.0])] * 2
    with pytest.raises(InputError, match="names decision 2"):
        solve(costs, losses, 9, couplings=[Coupling((0, 2), np.zeros((2, 2)))])
    with pytest.raises(InputError, match=r"have \(2, 2\) options"):
        solve_front(costs, losses, couplings=[Coupling((0, 1), np.zeros((2, 3)))])
    coupling = Coupling((0, 1), np.zeros((2, 2)))
    side = Side("short", (np.zeros(2),), 1.0)
    with pytest.raises(InputError, match="short: its values are about other decisions"):
        solve(costs, losses, 9, sides=[side], couplings=[coupling])
    with pytest.raises(InputError, match="decision 1 has costs"):
        solve([costs[0], np.array([1])], losses, 9, couplings=[coupling])
    with pytest.raises(InfeasibleError, match="below the floor of 2 bytes"):
        solve(costs, losses, 1, couplings=[coupling])
    monkeypatch.setattr(coupled, "MOST_COMBINATIONS", 3)
    with pytest.raises(InputError, match=r"decisions \[0, 1\] have 2 × 2 combinations; at most 3"):
        solve_k_best(costs, losses, 9, 2, couplings=[coupling])
