"""Greedy: marginal gain per byte, then whatever still fits."""

from __future__ import annotations

import numpy as np

from tightfit.search.solvers._relaxation import Relaxation, changes
from tightfit.search.solvers._table import Ints, Ragged, Table


def greedy(costs: Ragged, losses: Ragged, limit: int) -> tuple[int, ...]:
    """Start from the cheapest options and repeatedly take the upgrade that saves most loss per byte.

    Args:
        costs: per decision the bytes of its options.
        losses: per decision the losses of its options.
        limit: most bytes of the plan.

    Returns:
        The position of the chosen option of every decision.

    Raises:
        InputError: see :meth:`Table.of`.
        InfeasibleError: the limit is below the floor.
    """
    table = Table.of(costs, losses)
    limit = table.reachable(limit)
    levels = fill(table, Relaxation.of(table).levels(limit), limit)
    return tuple(int(level) for level in levels)


def fill(table: Table, levels: Ints, limit: int) -> Ints:
    """Take the best change of one decision that fits, until none is left."""
    levels, room = levels.copy(), limit - table.cost(levels)
    while True:
        added, saved = changes(table, levels)
        useful = (added > 0) & (added <= room) & (saved > 0)
        if not useful.any():
            return levels
        rates = np.where(useful, saved / np.where(useful, added, 1), -1.0)
        decision, option = np.unravel_index(rates.argmax(), rates.shape)
        levels[decision] = option
        room -= int(added[decision, option])
