"""One limit: the best plan with a proven bound."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.proxies.coupling import Coupling
from tightfit.search.sides import Side
from tightfit.search.solvers._core import search_core
from tightfit.search.solvers._coupled import Coupled
from tightfit.search.solvers._greedy import fill
from tightfit.search.solvers._milp import solve_milp
from tightfit.search.solvers._relaxation import Relaxation
from tightfit.search.solvers._sided import solve_sided
from tightfit.search.solvers._solution import Solution, scale_of
from tightfit.search.solvers._table import Ragged, Table


def solve(
    costs: Ragged,
    losses: Ragged,
    limit: int,
    tolerance: float = 1e-4,
    sides: Sequence[Side] = (),
    couplings: Sequence[Coupling] = (),
) -> Solution:
    """Find the plan of least loss within a limit, and within further bounds where there are any.

    The optimum is sought and nearly always proven (gap 0). Where too many plans are too close to one
    another (sizes of very different orders, losses proportional to bytes), a gap up to ``tolerance``
    is accepted; where the core search leaves a larger one, HiGHS takes over for a bounded number of
    nodes. The gap returned is the one proven, which may still be above ``tolerance``.

    Args:
        costs: per decision the bytes of its options.
        losses: per decision the losses of its options, of any sign.
        limit: most bytes of the plan.
        tolerance: relative gap that ends the search early.
        sides: further bounds on the plan (see :mod:`_sided <tightfit.search.solvers._sided>`).
        couplings: decisions that interact (see :mod:`_coupled <tightfit.search.solvers._coupled>`).

    Raises:
        InputError: see :meth:`Table.of`; or a side or a coupling is about other decisions.
        InfeasibleError: the limit is below the floor, or no plan within it keeps every side.
    """
    problem = Coupled.of(costs, losses, couplings, sides)
    table = Table.of(problem.costs, problem.losses)
    limit = table.reachable(limit)
    if sides:
        return problem.solution(solve_sided(table, limit, problem.sides, tolerance))
    relaxation = Relaxation.of(table)
    best = fill(table, relaxation.levels(limit), limit)
    ceiling = table.loss(best)
    found = search_core(relaxation, limit, 1, ceiling, tolerance * float(scale_of(table, ceiling)))
    solution = Solution.of(table, found.plans[0] if found.plans else best, found.missed)
    if solution.gap > tolerance:
        solution = solve_milp(table, limit, solution, tolerance)
    return problem.solution(solution)
