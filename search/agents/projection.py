"""The budget projection: every agent's plans are brought within the budget in the same way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tightfit.search.agents.base import Levels, Task
from tightfit.search.solvers import keeps_all, solve
from tightfit.spaces import InfeasibleError

# Exchanges per decision before a repair is given up, and the part of the excess that each must take away.
_STEPS, _PART = 2, 1e-9


def project(task: Task, levels: Sequence[int], limit: int | None = None) -> Levels:
    """Return the plan itself where it fits, otherwise one that does and is close to it.

    Single options are exchanged for smaller ones, whichever loses least per byte saved under the most
    trusted loss table, until the plan fits. Then, where it breaks side constraints, options are exchanged
    for others that lower the excess and still fit, whichever loses least per part of it. Where such single
    steps lead nowhere, the plan is taken that keeps everything and differs in the fewest decisions.

    Args:
        task: the problem.
        levels: any plan of its space.
        limit: most bytes; the task's own unless given.

    Raises:
        InfeasibleError: the limit is below the floor of the space, or no plan within it keeps every side.
    """
    bound = task.limit if limit is None else min(limit, task.limit)
    if bound < task.space.floor:
        raise InfeasibleError(f"{bound} B are below the floor of the space, {task.space.floor} B.")
    swaps = _Swaps(task, levels)
    over = task.space.bytes_of(levels) - bound
    while over > 0:
        extra, change = swaps.extra, swaps.change
        smaller = extra < 0
        price = np.where(smaller, change / np.where(smaller, -extra, 1), np.inf)
        # Saving more than is needed is worth no more than what is needed.
        enough = smaller & (-extra >= over)
        price = np.where(enough, change / over, price)
        over += swaps.make(int(np.argmin(price)))
    if task.sides and not _repair(swaps, -over):
        return _nearest(task, levels, bound)
    return swaps.levels


def _repair(swaps: _Swaps, left: int) -> bool:
    """Exchange options until every side is kept, with so many bytes to spare; whether that succeeded."""
    for _ in range(_STEPS * swaps.decisions):
        if swaps.kept:
            return True
        total = swaps.excess.clip(0).sum()
        lowered = total - (swaps.excess[:, None] + swaps.shift).clip(0).sum(axis=0)
        useful = (swaps.extra <= left) & (lowered > _PART * total)
        if not useful.any():
            return False
        change = swaps.change
        # What gains anyway comes first, the largest gain before all others.
        price = np.where(change > 0, change / np.where(useful, lowered, 1.0), change)
        left -= swaps.make(int(np.argmin(np.where(useful, price, np.inf))))
    return swaps.kept


def _nearest(task: Task, levels: Sequence[int], bound: int) -> Levels:
    """Return the plan that keeps everything and changes the fewest decisions, and of these the best."""
    dear = 1.0 + sum(float(np.abs(row).max()) for row in task.trusted)
    priced = [
        row + dear * (np.arange(len(row)) != level) for row, level in zip(task.trusted, levels, strict=True)
    ]
    return solve(task.costs, priced, bound - task.space.fixed_bytes, task.tolerance, task.sides).levels


def fill(task: Task, levels: Sequence[int], limit: int | None = None) -> Levels:
    """Spend the bytes that a plan leaves, on whatever gains most per byte while anything gains and fits.

    Args:
        task: the problem.
        levels: a plan within the limit that keeps every side.
        limit: most bytes; the task's own unless given.
    """
    bound = task.limit if limit is None else min(limit, task.limit)
    swaps = _Swaps(task, levels)
    left = bound - task.space.bytes_of(levels)
    while True:
        extra, change = swaps.extra, swaps.change
        useful = (change < 0) & (extra <= left)
        if task.sides:
            useful &= ((swaps.excess[:, None] + swaps.shift <= 0) | (swaps.shift <= 0)).all(axis=0)
        if not useful.any():
            return swaps.levels
        # What gains and saves bytes at once comes first; otherwise the gain per byte counts.
        worth = np.where(extra > 0, change / np.maximum(extra, 1), -np.inf)
        left -= swaps.make(int(np.argmin(np.where(useful, worth, np.inf))))


class _Swaps:
    """All exchanges of one option for another, as flat arrays that follow the plan as it changes."""

    def __init__(self, task: Task, levels: Sequence[int]) -> None:
        sizes = [len(row) for row in task.costs]
        self._start = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self._decision = np.repeat(np.arange(len(sizes)), sizes)
        self._costs = np.concatenate(task.costs)
        self._losses = np.concatenate([np.asarray(row, dtype=np.float64) for row in task.trusted])
        self._at = self._start + np.array(levels, dtype=np.int64)
        self._sides = task.sides
        self.decisions = len(sizes)
        if self._sides:
            scales = [max(abs(side.limit), 1e-300) for side in self._sides]
            rows = [
                np.concatenate(side.values) / scale for side, scale in zip(self._sides, scales, strict=True)
            ]
            self._parts = np.stack(rows)
            self.excess = np.array([side.excess(levels) for side in self._sides])

    @property
    def levels(self) -> Levels:
        return tuple(int(level) for level in self._at - self._start)

    @property
    def extra(self) -> NDArray[np.int64]:
        """Bytes that every exchange adds."""
        return np.asarray(self._costs - self._costs[self._at][self._decision])

    @property
    def change(self) -> NDArray[np.float64]:
        """Loss that every exchange adds."""
        return np.asarray(self._losses - self._losses[self._at][self._decision])

    @property
    def kept(self) -> bool:
        """Whether the plan keeps every side."""
        return bool((self.excess < _PART).all()) and keeps_all(self._sides, self.levels)

    @property
    def shift(self) -> NDArray[np.float64]:
        """What every exchange adds to every excess, shape ``(S, exchanges)``."""
        return np.asarray(self._parts - self._parts[:, self._at][:, self._decision])

    def make(self, swap: int) -> int:
        """Make an exchange and return the bytes that it adds."""
        decision = self._decision[swap]
        if self._sides:
            self.excess = self.excess + self._parts[:, swap] - self._parts[:, self._at[decision]]
        extra = int(self._costs[swap] - self._costs[self._at[decision]])
        self._at[decision] = swap
        return extra
