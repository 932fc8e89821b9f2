"""Bookkeeping of the core search: partial plans, how they came about, and the best whole plans."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field

import numpy as np

from tightfit.search.solvers._table import Bools, Floats, Ints


@dataclass(eq=False)
class States:
    """Partial plans: what the decisions settled so far cost and lose.

    Attributes:
        cost: bytes, rising, shape ``(S,)``.
        loss: summed losses.
        node: the partial plan's node in the :class:`Trace`.
    """

    cost: Ints
    loss: Floats
    node: Ints

    @classmethod
    def root(cls) -> States:
        """Nothing settled yet."""
        return cls(np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.cost)

    def take(self, which: Ints | Bools) -> States:
        """Return some of the states."""
        return States(self.cost[which], self.loss[which], self.node[which])


@dataclass(eq=False)
class Trace:
    """A tree of departures from a base plan; every node is another plan.

    Node 0 is the base plan itself. Nodes are added in blocks, one per decision.
    """

    _firsts: list[int] = field(default_factory=list)
    _blocks: list[tuple[int, Ints, Ints]] = field(default_factory=list)
    _size: int = 1

    def add(self, decision: int, parents: Ints, options: Ints) -> Ints:
        """Add a child that moves one decision to another option to each parent; return the new nodes."""
        self._firsts.append(self._size)
        self._blocks.append((decision, parents, options))
        self._size += len(parents)
        return np.arange(self._firsts[-1], self._size)

    def levels(self, base: Ints, node: int) -> Ints:
        """Return the plan of a node."""
        levels = base.copy()
        while node:
            block = bisect_right(self._firsts, node) - 1
            decision, parents, options = self._blocks[block]
            levels[decision] = options[node - self._firsts[block]]
            node = int(parents[node - self._firsts[block]])
        return levels


@dataclass(eq=False)
class Pool:
    """The best whole plans seen.

    Attributes:
        size: how many are kept.
        ceiling: only plans with a loss below this count.
        entries: (loss, node) pairs, best first.
    """

    size: int
    ceiling: float
    entries: list[tuple[float, int]] = field(default_factory=list)

    @property
    def threshold(self) -> float:
        """A plan must have a loss below this to enter."""
        return self.entries[-1][0] if len(self.entries) == self.size else self.ceiling

    def offer(self, losses: Floats, nodes: Ints) -> None:
        """Let plans enter."""
        for at in np.argsort(losses, kind="stable")[: self.size]:
            if losses[at] >= self.threshold:
                break
            insort(self.entries, (float(losses[at]), int(nodes[at])))
            del self.entries[self.size :]


def undominated(cost: Ints, loss: Floats, depth: int) -> Ints:
    """Return the positions of points that fewer than ``depth`` others dominate in (cost, loss).

    Points are peeled in ``depth`` layers of non-dominated ones. What is left then lies behind one
    point of every layer; a few that also do may stay.

    Args:
        cost: rising, shape ``(N,)``.
        loss: shape ``(N,)``.
        depth: number of layers.
    """
    rest = np.arange(len(cost))
    layers: list[Ints] = []
    while len(rest) and len(layers) < depth:
        values = loss[rest]
        lowest = np.minimum.accumulate(values)
        front = np.flatnonzero(np.concatenate([[True], values[1:] < lowest[:-1]]))
        # Of points of equal cost the last one on the front is the best.
        equal = np.diff(cost[rest[front]]) == 0
        front = front[~np.concatenate([equal, [False]])]
        layers.append(rest[front])
        rest = np.delete(rest, front)
    return layers[0] if len(layers) == 1 else np.sort(np.concatenate(layers))
