"""Pools with a link each: least Σ_p g_p(Σ w of pool p) within a limit of bytes.

A link is monotone, so within its share of the bytes a pool's best plan is that of its additive scores. All
limits: a front per pool, its losses through the link, then the min-plus convolution of the fronts (the
allocation recursion of Bellman, *Dynamic Programming*, 1957; Karush, *A general algorithm for the optimal
distribution of effort*, Management Science 1962). That again is a knapsack, with pools as decisions and
points of their fronts as options.

One limit: from the front's plan on, every link is replaced by its tangent. What is left is one additive
knapsack over all decisions, which moves bytes between pools to the last one; of its best few plans the one
of least true loss goes on. For convex links this is the cutting-plane method (Kelley, *The cutting-plane
method for solving convex programs*, 1960), whose last plan is a proven optimum; for concave links every
turn is a descent (majorization by the tangent), and the bound comes from the shares of the fronts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

import numpy as np

from tightfit.proxies.links import Link
from tightfit.proxies.pools import PooledModel, within_pools
from tightfit.search.solvers._front import Front, solve_front
from tightfit.search.solvers._k_best import solve_k_best
from tightfit.search.solvers._solution import Solution, relative_gap
from tightfit.search.solvers._table import Floats, Ints, Ragged, Table

_SHARES = 4096  # buckets of bytes in which bounds tell the pools' shares apart
_FINE = 1 << 17  # the same where two pools share one limit, which takes no convolution
_FLAT = 1e-9  # of the steepest tangent: flatter ones are taken as this steep, so that scores still count
_TINY = float(np.finfo(np.float64).tiny)
_RANKED = 32  # plans of a linearized problem that are looked at
_TURNS = 8
_HALVINGS = 100


@dataclass(frozen=True, eq=False)
class PoolFront:
    """Non-dominated plans for all limits.

    Attributes:
        costs: true bytes, rising, shape ``(P,)``.
        losses: Σ g_p, falling, shape ``(P,)``.
        exact: whether nothing was rounded or left out, so that every point is optimal for its bytes.
    """

    costs: Ints
    losses: Floats
    exact: bool
    _table: Table = field(repr=False)
    _model: PooledModel = field(repr=False)
    _fronts: list[Front] = field(repr=False)
    _kept: list[Ints] = field(repr=False)
    _whole: Front = field(repr=False)

    @cached_property
    def bounds(self) -> Floats:
        """Lower bound on the loss of any plan of at most each point's bytes, shape ``(P,)``."""
        return np.minimum(self.lower(self.costs), self.losses)

    @cached_property
    def gaps(self) -> Floats:
        """How far each point can be from the optimum for its bytes, relative to its loss."""
        return np.asarray(relative_gap(self._table, self.losses, self.bounds), dtype=np.float64)

    def at(self, limit: int) -> int:
        """Return the position of the best point within a limit.

        Raises:
            InfeasibleError: the limit is below the floor.
        """
        return self._whole.at(limit)

    def levels(self, position: int) -> tuple[int, ...]:
        """Return the plan of a point."""
        levels = [0] * len(self._table.counts)
        points = self._whole.levels(position)
        for (_, members), front, kept, point in zip(
            self._model.pools, self._fronts, self._kept, points, strict=True
        ):
            for member, level in zip(members, front.levels(int(kept[point])), strict=True):
                levels[member] = level
        return tuple(levels)

    def lower(self, limits: Ints) -> Floats:
        """Return lower bounds on the loss of any plan within limits not below the floor, same shape.

        A pool that takes a bucket of bytes loses at least what it would at the bucket's end.
        """
        if self.exact:
            return self._whole.lower(limits)
        bounds: Floats = self._least[np.minimum((limits - self.costs[0]) // self._bucket, _SHARES - 1)]
        return bounds

    def lower_at(self, limit: int) -> float:
        """Return the bound of one limit, from finer buckets where there are at most two pools."""
        if self.exact:
            return float(self.lower(np.array([limit]))[0])
        shares = _FINE if len(self._fronts) <= 2 else _SHARES
        *rest, last = self._parts(-(-(limit - int(self.costs[0]) + 1) // shares), shares)
        return float(np.min(reduce(_min_plus, rest)[::-1] + last)) if rest else float(last[-1])

    def range_of(self, pool: int, limit: int) -> tuple[float, float]:
        """Return the least and the largest additive score of a pool in plans within a limit."""
        front, members = self._fronts[pool], list(self._model.pools[pool][1])
        most = limit - self.costs[0] + front.costs[0]
        excess = within_pools(self._model.couplings, self._model.pools)[pool]
        largest = float(self._table.losses[members].max(axis=1).sum())
        largest += sum(max(float(coupling.excess.max()), 0.0) for coupling in excess)
        return float(front.lower(np.array([most]))[0]), largest

    @cached_property
    def _bucket(self) -> int:
        return -(-(sum(int(front.costs[-1] - front.costs[0]) for front in self._fronts) + 1) // _SHARES)

    @cached_property
    def _least(self) -> Floats:
        """Per bucket of bytes above the floor a lower bound on the loss, shape ``(_SHARES,)``."""
        return reduce(_min_plus, self._parts(self._bucket, _SHARES))

    def _parts(self, bucket: int, shares: int) -> list[Floats]:
        """Per pool and bucket of bytes above its floor a lower bound on what the pool loses; falling."""
        ends = bucket * np.arange(1, shares + 1) - 1
        return [
            link(front.lower(front.costs[0] + ends))
            for front, link in zip(self._fronts, self._model.links, strict=True)
        ]


def pool_front(costs: Ragged, model: PooledModel, buckets: int = 65536, points: int = 2048) -> PoolFront:
    """Find plans of a model of pools for all limits.

    Takes time in O(Σ_p points · buckets), beside that of the pools' own fronts, in vector operations.

    Args:
        costs: per decision the bytes of its options.
        model: scores, pools, links and couplings within pools.
        buckets: width of the tables; see :func:`solve_front`.
        points: of a pool's front that are kept, spread evenly where there are more.

    Raises:
        InputError: see :meth:`Table.of`.
    """
    fronts, kept = [], []
    couplings = within_pools(model.couplings, model.pools)
    table = Table.of(costs, model.weights)
    for (_, members), own in zip(model.pools, couplings, strict=True):
        inside = [costs[member] for member in members], [model.weights[member] for member in members]
        fronts.append(solve_front(*inside, buckets, own))
        last = len(fronts[-1].costs) - 1
        kept.append(np.unique(np.linspace(0, last, min(points, last + 1)).round().astype(np.int64)))
    whole = solve_front(
        [front.costs[at] for front, at in zip(fronts, kept, strict=True)],
        [link(front.losses[at]) for front, at, link in zip(fronts, kept, model.links, strict=True)],
        buckets,
    )
    complete = all(
        front.exact and len(at) == len(front.costs) for front, at in zip(fronts, kept, strict=True)
    )
    exact = complete and whole.exact
    return PoolFront(whole.costs, whole.losses, exact, table, model, fronts, kept, whole)


def solve_pools(
    costs: Ragged, model: PooledModel, limit: int, tolerance: float = 1e-4, front: PoolFront | None = None
) -> Solution:
    """Find the plan of least Σ g_p within a limit.

    With links that are convex in the range of good plans (identity, amplifying) the optimum is nearly always
    proven. Otherwise the gap returned is what fronts and tangents prove, some 1e-4 with two pools and 1e-3
    with more; the plan is mostly nearer to the optimum than that.

    Args:
        costs: per decision the bytes of its options.
        model: scores, pools, links and couplings within pools.
        limit: most bytes of the plan.
        tolerance: of the additive problems; see :func:`solve_k_best`.
        front: of the same costs and model, where there is one already: making it takes most of the time.

    Raises:
        InputError: see :meth:`Table.of`.
        InfeasibleError: the limit is below the floor.
    """
    table = Table.of(costs, model.weights)
    limit = table.reachable(limit)
    front = pool_front(costs, model) if front is None else front
    best = np.array(front.levels(front.at(limit)))
    bound = front.lower_at(limit)
    for _ in range(_TURNS):
        loss = float(model.predict(best[None])[0])
        if bound >= loss:
            break
        plans, rest, slopes = _rank_linearized(costs, model, limit, best, tolerance)
        predicted = model.predict(plans)
        better = plans[int(predicted.argmin())] if predicted.min() < loss else best
        reached = float(min(loss, predicted.min()))
        bound = max(bound, rest + _offsets(front, model.links, slopes, limit, reached))
        if better is best:
            break
        best = better
    loss = float(model.predict(best[None])[0])
    bound = min(bound, loss)
    gap = float(relative_gap(table, loss, bound))
    return Solution(tuple(best.tolist()), table.cost(best), loss, bound, gap)


def _rank_linearized(
    costs: Ragged, model: PooledModel, limit: int, levels: Ints, tolerance: float
) -> tuple[Ints, float, list[float]]:
    """Replace links by their tangents at a plan and rank plans.

    Returns:
        The best plans, shape ``(k, D)``; the least sum of slope·score of any other plan; and the slopes.
    """
    at = model.additive_scores(levels[None])[0]
    tangents = [float(link.slope(np.array([s]))[0]) for link, s in zip(model.links, at, strict=True)]
    slopes = [max(slope, _FLAT * max(tangents), _TINY) for slope in tangents]
    of_pool = {member: slope for (_, pool), slope in zip(model.pools, slopes, strict=True) for member in pool}
    scaled = [of_pool[member] * row for member, row in enumerate(model.weights)]
    couplings = [replace(c, excess=of_pool[c.decisions[0]] * c.excess) for c in model.couplings]
    ranked = solve_k_best(costs, scaled, limit, _RANKED, tolerance, couplings=couplings)
    return np.array([solution.levels for solution in ranked]), ranked[-1].bound, slopes


def _offsets(
    front: PoolFront, links: Sequence[Link], slopes: Sequence[float], limit: int, loss: float
) -> float:
    """Return Σ_p c_p with g_p(s) ≥ slope·s + c_p in all plans within a limit that lose less than one."""
    ranges = [front.range_of(pool, limit) for pool in range(len(links))]
    least = [float(link(np.array([low]))[0]) for link, (low, _) in zip(links, ranges, strict=True)]
    total = 0.0
    for link, slope, (low, high), own in zip(links, slopes, ranges, least, strict=True):
        most = loss - (sum(least) - own)
        total += link.offset(slope, low, max(low, _highest(link, most, low, high)))
    return total


def _highest(link: Link, loss: float, low: float, high: float) -> float:
    """Return a score between two beyond which a link is above a loss: bisection, as inverses may be cut."""
    if float(link(np.array([high]))[0]) <= loss:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if float(link(np.array([middle]))[0]) > loss else (middle, high)
    return high


def _min_plus(first: Floats, second: Floats) -> Floats:
    """Return min over i ≤ k of first[i] + second[k − i], for every k: O(n²) in n vector operations."""
    least = np.full(len(first), np.inf)
    for shift, value in enumerate(first.tolist()):
        np.minimum(least[shift:], value + second[: len(first) - shift], out=least[shift:])
    return least
