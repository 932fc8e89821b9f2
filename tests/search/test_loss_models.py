"""Loss models as solvers use them, against every plan of tiny problems."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tightfit.proxies.additive import LinkAdditive
from tightfit.proxies.coupling import Coupling
from tightfit.proxies.links import Amplifying, Coverage, Identity, Link
from tightfit.proxies.pools import PooledModel
from tightfit.search.loss_models import LossModel, additive_table, front_of, link_words, solve_model
from tightfit.search.sides import Side, keeps_all
from tightfit.spaces import InfeasibleError

POOLS = (("weights", (0, 1, 2)), ("kv", (3, 4)))
SIZES = (3, 2, 3, 3, 2)
PLANS = np.array(list(itertools.product(*map(range, SIZES))))
LINKS: tuple[Link, ...] = (Identity(), Amplifying(1.5), Coverage(1.2))


@dataclass
class Problem:
    """Bytes and scores of five decisions, of which the last two are caches."""

    costs: list[np.ndarray]
    weights: tuple[np.ndarray, ...]
    couplings: tuple[Coupling, ...]
    limit: int

    def within(self, sides: Sequence[Side] = ()) -> np.ndarray:
        """Which of all plans keep limit and sides."""
        costs = sum(row[column] for row, column in zip(self.costs, PLANS.T, strict=True))
        kept = np.array([keeps_all(sides, plan.tolist()) for plan in PLANS])
        return np.asarray((costs <= self.limit) & kept)

    def sides(self, weights: int, caches: int) -> tuple[Side, ...]:
        """Bounds on the bytes of the first three decisions and on those of the others."""
        parts = [(weights, range(3)), (caches, range(3, 5))]
        return tuple(
            Side(
                f"part {limit}",
                tuple(row * float(d in own) for d, row in enumerate(self.costs)),
                limit,
                unit="B",
            )
            for limit, own in parts
        )


def problems(count: int, crossing: bool) -> Iterator[Problem]:
    """Bytes that rise and losses that mostly fall, with couplings within pools or across them."""
    for seed in range(count):
        rng = np.random.default_rng([71, seed])
        costs = [np.sort(rng.integers(1, 40, size)) for size in SIZES]
        weights = tuple(np.sort(rng.lognormal(-2, 1, size))[::-1] for size in SIZES)
        coupled = ((0, 3), (1, 2, 4)) if crossing else ((0, 2), (3, 4))
        couplings = tuple(
            Coupling(own, rng.normal(0, 0.1, tuple(SIZES[i] for i in own)).clip(-0.05)) for own in coupled
        )
        low, high = (sum(int(row[at]) for row in costs) for at in (0, -1))
        yield Problem(costs, weights, couplings, int(rng.integers(low, high + 1)))


def loose_sides(problem: Problem, seed: int) -> tuple[Side, ...]:
    """Bounds on both parts that some plan keeps, tight for one of them now and then."""
    rng = np.random.default_rng([73, seed])
    feasible = PLANS[problem.within()]
    plan = feasible[rng.integers(len(feasible))]
    parts = [sum(int(problem.costs[d][plan[d]]) for d in own) for own in (range(3), range(3, 5))]
    return problem.sides(parts[0], parts[1])


def check(model: LossModel, problem: Problem, sides: tuple[Side, ...], losses: np.ndarray) -> bool:
    """Check a solution against the best of all plans; return whether the sides cost anything."""
    solution = solve_model(problem.costs, model, problem.limit, sides)
    assert solution.cost <= problem.limit
    assert keeps_all(sides, solution.levels)
    mine = losses[(solution.levels == PLANS).all(axis=1)][0]
    best = losses[problem.within(sides)].min()
    assert mine == pytest.approx(best, rel=2e-4, abs=1e-12)
    assert solution.bound <= best + 1e-9
    assert solution.loss == pytest.approx(mine, rel=1e-9)
    return bool(best > losses[problem.within()].min() + 1e-12)


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_one_link_with_couplings_across_kinds_of_decision_is_solved_exactly(link: Link) -> None:
    for seed, problem in enumerate(problems(25, crossing=True)):
        model = LinkAdditive(problem.weights, link, problem.couplings)
        scores = model.additive_score(PLANS)  # a link is monotone: the solution's loss is the sum
        assert not check(model, problem, (), scores)
        check(model, problem, loose_sides(problem, seed), scores)


def test_sides_change_what_is_best() -> None:
    changed = sum(
        check(model, problem, loose_sides(problem, seed), model.additive_score(PLANS))
        for seed, problem in enumerate(problems(40, crossing=True))
        for model in (LinkAdditive(problem.weights, Identity(), problem.couplings),)
    )
    assert changed > 10


@pytest.mark.parametrize(
    "links", [*itertools.permutations(LINKS, 2)], ids=lambda pair: " ".join(link.name for link in pair)
)
def test_pools_are_solved_exactly(links: tuple[Link, ...]) -> None:
    for seed, problem in enumerate(problems(12, crossing=False)):
        model = PooledModel(problem.weights, POOLS, links, problem.couplings)
        losses = model.predict(PLANS)
        assert not check(model, problem, (), losses)
        # Bounds that the best plan keeps anyway change nothing.
        best = solve_model(problem.costs, model, problem.limit)
        parts = [sum(int(problem.costs[d][best.levels[d]]) for d in own) for own in (range(3), range(3, 5))]
        kept = solve_model(problem.costs, model, problem.limit, problem.sides(parts[0], parts[1]))
        assert kept == best
        # Others are kept, by a plan near the best one without them, which is a bound on all.
        sides = loose_sides(problem, seed)
        solution = solve_model(problem.costs, model, problem.limit, sides)
        assert keeps_all(sides, solution.levels)
        assert solution.cost <= problem.limit
        if not keeps_all(sides, best.levels):
            least = losses[problem.within(sides)].min()
            assert solution.loss == pytest.approx(model.predict(np.array([solution.levels]))[0])
            assert solution.bound <= least * (1 + 1e-9) <= solution.loss * (1 + 2e-9)
            assert solution.gap == pytest.approx(1 - solution.bound / solution.loss, abs=1e-9)


def test_a_front_that_is_there_already_gives_the_same_solution() -> None:
    for problem in problems(8, crossing=False):
        for model in (
            PooledModel(problem.weights, POOLS, LINKS[1:], problem.couplings),
            LinkAdditive(problem.weights, LINKS[1], problem.couplings),
        ):
            front = front_of(problem.costs, model)
            again = solve_model(problem.costs, model, problem.limit, front=front)
            assert again == solve_model(problem.costs, model, problem.limit)


def test_a_front_has_the_best_plan_of_every_limit() -> None:
    for problem in problems(8, crossing=False):
        for model in (
            PooledModel(problem.weights, POOLS, LINKS[:2], problem.couplings),
            LinkAdditive(problem.weights, LINKS[2], problem.couplings),
        ):
            front = front_of(problem.costs, model)
            plans = np.array([front.levels(i) for i in range(len(front.costs))])
            costs = sum(row[column] for row, column in zip(problem.costs, plans.T, strict=True))
            np.testing.assert_array_equal(costs, front.costs)
            assert (np.diff(model.predict(plans)) < 1e-12).all()


def test_what_no_plan_keeps_is_refused() -> None:
    problem = next(problems(1, crossing=False))
    least = [sum(int(problem.costs[d][0]) for d in own) for own in (range(3), range(3, 5))]
    for model in (
        LinkAdditive(problem.weights, Identity(), problem.couplings),
        PooledModel(problem.weights, POOLS, LINKS[:2], problem.couplings),
    ):
        with pytest.raises(InfeasibleError):
            solve_model(problem.costs, model, sum(least) - 1)
        with pytest.raises(InfeasibleError, match=f"part {least[0] - 1}"):
            solve_model(problem.costs, model, problem.limit, problem.sides(least[0] - 1, 10**6))


@pytest.mark.parametrize("seed", range(5))
def test_tables_add_up_to_the_model_near_a_plan(seed: int) -> None:
    problem = list(problems(seed + 1, crossing=False))[seed]
    model = PooledModel(problem.weights, POOLS, LINKS[1:], problem.couplings)
    at = PLANS[7 * seed]
    table, couplings = additive_table(model, at.tolist())
    near = LinkAdditive(tuple(table), Identity(), couplings)
    # A hair of a change in any score changes both sums alike.
    for d, size in enumerate(SIZES):
        for level in range(size):
            step = 1e-6
            bent = [row.copy() for row in model.weights]
            bent[d][at[d]] += step
            moved = PooledModel(tuple(bent), POOLS, model.links, model.couplings).predict(at[None])
            slope = (moved - model.predict(at[None]))[0] / step
            assert table[d][level] == pytest.approx(slope * model.weights[d][level], rel=1e-4, abs=1e-9)
    for mine, theirs in zip(couplings, model.couplings, strict=True):
        assert mine.decisions == theirs.decisions
        ratio = mine.excess[theirs.excess != 0] / theirs.excess[theirs.excess != 0]
        np.testing.assert_allclose(ratio, ratio[0])
    assert near.additive_score(at[None]).shape == (1,)


def test_with_one_link_tables_are_the_scores_wherever_one_looks() -> None:
    problem = next(problems(1, crossing=True))
    model = LinkAdditive(problem.weights, Amplifying(2.0), problem.couplings)
    for plan in PLANS[::20]:
        table, couplings = additive_table(model, plan.tolist())
        assert all(np.array_equal(a, b) for a, b in zip(table, model.weights, strict=True))
        assert couplings == model.couplings


def test_links_are_named() -> None:
    problem = next(problems(1, crossing=False))
    pooled: Any = PooledModel(problem.weights, POOLS, LINKS[:2]).to_dict()
    single: Any = LinkAdditive(problem.weights, LINKS[2]).to_dict()
    words = "a link per kind of decision, identity (weights) and amplifying (kv)"
    assert (link_words(pooled), link_words(single)) == (words, "the coverage link")
