"""What a solver answers: a plan, and how far from the optimum it can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tightfit.search.solvers._table import Floats, Ints, Table

_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Solution:
    """A plan within the limit, and a proven lower bound.

    Attributes:
        levels: position of the chosen option of every decision.
        cost: bytes of the plan.
        loss: loss of the plan.
        bound: no plan within the limit has a loss below this, up to rounding errors of the sums.
        gap: (loss − bound) / |loss|, 0 where the plan is proven optimal. Where losses of both signs
            cancel, |loss| counts as no less than the rounding error of the sum, so that the gap of a
            loss near zero stays finite.
    """

    levels: tuple[int, ...]
    cost: int
    loss: float
    bound: float
    gap: float

    @classmethod
    def of(cls, table: Table, levels: Ints, bound: float) -> Solution:
        """Describe the plan with these levels; a bound above its loss proves it optimal."""
        loss = table.loss(levels)
        bound = min(loss, bound)
        gap = float(relative_gap(table, loss, bound))
        return cls(tuple(int(level) for level in levels), table.cost(levels), loss, bound, gap)


def scale_of(table: Table, loss: float | Floats) -> Any:
    """Return what gaps of plans with these losses are relative to."""
    return np.maximum(np.abs(loss), max(table.rounding, _TINY))


def relative_gap(table: Table, loss: float | Floats, bound: float | Floats) -> Any:
    """Return (loss − bound) relative to the loss, elementwise (see :class:`Solution`)."""
    return (loss - bound) / scale_of(table, loss)
