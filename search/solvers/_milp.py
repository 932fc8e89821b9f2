"""The same problem for HiGHS, a branch-and-cut solver: for the few cases where the core search gives up."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from tightfit.search.solvers._quiet import quiet
from tightfit.search.solvers._solution import Solution
from tightfit.search.solvers._table import Table

# Some seconds for 560 decisions of twelve options. A time limit would let a busy machine change the plan.
_NODES = 100
_ERROR = 1e-6  # HiGHS' own feasibility and optimality tolerances, in units of the largest loss


def solve_milp(
    table: Table, limit: int, known: Solution, tolerance: float = 1e-4, nodes: int = _NODES
) -> Solution:
    """Find a plan with one 0/1 variable per option.

    Args:
        table: the problem.
        limit: most bytes of the plan, at least the floor.
        known: a solution; what is better of it, plan or bound, is kept.
        tolerance: relative gap at which to stop.
        nodes: most nodes of the search tree.
    """
    room = limit - table.floor
    above = table.costs - table.costs.min(axis=1, keepdims=True)
    rows, options = np.nonzero(table.real & (above <= room))
    losses, columns = table.losses[rows, options], np.arange(len(rows))
    scale = max(float(np.abs(losses).max()), float(np.finfo(np.float64).tiny))
    choose_one = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(table.counts), len(rows)))
    # Bytes in units of the room: HiGHS is exact to some 1e-6, so the plan is counted again below.
    within = csr_array(above[rows, options][None] / max(room, 1))
    with quiet():
        answer = milp(
            losses / scale,
            constraints=[
                LinearConstraint(choose_one, 1, 1),
                LinearConstraint(within, -np.inf, 1 if room else 0),
            ],
            integrality=np.ones(len(rows)),
            bounds=Bounds(0, 1),
            options={"mip_rel_gap": tolerance / 2, "node_limit": nodes},
        )
    bound = -np.inf if answer.mip_dual_bound is None else (answer.mip_dual_bound - _ERROR) * scale
    bound = max(bound, known.bound)
    if answer.x is not None:
        chosen = np.full(table.costs.shape, -1.0)
        chosen[rows, options] = answer.x
        levels = chosen.argmax(axis=1)
        if table.cost(levels) <= limit and table.loss(levels) < known.loss:
            return Solution.of(table, levels, bound)
    return Solution.of(table, np.array(known.levels), bound)
