"""The same problem for HiGHS, a branch-and-cut solver: for the few cases where the core search gives up."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from tightfit.search.solvers._solution import Solution
from tightfit.search.solvers._table import Ints, Table

_ERROR = 1e-6  # HiGHS' own feasibility and optimality tolerances, in units of the largest loss


def solve_milp(
    table: Table, limit: int, tolerance: float, known: Solution | None = None, seconds: float = 10.0
) -> Solution:
    """Find a plan with one 0/1 variable per option.

    Args:
        table: the problem.
        limit: most bytes of the plan, at least the floor.
        tolerance: relative gap at which to stop.
        known: a solution to start from; its bound and its plan are kept where they are better.
        seconds: time limit.
    """
    rows, options = np.nonzero(table.real)
    room = limit - table.floor
    added = (table.costs - table.costs.min(axis=1, keepdims=True))[rows, options]
    losses = table.losses[rows, options]
    scale = max(float(np.abs(losses).max()), float(np.finfo(np.float64).tiny))
    columns = np.arange(len(rows))
    choose_one = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(table.counts), len(rows)))
    # Bytes in units of the room: HiGHS is exact to some 1e-6, so the plan is counted again below.
    within = LinearConstraint(csr_array(added[None] / max(room, 1)), -np.inf, room / max(room, 1))
    answer = milp(
        losses / scale,
        constraints=[LinearConstraint(choose_one, 1, 1), within],
        integrality=np.ones(len(rows)),
        bounds=Bounds(0, added <= room),
        options={"mip_rel_gap": tolerance / 2, "time_limit": seconds},
    )
    bound = -np.inf if answer.mip_dual_bound is None else (answer.mip_dual_bound - _ERROR) * scale
    levels = _levels(table, answer.x, options)
    ...
