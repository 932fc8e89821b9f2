"""Relinearize: steps from the best measured plan, each as far as the last ones are to be trusted.

One backward pass at a plan (:mod:`tightfit.proxies.relinearization`) says what every swap of one option
would change *there*, with the errors of all other decisions in place. The knapsack over these changes is
solved exactly, but for a price on every swap, which keeps the step within a trust region: so many swaps
from the plan (Conn, Gould and Toint, *Trust-Region Methods*, 2000). What measures better becomes the
next plan to step from. The region grows where the predicted decrease came true and shrinks where it did
not; all of that is read off the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import ClassVar

import numpy as np

from tightfit.search.agents.base import History, Proposal, Sensitivity, Table, Task, Trial
from tightfit.search.agents.trust_region import Region
from tightfit.search.solvers import solve
from tightfit.workers.measurement import compare

NAME = "relinearize"

# Share of all decisions that a first step may change.
_FIRST = 0.5
# A step is trusted further where at least this share of the predicted decrease came true, and less far
# where at most that share did.
_GOOD, _POOR = 0.5, 0.1
# A turn tries regions down to this share of the largest.
_SPAN = 8
# The best plan's rivals within noise are stepped from too, once it gives nothing new.
_RIVALS = 3
# Plans of a front that one turn steps from.
_ANCHORS = 3
# Standard errors of a paired difference that count as clear.
_CLEAR = 2.0
# Scores come from little text. Once more mixed with this share of the trusted table's differences, they
# give other plans: of two wrong tables neither is always the better one.
_DAMPING = 0.5


@dataclass(frozen=True)
class Relinearize:
    """Steps within a trust region, each from a new backward pass.

    Without a model to run backward, or before anything is measured, it proposes the exact solution of
    every loss table.
    """

    iterative: ClassVar[bool] = True

    def propose(self, task: Task, history: History, count: int) -> list[Proposal]:
        """Return the boldest step of a plan first, then ever more careful ones."""
        plans = [trial for trial in history.measured if task.keeps(trial.proposal.levels)]
        if task.sensitivity is None or not plans:
            return _exact(task, history, count)
        if task.mode == "front":
            return _along_front(task, history, task.sensitivity, plans, count)
        for origin in _rivals(history, plans):
            radius = _radius(task, history, origin)
            while radii := _radii(radius, count):
                scores = task.sensitivity(origin.proposal.levels)
                steps = _steps(task, history, scores, origin, radii, task.limit, count)
                if steps:
                    return steps
                radius = radii[-1] / 2
        return []


def _exact(task: Task, history: History, count: int) -> list[Proposal]:
    """Return the optimum of every loss table, the most trusted first, unless it was proposed before."""
    found: dict[str, Proposal] = {}
    for name, losses in task.losses.items():
        levels = solve(task.costs, losses, task.free_bytes, task.tolerance, task.sides).levels
        proposal = task.proposal(levels, f"{NAME} (start, {name})")
        if proposal.plan.digest not in history.seen:
            found.setdefault(proposal.plan.digest, proposal)
    return list(found.values())[:count]


def _rivals(history: History, plans: Sequence[Trial]) -> list[Trial]:
    """The best plan, then those that are not clearly worse and that no step from them has beaten."""
    left = {_origin(t) for t in history.of(NAME) if _gain(history, t) > 0}
    rivals = [t for t in plans[1:] if not _clearly(plans[0], t) and t.proposal.plan.digest not in left]
    return [plans[0], *rivals[: _RIVALS - 1]]


def _along_front(
    task: Task, history: History, sensitivity: Sensitivity, plans: Sequence[Trial], count: int
) -> list[Proposal]:
    """Step from plans spread over the measured front, into the gaps of bytes above them and within them.

    Every turn begins at another plan of the front. A step may take as many bytes as its origin, or up to
    the middle of the gap before the next larger plan.
    """
    front = _front(plans)
    ends = [t.proposal.bytes for t in front[1:]] + [task.limit]
    turn, anchors = history.rounds(NAME), min(_ANCHORS, len(front), count)
    found: dict[str, Proposal] = {}
    tried = 0
    for position in _spread(len(front), anchors, turn):
        origin = front[position]
        share = -(-count // (2 * anchors))
        radii = _radii(_radius(task, history, origin), share)
        if not radii:
            continue
        own = origin.proposal.bytes
        last = position == len(front) - 1
        limits = (own, ends[position] if last else (own + ends[position]) // 2)
        scores = sensitivity(origin.proposal.levels)
        steps = [p for limit in limits for p in _steps(task, history, scores, origin, radii, limit, share)]
        found |= {p.plan.digest: p for p in steps if p.plan.digest not in found}
        tried += bool(steps)
        if tried == anchors or len(found) >= count:
            break
    return list(found.values())[:count]


def _front(plans: Sequence[Trial]) -> list[Trial]:
    """Plans that no smaller one beats, ascending in bytes."""
    kept: list[Trial] = []
    for trial in sorted(plans, key=lambda t: t.proposal.bytes):  # of equal size the best comes first
        if not kept or _loss(trial) < _loss(kept[-1]):
            kept.append(trial)
    return kept


def _spread(size: int, anchors: int, turn: int) -> list[int]:
    """Every position once, the first few spread evenly, beginning elsewhere every turn."""
    stride = max(size // anchors, 1)
    order = [start + k for k in range(stride) for start in range(0, size, stride) if start + k < size]
    shift = turn * anchors % size
    return order[shift:] + order[:shift]


def _radius(task: Task, history: History, origin: Trial) -> float:
    """How many swaps a step from a plan may make, by what steps from it or to it have shown."""
    tried = [t for t in history.of(NAME) if _origin(t) == origin.proposal.plan.digest]
    if tried:
        return float(min(t.proposal.note["radius"] for t in tried)) / 2
    if origin.agent != NAME or _origin(origin) is None:
        return _FIRST * len(task.space.decisions)
    swaps = float(origin.proposal.note["swaps"])
    came_true = _gain(history, origin) / max(origin.proposal.note["gain"], 1e-12)
    if came_true >= _GOOD and _clearly(origin, _parent(history, origin)):
        return 2 * swaps
    return swaps if came_true > _POOR else swaps / 2


def _radii(radius: float, count: int) -> list[int]:
    """Regions of one turn, the largest first; none where not even one swap is within."""
    largest = int(radius)
    if largest < 1:
        return []
    smallest = max(1, largest // _SPAN)
    grid = np.geomspace(largest, smallest, max(count, 1)) if count > 1 else [largest]
    return sorted({round(float(r)) for r in grid}, reverse=True)


def _steps(
    task: Task,
    history: History,
    scores: Table,
    origin: Trial,
    radii: Sequence[int],
    limit: int,
    count: int,
) -> list[Proposal]:
    """New plans that are predicted to be better than the origin, as many as are asked for at most."""
    own = [row - row[level] for row, level in zip(task.trusted, origin.proposal.levels, strict=True)]
    damped = [(1 - _DAMPING) * row + _DAMPING * calm for row, calm in zip(scores, own, strict=True)]
    regions = [Region(task, table, origin, limit) for table in (scores, damped)]
    digest, turn = origin.proposal.plan.digest, history.rounds(NAME) + 1
    plans = [
        [(radius, region, levels) for levels in region.plans(radius, count)]
        for region in regions
        for radius in radii
    ]
    found: dict[str, Proposal] = {}
    # The best of every region, then their second best, and so on.
    for radius, region, levels in chain.from_iterable(filter(None, row) for row in zip_longest(*plans)):
        swaps, gain = region.swaps(levels), region.gain(levels)
        note = {"origin": digest, "radius": radius, "swaps": swaps, "gain": gain}
        label = f"{NAME} (step {turn}, {swaps} swap{'s' * (swaps != 1)})"
        proposal = task.proposal(levels, label, note=note)
        if gain > 0 and proposal.plan.digest not in history.seen:
            found.setdefault(proposal.plan.digest, proposal)
    return list(found.values())[:count]


def _origin(trial: Trial) -> str | None:
    origin = trial.proposal.note.get("origin")
    return None if origin is None else str(origin)


def _parent(history: History, trial: Trial) -> Trial | None:
    """The measured plan that a step began at."""
    return next((t for t in history.measured if t.proposal.plan.digest == _origin(trial)), None)


def _gain(history: History, trial: Trial) -> float:
    """Measured decrease of the loss by a step; minus infinity where it could not be measured."""
    parent = _parent(history, trial)
    return float("-inf") if parent is None or trial.measured is None else _loss(parent) - _loss(trial)


def _loss(trial: Trial) -> float:
    return float("inf") if trial.loss is None else trial.loss


def _clearly(better: Trial, worse: Trial | None) -> bool:
    """Whether one plan is better than another by more than the noise of measuring both on the same text."""
    if worse is None or better.measured is None or worse.measured is None:
        return False
    try:
        pair = compare(better.measured, worse.measured)
    except ValueError:  # measured on different text, so nothing is clear
        return False
    return pair.difference < -_CLEAR * pair.se if np.isfinite(pair.se) else False
