"""The budget projection: every agent's plans are brought within the budget in the same way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tightfit.search.agents.base import Levels, Task
from tightfit.spaces import InfeasibleError


def project(task: Task, levels: Sequence[int], limit: int | None = None) -> Levels:
    """Return the plan itself where it fits, otherwise one that does and is close to it.

    Single options are exchanged for smaller ones, whichever loses least per byte saved under the most
    trusted loss table, until the plan fits.

    Args:
        task: the problem.
        levels: any plan of its space.
        limit: most weight bytes; the task's own unless given.

    Raises:
        InfeasibleError: the limit is below the floor of the space.
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
    return swaps.levels


def fill(task: Task, levels: Sequence[int], limit: int | None = None) -> Levels:
    """Spend the bytes that a plan leaves, on whatever gains most per byte while anything gains and fits.

    Args:
        task: the problem.
        levels: a plan within the limit.
        limit: most weight bytes; the task's own unless given.
    """
    bound = task.limit if limit is None else min(limit, task.limit)
    swaps = _Swaps(task, levels)
    left = bound - task.space.bytes_of(levels)
    while True:
        extra, change = swaps.extra, swaps.change
        useful = (change < 0) & (extra <= left)
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

    def make(self, swap: int) -> int:
        """Make an exchange and return the bytes that it adds."""
        decision = self._decision[swap]
        extra = int(self._costs[swap] - self._costs[self._at[decision]])
        self._at[decision] = swap
        return extra
