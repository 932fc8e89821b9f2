"""The input of every solver, checked once and padded to rectangles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.search.sides import Side
from tightfit.spaces import InfeasibleError, InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ragged = Sequence[NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Table:
    """Costs and losses of D decisions with up to n options each.

    Shorter rows are padded by repeating their first option: an option offered twice changes no
    optimum, so most code need not look at ``counts``.

    Attributes:
        costs: bytes, shape ``(D, n)``.
        losses: additive losses, shape ``(D, n)``.
        counts: number of true options of each decision, shape ``(D,)``.
    """

    costs: Ints
    losses: Floats
    counts: Ints

    @classmethod
    def of(cls, costs: Ragged, losses: Ragged) -> Table:
        """Check and pad.

        Args:
            costs: per decision the bytes of its options.
            losses: per decision the losses of its options.

        Raises:
            InputError: no decisions, lengths that differ, a decision without options, costs that are
                no whole numbers, or losses that are not finite.
        """
        if not len(costs) or len(costs) != len(losses):
            raise InputError(f"{len(costs)} decisions have costs and {len(losses)} have losses.")
        for index, (cost, loss) in enumerate(zip(costs, losses, strict=True)):
            _check_decision(index, np.asarray(cost), np.asarray(loss))
        counts = np.array([len(row) for row in costs])
        source = np.arange(counts.max()) * (np.arange(counts.max()) < counts[:, None])
        return cls(
            np.stack([np.asarray(row, dtype=np.int64)[at] for row, at in zip(costs, source, strict=True)]),
            np.stack([np.asarray(row, dtype=np.float64)[at] for row, at in zip(losses, source, strict=True)]),
            counts,
        )

    @cached_property
    def rows(self) -> Ints:
        """The positions 0…D−1, to index one option per decision."""
        return np.arange(len(self.counts))

    @cached_property
    def real(self) -> Bools:
        """Which entries are options rather than padding, shape ``(D, n)``."""
        return np.arange(self.costs.shape[1]) < self.counts[:, None]

    @cached_property
    def floor(self) -> int:
        """Fewest bytes of any plan."""
        return int(self.costs.min(axis=1).sum())

    @cached_property
    def rounding(self) -> float:
        """Differences between sums of losses below this are rounding errors, not differences."""
        return float(64 * np.finfo(np.float64).eps * np.abs(self.losses).max(axis=1).sum())

    def cost(self, levels: Ints) -> int:
        """Bytes of a plan."""
        return int(self.costs[self.rows, levels].sum())

    def loss(self, levels: Ints) -> float:
        """Loss of a plan."""
        return float(self.losses[self.rows, levels].sum())

    def reachable(self, limit: int) -> int:
        """Lower a limit to the nearest total that the common unit of all costs allows.

        Raises:
            InfeasibleError: the limit is below the floor.
        """
        if limit < self.floor:
            raise InfeasibleError(
                f"a limit of {limit} bytes is below the floor of {self.floor} bytes, "
                "where every decision takes its cheapest option."
            )
        unit = int(np.gcd.reduce(self.costs - self.costs.min(axis=1, keepdims=True), axis=None))
        return self.floor + (int(limit) - self.floor) // max(unit, 1) * max(unit, 1)


def check_sides(table: Table, sides: Sequence[Side]) -> None:
    """Check that sides are about the decisions of a table.

    Raises:
        InputError: one is not.
    """
    for side in sides:
        if [len(row) for row in side.values] != table.counts.tolist():
            raise InputError(f"{side.name}: its values are about other decisions or options than the losses.")


def _check_decision(index: int, cost: NDArray[Any], loss: NDArray[Any]) -> None:
    if cost.shape != loss.shape or cost.ndim != 1 or not len(cost):
        raise InputError(
            f"decision {index} has costs of shape {cost.shape} and losses of shape {loss.shape}; "
            "both must be lists of equal length with at least one option."
        )
    if not np.issubdtype(cost.dtype, np.integer):
        raise InputError(f"decision {index} has costs of type {cost.dtype}; bytes must be whole numbers.")
    if not np.isfinite(loss).all():
        raise InputError(f"decision {index} has losses {loss.tolist()}; every loss must be finite.")
