"""Evolution: swaps and crossover of the best measured plans, within the budget."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count as numbers
from typing import ClassVar

import numpy as np

from tightfit.search.agents.base import History, Levels, Proposal, Task, Trial
from tightfit.search.agents.correction import Correction
from tightfit.search.agents.ranking import Ranking
from tightfit.search.agents.variation import crossover, guided_swap, random_swap
from tightfit.search.solvers import solve, solve_front, solve_k_best
from tightfit.workers.measurement import compare

NAME = "evolution"
_PURPOSE = 41
_FEW = 8  # measured plans; with fewer, exact solutions are parents as well
_DOUBTFUL = 2.0  # standard errors within which a plan may be as good as the best of many
_RARE = 16  # one new child in as many attempts says that the space is nearly exhausted
_SIZES = 16  # of exact solutions that a search for the front starts from


@dataclass(frozen=True)
class Evolution:
    """Generations of children of all plans that were measured, whoever proposed them.

    The first generation starts from the exact solutions of all loss tables. Afterwards the parents are
    the best measured plans, or the non-dominated ones of all sizes where the front is sought. Far more
    children are made than are proposed. They are ranked by the trusted table as corrected by what was
    measured; every fourth place goes to the child that is most unlike all others in the better half.

    Attributes:
        pool: children made per block of proposals.
        block: proposals chosen from a pool; more are asked for only by large batches.
        parents: most plans that have children, the best ones.
    """

    iterative: ClassVar[bool] = True

    pool: int = 256
    block: int = 64
    parents: int = 32

    def propose(self, task: Task, history: History, count: int) -> list[Proposal]:
        """Return children that nobody proposed before; none once every plan was proposed."""
        generation = history.rounds(NAME)
        seen = {trial.proposal.levels for trial in history.trials}
        chosen: dict[Levels, Proposal] = {}
        for levels, what in self._candidates(task, history, generation, seen, chosen):
            if len(chosen) >= count:
                break
            if levels not in seen and levels not in chosen:
                label = f"evolution (generation {generation}, {what})"
                chosen[levels] = task.proposal(levels, label, note={"operator": what})
        return list(chosen.values())

    def _candidates(
        self,
        task: Task,
        history: History,
        generation: int,
        seen: set[Levels],
        chosen: dict[Levels, Proposal],
    ) -> Iterator[tuple[Levels, str]]:
        """Yield plans in the order in which they should be proposed; ``chosen`` grows meanwhile.

        Their order does not depend on how many are asked for.
        """
        starts = _starts(task) if generation == 0 or len(history.measured) < _FEW else {}
        if generation == 0:
            yield from starts.items()
        correction = Correction.fit(task, [t for t in history.trials if t.measured is not None])
        parents = _Parents.of(task, history, list(starts), self.parents)
        ranking = Ranking(task, history)
        for block in numbers():
            rng = np.random.default_rng([task.seed, _PURPOSE, generation, block])
            brood = parents.brood(rng, self.pool, seen | chosen.keys())
            plans = list(brood)
            order = ranking.order(plans, correction.predict(plans), list(chosen), self.block) if plans else []
            yield from ((plans[i], brood[plans[i]]) for i in order)
            if len(brood) < self.pool // _RARE:
                break
        # Variation hardly finds anything new, so little is left: take it in the order of the table.
        while True:
            known = len(seen | chosen.keys())
            most = known + self.block
            solutions = solve_k_best(
                task.costs, task.trusted, task.free_bytes, most, task.tolerance, task.sides
            )
            left = [s.levels for s in solutions if s.levels not in seen and s.levels not in chosen]
            if not left:
                return
            yield from ((levels, "what is left") for levels in left)


def _starts(task: Task) -> dict[Levels, str]:
    """Exact solutions of every table, and for the front those of the trusted one at other sizes."""
    starts: dict[Levels, str] = {}
    for name, losses in task.losses.items():
        best = solve(task.costs, losses, task.free_bytes, task.tolerance, task.sides)
        starts.setdefault(best.levels, f"exact, {name}")
    if task.mode == "front":
        starts |= {levels: "exact, smaller" for levels in _smaller(task) if levels not in starts}
    return starts


def _smaller(task: Task) -> Iterator[Levels]:
    """Yield the best plans of sizes up to the limit."""
    front = None if task.sides else solve_front(task.costs, task.trusted, buckets=4096)
    low = task.floor - task.space.fixed_bytes
    for share in _spread(_SIZES):
        limit = low + int(share * (task.free_bytes - low))
        if front is not None:
            yield front.levels(front.at(limit))
        else:
            yield solve(task.costs, task.trusted, limit, task.tolerance, task.sides).levels


def _spread(count: int) -> list[float]:
    """Shares in [0, 1], the ends included; every beginning is spread out (steps of the golden ratio)."""
    golden = (np.sqrt(5) - 1) / 2
    return [1.0, 0.0, *(float(i * golden % 1) for i in range(1, count - 1))]


@dataclass(frozen=True)
class _Parents:
    """Who has children, and with how many bytes.

    Attributes:
        task: the problem.
        plans: the best first; where the front is sought, the smallest first.
        chances: how often each is taken where only the limit counts; they sum to 1.
    """

    task: Task
    plans: tuple[Levels, ...]
    chances: tuple[float, ...]

    @classmethod
    def of(cls, task: Task, history: History, starts: list[Levels], most: int) -> _Parents:
        """Choose among everything that was measured, and these plans unless they failed."""
        failed = {t.proposal.levels for t in history.trials if t.measured is None}
        measured = list(history.measured)
        if task.mode == "front":
            ranks = _layers(measured)
            measured = [t for t, rank in sorted(zip(measured, ranks, strict=True), key=lambda p: p[1])]
            elite = sum(rank == 0 for rank in ranks)
            measured = measured[: max(elite, _FEW)]
            ranks = [0] * len(measured)
        else:
            measured = measured[:most]
            ranks = noisy_ranks(measured)
        plans = [t.proposal.levels for t in measured]
        # Where all starts failed as well, what is unlike them may still work.
        fresh = [p for p in starts if p not in plans and p not in failed] or ([] if plans else starts)
        ranks += [max(ranks, default=-1) + 1] * len(fresh)
        chances = 1 / (1 + np.array(ranks))
        chances /= chances.sum()
        pairs = list(zip(plans + fresh, chances.tolist(), strict=True))
        if task.mode == "front":
            pairs.sort(key=lambda pair: task.space.bytes_of(pair[0]))
        return cls(task, tuple(plan for plan, _ in pairs), tuple(chance for _, chance in pairs))

    def brood(self, rng: np.random.Generator, attempts: int, taken: Collection[Levels]) -> dict[Levels, str]:
        """Return new distinct children and how each was made; fewer than attempts, or none."""
        children: dict[Levels, str] = {}
        for attempt in range(attempts):
            limit, first, second = self._couple(rng, (attempt + rng.random()) / attempts)
            kind = rng.integers(3)
            if kind == 0 and first != second:
                what, child = "crossover", crossover(self.task, first, second, limit, rng)
            elif kind == 1:
                what, child = "guided swap", guided_swap(self.task, first, limit, rng)
            else:
                what, child = "random swap", random_swap(self.task, first, limit, rng)
            if child not in taken:
                children.setdefault(child, what)
        return children

    def _couple(self, rng: np.random.Generator, share: float) -> tuple[int, Levels, Levels]:
        """Bytes of a child and its parents: for the front, those nearest to its place on it."""
        if self.task.mode == "budget":
            first, second = rng.choice(len(self.plans), 2, p=self.chances)
            return self.task.limit, self.plans[first], self.plans[second]
        floor = self.task.floor
        limit = floor + int(share * (self.task.limit - floor))
        sizes = [self.task.space.bytes_of(plan) for plan in self.plans]
        near = sorted(range(len(sizes)), key=lambda i: (abs(sizes[i] - limit), i))[:3]
        first, second = rng.permutation(near)[[0, -1]]
        return limit, self.plans[first], self.plans[second]


def noisy_ranks(measured: list[Trial]) -> list[int]:
    """Rank of each trial, best first; 0 for all that noise could have put behind the first."""
    ranks: list[int] = []
    for position, trial in enumerate(measured):
        first = measured[0].measured
        close = False
        if first is not None and trial.measured is not None:
            try:
                paired = compare(trial.measured, first)
                close = paired.difference <= _DOUBTFUL * paired.se
            except ValueError:  # measured on other documents: no comparison
                close = False
        ranks.append(0 if close else position)
    return ranks


def _layers(measured: list[Trial]) -> list[int]:
    """Per trial, how many fronts of smaller and better plans lie before its own."""
    points = [(t.proposal.bytes, t.loss or 0.0) for t in measured]
    order = sorted(range(len(points)), key=lambda i: points[i])
    layers = [0] * len(points)
    lows: list[float] = []
    for i in order:
        layer = next((k for k, low in enumerate(lows) if points[i][1] < low), len(lows))
        lows[layer : layer + 1] = [points[i][1]]
        layers[i] = layer
    return layers
