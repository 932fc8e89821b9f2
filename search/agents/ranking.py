"""Which of many possible plans to measure next, by predicted loss and by how unlike they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightfit.search.agents.base import History, Levels, Task

Floats = NDArray[np.float64]

_DIVERSE = 4  # every fourth place is for diversity
_NEAREST = 200  # measured plans to be unlike to


@dataclass(frozen=True)
class Ranking:
    """Orders plans by predicted loss, or where the front is sought by the area that they would add to it.

    Every fourth place goes to the plan of the better half that differs most, in its nearest case, from
    what was measured or chosen before: predictions are sure of little.

    Attributes:
        task: the problem.
        history: what was measured.
    """

    task: Task
    history: History

    def order(
        self, plans: Sequence[Levels], predicted: Floats, before: Sequence[Levels], most: int
    ) -> list[int]:
        """Return positions of at most this many plans, the first to be measured first.

        Args:
            plans: distinct plans.
            predicted: their losses, shape ``(len(plans),)``.
            before: plans that were chosen already and are not measured yet.
            most: how many are wanted.
        """
        levels = np.array(plans)
        known = [*before, *(t.proposal.levels for t in self.history.measured[:_NEAREST])]
        unlike = np.full(len(plans), np.inf)
        for other in known:
            unlike = np.minimum(unlike, _distances(levels, np.array(other)))
        front = _Front.of(self.task, self.history) if self.task.mode == "front" else None
        sizes = np.array([self.task.space.bytes_of(plan) for plan in plans])
        merit = -predicted if front is None else front.gains(sizes, predicted)
        left = np.full(len(plans), True)
        order: list[int] = []
        while len(order) < min(most, len(plans)):
            candidates = np.flatnonzero(left)
            best = candidates[np.argsort(-merit[candidates], kind="stable")]
            pick = int(best[0])
            if len(order) % _DIVERSE == _DIVERSE - 1:
                better = best[: (len(best) + 1) // 2]
                pick = int(better[np.argmax(unlike[better])])
            order.append(pick)
            left[pick] = False
            unlike = np.minimum(unlike, _distances(levels, levels[pick]))
            if front is not None:
                front = front.with_point(int(sizes[pick]), float(predicted[pick]))
                merit = front.gains(sizes, predicted)
        return order


@dataclass(frozen=True, eq=False)
class _Front:
    """The staircase of least losses over bytes, with the logarithm of the loss.

    In logarithms an improvement by a tenth counts alike at every size; in nats only the smallest plans
    would count.

    Attributes:
        sizes, losses: bytes and log losses of known plans, the smallest first.
        end: bytes up to which area counts.
        least: losses are cut off below, so that they have a logarithm.
        top: log loss above which no area counts.
    """

    sizes: NDArray[np.int64]
    losses: Floats
    end: int
    least: float
    top: float

    @classmethod
    def of(cls, task: Task, history: History) -> _Front:
        points = [(t.proposal.bytes, t.loss) for t in history.measured if t.loss is not None]
        worst = max([loss for _, loss in points], default=1.0)
        largest = worst if worst > 0 else 1.0
        least = 1e-6 * largest
        top = float(np.log(2 * largest))
        empty = cls(np.zeros(0, dtype=np.int64), np.zeros(0), task.limit + 1, least, top)
        for size, loss in points:
            empty = empty.with_point(size, loss)
        return empty

    def with_point(self, size: int, loss: float) -> _Front:
        """The front with another plan."""
        at = int(np.searchsorted(self.sizes, size))
        sizes = np.insert(self.sizes, at, size)
        losses = np.insert(self.losses, at, np.log(max(loss, self.least)))
        return _Front(sizes, np.minimum.accumulate(losses), self.end, self.least, self.top)

    def gains(self, sizes: NDArray[np.int64], losses: Floats) -> Floats:
        """Area that each of some plans alone would add, shape ``(len(sizes),)``."""
        starts = np.concatenate([[0], self.sizes])
        ends = np.concatenate([self.sizes, [self.end]])
        heights = np.minimum(np.concatenate([[self.top], self.losses]), self.top)
        wide = np.maximum(ends - np.maximum(starts, sizes[:, None]), 0)
        high = np.maximum(heights - np.log(np.maximum(losses, self.least))[:, None], 0.0)
        return np.asarray((wide * high).sum(axis=1), dtype=np.float64)


def _distances(levels: NDArray[np.int64], other: NDArray[np.int64]) -> Floats:
    """Numbers of decisions in which plans differ from another."""
    return np.asarray((levels != other).sum(axis=1), dtype=np.float64)
