"""A trust region of the knapsack: the best plans that change few decisions of a given one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightfit.search.agents.base import Levels, Table, Task, Trial
from tightfit.search.solvers import solve, solve_k_best

# Knapsacks solved to find the price that keeps one region.
_HALVINGS = 16


class Region:
    """The knapsack of swaps from one plan, with a price on every decision that changes.

    Args:
        task: the problem.
        scores: what every option would change at the plan, in nats per token.
        origin: the plan, measured.
        limit: most bytes of the plans.
    """

    def __init__(self, task: Task, scores: Table, origin: Trial, limit: int) -> None:
        self._task, self._levels = task, origin.proposal.levels
        self._limit = limit - task.space.fixed_bytes
        self._scores = [_finite(row, level) for row, level in zip(scores, self._levels, strict=True)]
        # The knapsack's total is the predicted loss, which its relative gaps are about.
        self._share = (origin.loss or 0.0) / len(self._levels)
        self._solved: dict[float, Levels] = {}

    def plans(self, radius: int, count: int) -> list[Levels]:
        """Return the best plans of a region, at the price on a swap that keeps the best one within it."""
        priced = self._priced(self._price(radius))
        own, sides = self._task.tolerance, self._task.sides
        best = solve_k_best(self._task.costs, priced, self._limit, count, own, sides)
        return [solution.levels for solution in best if self.swaps(solution.levels) <= radius]

    def _price(self, radius: int) -> float:
        """Bisect for the least price of a swap at which the best plan changes no more decisions."""
        if self.swaps(self._at(0.0)) <= radius:
            return 0.0
        low, high = 0.0, 2 * max(float(np.ptp(row)) for row in self._scores)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2 if low else high / 16
            swaps = self.swaps(self._at(middle))
            low, high = (middle, high) if swaps > radius else (low, middle)
            if swaps == radius:
                break
        return high

    def swaps(self, levels: Levels) -> int:
        """Count the decisions that a plan changes."""
        return sum(a != b for a, b in zip(levels, self._levels, strict=True))

    def gain(self, levels: Levels) -> float:
        """Decrease of the loss that the scores predict for a plan."""
        return -float(sum(row[level] for row, level in zip(self._scores, levels, strict=True)))

    def _at(self, price: float) -> Levels:
        if price not in self._solved:
            task, priced = self._task, self._priced(price)
            best = solve(task.costs, priced, self._limit, task.tolerance, task.sides)
            self._solved[price] = best.levels
        return self._solved[price]

    def _priced(self, price: float) -> list[NDArray[np.float64]]:
        """Predicted losses in equal shares, with a price on leaving the option in place."""
        priced = [row + price + self._share for row in self._scores]
        for row, level in zip(priced, self._levels, strict=True):
            row[level] -= price
        return priced


def _finite(row: NDArray[np.float64], level: int) -> NDArray[np.float64]:
    """Changes against the option in place; what has no finite score is as bad as the worst that has."""
    change = np.asarray(row, dtype=np.float64) - row[level]
    known = change[np.isfinite(change)]
    return np.where(np.isfinite(change), change, max(float(known.max(initial=0.0)), 1.0))
