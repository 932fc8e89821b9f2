"""Bounds on weights alone and on KV caches alone, as sides of a knapsack over both."""

from __future__ import annotations

import numpy as np

from tightfit.search.sides import Side
from tightfit.spaces import Budget, Space


def memory_sides(budget: Budget, space: Space) -> tuple[Side, ...]:
    """Return the bounds on one part of a plan's bytes; none where a plan has only one part.

    The smallest options keep all of them at once if they keep each, which :meth:`Budget.check` makes sure of.
    """
    return tuple(
        Side(
            part.name,
            tuple(
                np.array(decision.costs, dtype=np.float64) * (decision.is_kv == part.kv)
                for decision in space.decisions
            ),
            float(part.limit),
            unit="B",
        )
        for part in budget.parts(space)
    )
