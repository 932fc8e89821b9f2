"""The knapsack with side constraints: fewest losses within a byte limit *and*, say, a time per token.

A price on every side turns it into a knapsack with bytes alone (Lagrangian relaxation: Fisher, *The
Lagrangian relaxation method for solving integer programming problems*, Management Science 1981). The
prices are those of the linear relaxation. Plans are then ranked by loss + price by the core search; the
ones that keep the sides are candidates, and a plan that was not ranked loses at least the last rank's
priced loss less what the sides' whole room is worth. Ranking on closes the gap, as the next best plans
are near and many (Handler and Zang, *A dual algorithm for the constrained shortest path problem*,
Networks 1980). What stays open is left to HiGHS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tightfit.proxies.coupling import Coupling
from tightfit.search.sides import Side, keeps_all
from tightfit.search.solvers._core import search_core
from tightfit.search.solvers._coupled import Coupled
from tightfit.search.solvers._program import Program
from tightfit.search.solvers._relaxation import Relaxation
from tightfit.search.solvers._solution import Solution, scale_of
from tightfit.search.solvers._table import Floats, Ints, Ragged, Table, check_sides
from tightfit.spaces import InfeasibleError

_RANKED = (32, 64, 256)  # plans that are ranked, more where fewer leave a gap
_MANY = 2048  # that are ranked where too few keep the sides
_MORE = 4  # ranked plans for each one asked for
_RUNNERS_UP = 10.0  # times the tolerance of the best plan


def solve_sided(table: Table, limit: int, sides: Sequence[Side], tolerance: float) -> Solution:
    """Find the plan of least loss that keeps all sides.

    Args:
        table: costs and losses.
        limit: most bytes of the plan, reachable.
        sides: further bounds.
        tolerance: relative gap that ends the search early.

    Raises:
        InputError: a side is about other decisions than the table.
        InfeasibleError: no plan within the limit keeps all sides; names the nearest one's totals.
    """
    return k_best_sided(table, limit, sides, 1, tolerance)[0]


def k_best_sided(table: Table, limit: int, sides: Sequence[Side], k: int, tolerance: float) -> list[Solution]:
    """Find the best plans that keep all sides; see :func:`solve_sided`. Fewer where fewer were found."""
    check_sides(table, sides)
    program = Program(table, limit, sides)
    prices = program.prices()
    if prices is None:
        _refuse(table, limit, sides)
        prices = np.zeros(len(sides))
    for count in (*_RANKED, _MANY):
        plans, missed = _ranked(table, limit, sides, prices, max(count, _MORE * k))
        near = _settled(table, plans, missed, 1, tolerance)
        if near and _settled(table, plans, missed, k, _RUNNERS_UP * tolerance):
            break
        if count == _RANKED[-1] and len(plans) >= k:
            break
    if not _settled(table, plans, missed, 1, tolerance):
        best, bound = program.best(tolerance)
        if best is not None and all((best != plan).any() for plan in plans):
            plans = sorted([*plans, best], key=table.loss)
        missed = max(missed, bound)
    if not plans:
        plans = [_refuse(table, limit, sides)]
    return [Solution.of(table, plan, missed) for plan in plans[:k]]


def least_violating(
    costs: Ragged, losses: Ragged, limit: int, sides: Sequence[Side], couplings: Sequence[Coupling] = ()
) -> Solution:
    """Find the plan within the byte limit whose largest relative excess over a side is least.

    Of plans that come as near, the one of least loss. Where the sides can be kept, it keeps them with
    the most to spare, so it also is the fastest plan of a limit. Its gap is that of the loss.

    Args:
        costs: per decision the bytes of its options.
        losses: per decision the losses of its options.
        limit: most bytes of the plan.
        sides: at least one.
        couplings: decisions that interact (see :mod:`_coupled <tightfit.search.solvers._coupled>`).

    Raises:
        InputError: see :meth:`Table.of`; or a side or a coupling is about other decisions.
        InfeasibleError: the limit is below the floor.
    """
    problem = Coupled.of(costs, losses, couplings, sides)
    table, sides = Table.of(problem.costs, problem.losses), problem.sides
    limit = table.reachable(limit)
    check_sides(table, sides)
    nearest = _closest(table, limit, sides)
    worst = max(side.excess(nearest.tolist()) for side in sides)
    reached = [replace(side, limit=side.limit + worst * abs(side.limit)) for side in sides]
    return problem.solution(solve_sided(table, limit, reached, 1e-4))


def _ranked(
    table: Table, limit: int, sides: Sequence[Side], prices: Floats, count: int
) -> tuple[list[Ints], float]:
    """Rank plans by priced loss; return those that keep the sides, and a bound on all other plans."""
    priced = [row[:size].copy() for row, size in zip(table.losses, table.counts, strict=True)]
    for side, price in zip(sides, prices, strict=True):
        priced = [row + price * values for row, values in zip(priced, side.values, strict=True)]
    costs = [row[:size] for row, size in zip(table.costs, table.counts, strict=True)]
    whole = Table.of(costs, priced)
    found = search_core(Relaxation.of(whole), limit, count)
    last = whole.loss(found.plans[-1]) if len(found.plans) == count else np.inf
    room = sum(price * (side.limit - side.fixed) for side, price in zip(sides, prices, strict=True))
    kept = [plan for plan in found.plans if keeps_all(sides, plan.tolist())]
    return sorted(kept, key=table.loss), float(min(last, found.missed) - room)


def _settled(table: Table, plans: list[Ints], missed: float, k: int, tolerance: float) -> bool:
    """Whether the k best plans are known as exactly as was asked for, or all plans are."""
    if len(plans) < k:
        return missed == np.inf
    worst = table.loss(plans[k - 1])
    return worst - missed <= tolerance * float(scale_of(table, worst))


def _closest(table: Table, limit: int, sides: Sequence[Side]) -> Ints:
    """Return the plan of least largest excess. With one side that is a knapsack of its own."""
    if len(sides) > 1:
        found = Program(table, limit, sides).nearest()
        if found is not None:
            return found
    costs = [row[:size] for row, size in zip(table.costs, table.counts, strict=True)]
    each = []
    for side in sides:
        own = Table.of(costs, side.values)
        relaxation = Relaxation.of(own)
        each += search_core(relaxation, limit, 1).plans
    return min(each, key=lambda plan: max(side.excess(plan.tolist()) for side in sides))


def _refuse(table: Table, limit: int, sides: Sequence[Side]) -> Ints:
    """Return the nearest plan if it keeps all sides.

    Raises:
        InfeasibleError: it does not; says what was asked for and what can be reached.
    """
    nearest = _closest(table, limit, sides)
    if keeps_all(sides, nearest.tolist()):
        return nearest
    asked = " and ".join(f"{side.name} ({side.asked()})" for side in sides)
    reached = " and ".join(side.text(side.total(nearest.tolist())) for side in sides)
    raise InfeasibleError(
        f"no plan whose decisions take at most {limit} bytes keeps {asked}: the nearest one reaches "
        f"{reached}; ask for less, allow more bytes, or offer other formats."
    )
