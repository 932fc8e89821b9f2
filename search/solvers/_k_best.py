"""One limit: the best few plans."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.proxies.coupling import Coupling
from tightfit.search.sides import Side
from tightfit.search.solvers._core import search_core
from tightfit.search.solvers._coupled import Coupled
from tightfit.search.solvers._relaxation import Relaxation
from tightfit.search.solvers._sided import k_best_sided
from tightfit.search.solvers._solution import Solution, scale_of
from tightfit.search.solvers._table import Ragged, Table
from tightfit.spaces import InputError


def solve_k_best(
    costs: Ragged,
    losses: Ragged,
    limit: int,
    k: int,
    tolerance: float = 1e-4,
    sides: Sequence[Side] = (),
    couplings: Sequence[Coupling] = (),
) -> list[Solution]:
    """Find the k best distinct plans within a limit, dominated options included.

    Like :func:`solve`, exact and proven except where too many plans are too close to one another. The
    j-th solution's ``bound`` is one on the loss of the j-th best plan: where its gap is 0, exactly
    these are the j best. A plan among plans of equal loss may stand for another.

    Args:
        costs: per decision the bytes of its options.
        losses: per decision the losses of its options, of any sign.
        limit: most bytes of a plan.
        k: number of plans.
        tolerance: relative gap of the last plan that ends the search early where it would take long.
        sides: further bounds on a plan. Where there are any, runners-up may be ten tolerances off, and fewer
            than all plans may be found.
        couplings: decisions that interact (see :mod:`_coupled <tightfit.search.solvers._coupled>`).

    Returns:
        At most k solutions, best first; fewer where fewer plans fit.

    Raises:
        InputError: see :meth:`Table.of`; k is not positive; or a side or a coupling is about other decisions.
        InfeasibleError: the limit is below the floor, or no plan within it keeps every side.
    """
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}.")
    problem = Coupled.of(costs, losses, couplings, sides, best=k)
    table = Table.of(problem.costs, problem.losses)
    limit = table.reachable(limit)
    if sides:
        ranked = k_best_sided(table, limit, problem.sides, k, tolerance)
        return [problem.solution(solution) for solution in ranked]
    relaxation = Relaxation.of(table)
    scale = float(scale_of(table, float(relaxation.curve(limit))))
    found = search_core(relaxation, limit, k, accept=tolerance * scale)
    return [problem.solution(Solution.of(table, levels, found.missed)) for levels in found.plans]
