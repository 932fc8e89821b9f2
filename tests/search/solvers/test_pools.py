from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tightfit.proxies import LINKS, Amplifying, Coupling, Coverage, Identity, Isotonic, PooledModel
from tightfit.search.solvers import Front, pool_front, solve, solve_front, solve_pools
from tightfit.spaces import InfeasibleError, InputError

EXAMPLES = (
    Identity(),
    Amplifying(1.2),
    Coverage(2.0),
    Isotonic((0.0, 0.5, 2.0, 3.0), (0.0, 0.3, 2.5, 2.9), 0.5),
)
PAIRS = list(itertools.product(EXAMPLES, repeat=2))


def draw_model(instance: Any, seed: int) -> PooledModel:
    """Two pools, or three now and then, of random decisions; every pair of links comes up."""
    rng = np.random.default_rng([61, seed])
    sizes = [len(row) for row in instance.costs]
    links = PAIRS[seed % len(PAIRS)]
    if rng.random() < 0.3 and len(sizes) > 2:
        links = (*links, EXAMPLES[rng.integers(len(EXAMPLES))])
    order = rng.permutation(len(sizes))
    cuts = np.sort(rng.choice(np.arange(1, len(sizes)), len(links) - 1, replace=False))
    members = [tuple(part.tolist()) for part in np.split(order, cuts)]
    couplings = []
    if len(members[0]) > 1:
        pair = members[0][:2]
        couplings = [Coupling(pair, rng.normal(0, 0.5, (sizes[pair[0]], sizes[pair[1]])))]
    pools = tuple((f"pool {index}", part) for index, part in enumerate(members))
    return PooledModel(tuple(instance.losses), pools, links, tuple(couplings))


def loss_of(model: PooledModel, plan: tuple[int, ...]) -> float:
    """The loss of one plan, counted pool by pool."""
    total = 0.0
    for (_, members), link in zip(model.pools, model.links, strict=True):
        score = sum(float(model.weights[member][plan[member]]) for member in members)
        score += sum(c.value(plan) for c in model.couplings if c.decisions[0] in members)
        total += float(link(np.array([score]))[0])
    return total


def cases(random_small: Callable[[int], Any], count: int) -> Iterator[tuple[Any, PooledModel, Any, Any]]:
    """Small instances with all of their plans' bytes and losses."""
    for seed in range(count):
        instance = random_small(seed)
        if len(instance.costs) > 1:
            model = draw_model(instance, seed)
            costs = np.array([instance.cost(plan) for plan in instance.plans()])
            yield instance, model, costs, np.array([loss_of(model, plan) for plan in instance.plans()])


def test_every_link_is_under_test() -> None:
    assert sorted(LINKS) == sorted(link.name for link in EXAMPLES)


def test_one_limit_equals_brute_force(random_small: Callable[[int], Any]) -> None:
    open_gaps, count = 0, 0
    for instance, model, costs, losses in cases(random_small, 350):
        count += 1
        solution = solve_pools(instance.costs, model, instance.limit)
        optimum = losses[costs <= instance.limit].min()
        assert solution.cost == instance.cost(solution.levels) <= instance.limit
        assert solution.loss == pytest.approx(loss_of(model, solution.levels), abs=1e-9)
        assert solution.loss == pytest.approx(optimum, abs=1e-9)
        assert solution.bound <= optimum + 1e-9
        open_gaps += solution.gap > 1e-9
    assert count > 250
    assert open_gaps < count / 20


def test_front_equals_brute_force_at_every_limit(random_small: Callable[[int], Any]) -> None:
    exact = 0
    for instance, model, costs, losses in cases(random_small, 240):
        front = pool_front(instance.costs, model)
        assert (np.diff(front.costs) > 0).all()
        assert (np.diff(front.losses) < 0).all()
        for position in range(len(front.costs)):
            levels = front.levels(position)
            assert front.costs[position] == instance.cost(levels)
            assert front.losses[position] == pytest.approx(loss_of(model, levels), abs=1e-9)
        limits = np.unique(costs)
        best = np.array([losses[costs <= limit].min() for limit in limits])
        reached = front.losses[[front.at(limit) for limit in limits]]
        assert (reached >= best - 1e-9).all()
        assert (front.lower(limits) <= best + 1e-9).all()
        for at in (0, len(limits) // 2, -1):
            assert front.lower_at(int(limits[at])) <= best[at] + 1e-9
        assert (front.bounds <= front.losses).all()
        assert (front.gaps >= 0).all()
        if front.exact:
            exact += 1
            assert reached == pytest.approx(best, abs=1e-9)
            assert (front.gaps == 0).all()
    assert exact > 100


@pytest.mark.parametrize("points", [2, 5])
def test_coarse_fronts_still_bound_what_they_miss(random_small: Callable[[int], Any], points: int) -> None:
    missed = 0
    for instance, model, costs, losses in cases(random_small, 60):
        front = pool_front(instance.costs, model, buckets=8, points=points)
        limits = np.unique(costs)
        best = np.array([losses[costs <= limit].min() for limit in limits])
        reached = front.losses[[front.at(limit) for limit in limits]]
        missed += int((reached > best + 1e-9).any())
        assert (reached >= best - 1e-9).all()
        assert (front.lower(limits) <= best + 1e-9).all()
        solution = solve_pools(instance.costs, model, instance.limit, front=front)
        optimum = losses[costs <= instance.limit].min()
        assert solution.bound <= optimum + 1e-9 <= solution.loss + 2e-9
    assert missed > 8


def large_model(instance: Any, links: tuple[Any, ...]) -> PooledModel:
    decisions = len(instance.costs)
    parts = np.split(np.arange(decisions), [decisions * 3 // 4])
    pools = tuple((name, tuple(part.tolist())) for name, part in zip("ab", parts, strict=True))
    return PooledModel(tuple(30 * row for row in instance.losses), pools, links)


def test_identity_links_are_the_plain_knapsack(random_large: Callable[..., Any]) -> None:
    instance = random_large(60, 6)
    model = large_model(instance, (Identity(), Identity()))
    plain = solve(instance.costs, model.weights, instance.limit)
    pooled = solve_pools(instance.costs, model, instance.limit)
    assert pooled.loss == pytest.approx(plain.loss, rel=1e-12)
    assert pooled.gap == 0


@pytest.mark.parametrize("links", PAIRS, ids=lambda pair: "-".join(link.name for link in pair))
def test_large_problems_beat_every_split_of_the_bytes(
    random_large: Callable[..., Any], links: tuple[Any, Any]
) -> None:
    instance = random_large(48, 5)
    model = large_model(instance, links)
    solution = solve_pools(instance.costs, model, instance.limit)
    assert solution.loss == pytest.approx(loss_of(model, solution.levels), rel=1e-12)
    convex = all(isinstance(link, Identity | Amplifying) for link in links)
    assert solution.gap <= (1e-9 if convex else 0.02)
    fronts = [split_front(instance, model, pool) for pool in range(2)]
    rest = instance.limit - fronts[0].costs
    fits = rest >= fronts[1].costs[0]
    at = np.searchsorted(fronts[1].costs, rest[fits], side="right") - 1
    split = links[0](fronts[0].losses[fits]) + links[1](fronts[1].losses[at])
    assert solution.loss <= split.min() + 1e-12
    assert solution.bound <= split.min() + 1e-12


def split_front(instance: Any, model: PooledModel, pool: int) -> Front:
    members = model.pools[pool][1]
    costs, losses = ([rows[member] for member in members] for rows in (instance.costs, model.weights))
    return solve_front(costs, losses, 16384)


def test_scores_that_a_link_flattens_completely_are_no_trouble() -> None:
    costs = [np.array([1, 2, 4])] * 4
    model = PooledModel(
        tuple(np.array([9e3, 4e3, 0.1]) for _ in costs),
        (("a", (0, 1)), ("b", (2, 3))),
        (Coverage(0.5), Amplifying(9.0)),
    )
    for limit in range(4, 17):
        plans = itertools.product(range(3), repeat=4)
        best = min(loss_of(model, plan) for plan in plans if sum(int(costs[0][o]) for o in plan) <= limit)
        assert solve_pools(costs, model, limit).loss == pytest.approx(best)


def test_bad_input() -> None:
    costs, weights = [np.array([3, 4])] * 2, (np.array([1.0, 0.0]),) * 2
    model = PooledModel(weights, (("a", (0,)), ("b", (1,))), (Identity(), Identity()))
    with pytest.raises(InfeasibleError, match="below the floor of 6 bytes"):
        solve_pools(costs, model, 5)
    with pytest.raises(InfeasibleError, match="below the floor of 6 bytes"):
        pool_front(costs, model).at(5)
    with pytest.raises(InputError, match="decision 1 has costs"):
        pool_front([costs[0], np.array([3])], model)
    with pytest.raises(InputError, match="within one pool"):
        PooledModel(weights, model.pools, model.links, (Coupling((0, 1), np.zeros((2, 2))),))
