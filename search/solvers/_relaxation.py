"""The linear relaxation of the knapsack: what it would cost if decisions could be split.

Relaxed, a decision may mix its options, so only the lower convex hull of its (bytes, loss) points
matters, and the best plans of all limits are found by walking down the hulls' steps in order of loss
saved per byte (Sinha and Zoltners, *The multiple-choice knapsack problem*, Operations Research 1979).
The price of a byte at a limit is the Lagrange multiplier of the budget there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightfit.search.solvers._table import Bools, Floats, Ints, Table


@dataclass(frozen=True, eq=False)
class Curve:
    """Least relaxed loss against bytes: convex, falling, flat after its last vertex.

    Attributes:
        costs: bytes of the vertices, rising, shape ``(K,)``; the first is the floor.
        losses: their losses, falling, shape ``(K,)``.
    """

    costs: Ints
    losses: Floats

    def __call__(self, limits: ArrayLike) -> Floats:
        """Return a lower bound on the loss within each limit; infinite below the floor."""
        bounds: Floats = np.interp(np.asarray(limits), self.costs, self.losses, left=np.inf)
        return bounds


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The steps of all decisions' convex hulls, the most loss saved per byte first.

    Attributes:
        table: the problem.
        start: the cheapest option of every decision (of equally cheap ones the best), shape ``(D,)``.
        decisions: the decision that each step belongs to, shape ``(S,)``.
        options: the option that each step leads to.
        prices: loss saved per byte, falling.
        added: bytes added by each step.
        saved: loss saved by each step.
    """

    table: Table
    start: Ints
    decisions: Ints
    options: Ints
    prices: Floats
    added: Ints
    saved: Floats

    @classmethod
    def of(cls, table: Table) -> Relaxation:
        """Find the hulls of all decisions side by side, one vertex of each at a time."""
        at = np.lexsort((table.losses, table.costs), axis=1)[:, 0]
        start, price = at.copy(), np.full(len(at), np.inf)
        steps: list[tuple[NDArray[Any], ...]] = []
        while True:
            added, saved = changes(table, at)
            useful = (added > 0) & (saved > 0)
            rates = np.where(useful, saved / np.where(useful, added, 1), 0.0)
            best = rates.max(axis=1)
            (moving,) = np.nonzero(best > 0)
            # Of options on one edge of the hull the farthest is its end: the others are never needed.
            to = np.where(rates == best[:, None], added, -1).argmax(axis=1)
            # Rounding must not make a later step of a decision look better than an earlier one.
            price = np.minimum(price, best)
            to = to[moving]
            steps.append((moving, to, price[moving], added[moving, to], saved[moving, to]))
            if not len(moving):
                break
            at[moving] = to
        columns = [np.concatenate(column) for column in zip(*steps, strict=True)]
        order = np.argsort(-columns[2], kind="stable")
        return cls(table, start, *(column[order] for column in columns))

    @cached_property
    def curve(self) -> Curve:
        """The relaxed loss of the whole problem."""
        return self.curve_of(np.ones(len(self.start), dtype=np.bool_))

    def curve_of(self, decisions: Bools) -> Curve:
        """Return the relaxed loss of some decisions alone.

        Args:
            decisions: which ones, shape ``(D,)``.
        """
        rows = self.table.rows[decisions]
        first = (
            self.table.costs[rows, self.start[rows]].sum(),
            self.table.losses[rows, self.start[rows]].sum(),
        )
        steps = decisions[self.decisions]
        return Curve(
            first[0] + np.concatenate([[0], self.added[steps].cumsum()]),
            first[1] - np.concatenate([[0.0], self.saved[steps].cumsum()]),
        )

    def price(self, limit: int) -> float:
        """Loss that one more byte would save at a limit; 0 where more bytes help nothing."""
        step = self._steps_within(limit)
        return float(self.prices[step]) if step < len(self.prices) else 0.0

    def levels(self, limit: int) -> Ints:
        """Return the plan of the last whole step within a limit: optimal for its own bytes."""
        levels = self.start.copy()
        taken = slice(self._steps_within(limit))
        for decision, option in zip(self.decisions[taken], self.options[taken], strict=True):
            levels[decision] = option
        return levels

    def _steps_within(self, limit: int) -> int:
        return int(np.searchsorted(self.curve.costs[1:], limit, side="right"))


def changes(table: Table, levels: Ints) -> tuple[Ints, Floats]:
    """Return bytes added and loss saved by moving each decision to each of its options, ``(D, n)``."""
    added = table.costs - table.costs[table.rows, levels][:, None]
    return added, table.losses[table.rows, levels][:, None] - table.losses
