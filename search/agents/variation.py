"""Making new plans out of old ones: crossover and swaps that keep the budget."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tightfit.search.agents.base import Levels, Table, Task
from tightfit.search.agents.projection import fill, project

_DOUBT = 0.3  # standard deviation of the logarithm of the doubt that guided swaps cast on the loss table
_SWAPS = 4  # most raised decisions of one child


def crossover(task: Task, first: Levels, second: Levels, limit: int, rng: np.random.Generator) -> Levels:
    """Take every decision from either of two plans, or one stretch of depth from the second.

    A child that is one of its parents again gets a random swap.
    """
    count = len(first)
    if rng.random() < 0.5:
        mask = rng.random(count) < 0.5
    else:
        start, stop = np.sort(rng.integers(0, count + 1, 2))
        mask = (np.arange(count) >= start) & (np.arange(count) < stop)
    mixed = np.where(mask, second, first).tolist()
    child = fill(task, project(task, mixed, limit), limit)
    return random_swap(task, child, limit, rng) if child in (first, second) else child


def guided_swap(task: Task, levels: Levels, limit: int, rng: np.random.Generator) -> Levels:
    """Raise some decisions and let the loss table choose what pays for it.

    What gains most is raised most often, to the next option or to any. The table is doubted a little,
    by another factor per decision every time, or the same swaps would always be chosen.
    """
    doubt = np.exp(_DOUBT * rng.standard_normal(len(levels)))
    table = [factor * np.asarray(row) for factor, row in zip(doubt, task.trusted, strict=True)]
    child, raised = list(levels), set()
    for _ in range(_how_many(rng)):
        # Among equals chance decides: the gain has a random exponential factor.
        worth = [_gains(row, child[i]) * rng.exponential() for i, row in enumerate(table)]
        worth = [value if i not in raised else np.zeros(0) for i, value in enumerate(worth)]
        best = max(range(len(child)), key=lambda i: worth[i].max(initial=-1.0))
        if worth[best].max(initial=0.0) <= 0:
            break
        child[best] = _step(child[best], np.flatnonzero(worth[best] > 0) + child[best] + 1, rng)
        raised.add(best)
    held = _hold(task, table, child, raised)
    return fill(held, project(held, child, limit), limit)


def random_swap(task: Task, levels: Levels, limit: int, rng: np.random.Generator) -> Levels:
    """Change some decisions at random and lower others at random until the plan fits.

    The table only spends the bytes that are left, and not on what was changed: so also options that it
    thinks worthless get their chance.
    """
    movable = [i for i, decision in enumerate(task.space.decisions) if len(decision.options) > 1]
    if not movable:
        return levels
    child = list(levels)
    changed = set(rng.choice(movable, min(_how_many(rng), len(movable)), replace=False).tolist())
    for index in sorted(changed):
        higher = np.arange(child[index] + 1, len(task.costs[index]))
        child[index] = _step(child[index], higher if len(higher) else np.arange(child[index]), rng)
    over = task.space.bytes_of(child) - limit
    while over > 0:
        lowerable = [i for i in movable if i not in changed and child[i] > 0]
        if not lowerable:
            break
        index = int(rng.choice(lowerable))
        level = _step(child[index], np.arange(child[index])[::-1], rng)
        over += int(task.costs[index][level] - task.costs[index][child[index]])
        child[index] = level
    changed |= {i for i in movable if child[i] != levels[i]}
    held = _hold(task, task.trusted, child, changed)
    return fill(held, project(held, child, limit), limit)


def _how_many(rng: np.random.Generator) -> int:
    """1 in half of all cases, 2 in a quarter, and so on."""
    return min(int(rng.geometric(0.5)), _SWAPS)


def _step(level: int, options: NDArray[np.int64], rng: np.random.Generator) -> int:
    """The nearest of some options (the first of them), or any, with equal chances."""
    return int(options[0] if rng.random() < 0.5 else rng.choice(options))


def _gains(row: NDArray[np.float64], level: int) -> NDArray[np.float64]:
    """What the options above a level gain over it."""
    return np.asarray(np.maximum(row[level] - row[level + 1 :], 0.0))


def _hold(task: Task, table: Table, levels: Sequence[int], decisions: Collection[int]) -> Task:
    """The task with a table under which nobody wants to change these decisions."""
    dear = 1e3 * (1.0 + sum(float(np.abs(row).max()) for row in table))
    rows = [
        np.where(np.arange(len(row)) == levels[i], 0.0, dear) if i in decisions else row
        for i, row in enumerate(table)
    ]
    return replace(task, losses={"held": rows})
