"""The core search: enumerate only what the price of a byte leaves open.

At the price λ of the relaxation, an option's *reduced loss* is its loss + λ·bytes above the best
option of its decision, and the loss of any plan within the limit is at least the Lagrangian bound plus
the reduced losses of its options. With a good plan in hand this rules out nearly every option: of 560
decisions with twelve options, some twenty keep a second one. Those are settled one after the other,
the ones nearest to the price first (the expanding core of Pisinger, *A minimal algorithm for the
multiple-choice knapsack problem*, European Journal of Operational Research 1995), while a list of
undominated partial plans (Nemhauser and Ullmann 1969) is cut by the relaxation of the decisions still
open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.search.solvers._relaxation import Relaxation
from tightfit.search.solvers._states import Pool, States, Trace, undominated
from tightfit.search.solvers._table import Floats, Ints

_STATES = 1 << 16  # partial plans kept
_WORK = 1 << 22  # partial plans formed in all: a second or less


@dataclass(frozen=True)
class Ranked:
    """What a core search found.

    Attributes:
        plans: levels of the best plans below the ceiling, best first.
        missed: every plan within the limit that would have belonged among them has a loss of at least
            this; infinite where none was missed.
    """

    plans: list[Ints]
    missed: float


def search_core(
    relaxation: Relaxation, limit: int, count: int, ceiling: float = np.inf, accept: float = 0.0
) -> Ranked:
    """Find the best plans within a limit.

    Args:
        relaxation: of the problem.
        limit: most bytes of a plan, at least the floor.
        count: number of plans.
        ceiling: only plans with a loss below this are looked for.
        accept: once partial plans had to be given up, how far above the bound the last plan may be
            for the search to end.
    """
    return _Search(relaxation, limit, Pool(count, ceiling), accept).run()


class _Search:
    """One core search; the base plan is the relaxation's last whole step within the limit."""

    def __init__(self, relaxation: Relaxation, limit: int, pool: Pool, accept: float) -> None:
        self.relaxation, self.table = relaxation, relaxation.table
        self.limit, self.pool, self.accept = limit, pool, accept
        self.base, self.price = relaxation.levels(limit), relaxation.price(limit)
        self.base_cost = self.table.costs[self.table.rows, self.base]
        self.base_loss = self.table.losses[self.table.rows, self.base]
        # Differences first: price times whole byte counts would drown the losses in rounding errors.
        self.added = self.table.costs - self.base_cost[:, None]
        self.reduced = self.table.losses - self.base_loss[:, None] + self.price * self.added
        self.departs = self.table.real.copy()
        self.departs[self.table.rows, self.base] = False
        self.waiting = np.ones(len(self.base), dtype=np.bool_)
        self.trace, self.missed, self.work = Trace(), np.inf, 0
        pool.offer(self.base_loss.sum(keepdims=True), np.zeros(1, dtype=np.int64))

    def run(self) -> Ranked:
        """Settle decisions until no partial plan can lead to a better plan."""
        states = States.root()
        for decision, least in self._order():
            bounds = self._priced_bounds(states)
            if not len(states) or bounds.min() + least >= self._target:
                break
            self.waiting[decision] = False
            open_options = self.departs[decision] & (bounds.min() + self.reduced[decision] < self._target)
            if not open_options.any():
                states.cost = states.cost + self.base_cost[decision]
                states.loss = states.loss + self.base_loss[decision]
                continue
            states = self._branch(states, bounds, decision, np.flatnonzero(open_options))
            states, lowest = self._prune(states)
            if self._enough(lowest):
                self.missed = min(self.missed, lowest)
                break
        return Ranked([self.trace.levels(self.base, node) for _, node in self.pool.entries], self.missed)

    @property
    def _target(self) -> float:
        """Partial plans whose bound reaches this are of no use."""
        return self.pool.threshold - self.table.rounding

    def _order(self) -> list[tuple[int, float]]:
        """Return decisions, nearest to the price first, with the least reduced loss from there on."""
        reduced = np.where(self.departs, self.reduced, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(self.departs, reduced / np.abs(self.added), np.inf)
        distance[np.isnan(distance)] = 0.0
        least = reduced.min(axis=1)
        order = np.argsort(distance.min(axis=1), kind="stable")
        order = order[np.isfinite(least[order])]
        suffix = np.minimum.accumulate(least[order][::-1])[::-1]
        return list(zip(order.tolist(), suffix.tolist(), strict=True))

    def _priced_bounds(self, states: States) -> Floats:
        """Lower bounds on what partial plans can lead to, from the price alone."""
        unspent = self.limit - self.base_cost[self.waiting].sum() - states.cost
        bounds: Floats = states.loss + self.base_loss[self.waiting].sum() - self.price * unspent
        return bounds

    def _branch(self, states: States, bounds: Floats, decision: int, options: Ints) -> States:
        """Settle a decision: every state with the base option and with every open one."""
        costs, losses = self.table.costs[decision], self.table.losses[decision]
        parts: list[tuple[NDArray[Any], ...]] = []
        for option in (self.base[decision], *options):
            kept = states.take(bounds + self.reduced[decision, option] < self._target)
            settled = np.full(len(kept), option)
            parts.append((kept.cost + costs[option], kept.loss + losses[option], kept.node, settled))
        cost, loss, node, settled = (np.concatenate(column) for column in zip(*parts, strict=True))
        self.work += len(cost)
        order = np.argsort(cost, kind="stable")
        order = order[undominated(cost[order], loss[order], self.pool.size)]
        node, settled = node[order], settled[order]
        fresh = settled != self.base[decision]
        node[fresh] = self.trace.add(decision, node[fresh], settled[fresh])
        states = States(cost[order], loss[order], node)
        self._offer(states.take(fresh))
        return states

    def _offer(self, states: States) -> None:
        """Complete new states with the base plan, and offer those that fit."""
        fits = states.cost + int(self.base_cost[self.waiting].sum()) <= self.limit
        losses = states.loss[fits] + self.base_loss[self.waiting].sum()
        self.pool.offer(losses, states.node[fits])

    def _prune(self, states: States) -> tuple[States, float]:
        """Drop states whose relaxed completion is no use, and the worst ones beyond the cap."""
        bounds = states.loss + self.relaxation.curve_of(self.waiting)(self.limit - states.cost)
        useful = bounds < self._target
        states, bounds = states.take(useful), bounds[useful]
        if len(states) > _STATES:
            order = np.argpartition(bounds, _STATES)
            self.missed = min(self.missed, float(bounds[order[_STATES:]].min()))
            kept = np.sort(order[:_STATES])
            states, bounds = states.take(kept), bounds[kept]
        return states, float(bounds.min(initial=np.inf))

    def _enough(self, lowest: float) -> bool:
        """Whether to stop short of a proof: too much work, or near enough once states were dropped."""
        near = self.pool.threshold - min(self.missed, lowest) <= self.accept
        return self.work > _WORK or (np.isfinite(self.missed) and near)
