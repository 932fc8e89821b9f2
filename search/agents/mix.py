"""Byte-filling two-width mixes: what a careful person does by hand.

Everything gets the largest uniform format that fits; then, in a fixed order, one matrix after
another gets the next width up until the budget is full. The orders are the usual rules of thumb.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tightfit.search.agents.base import History, Levels, Proposal, Task
from tightfit.search.agents.cache_mix import cache_mixes
from tightfit.search.agents.llamacpp import RECIPES, recipe_levels
from tightfit.search.agents.uniform import cache_formats, formats, label
from tightfit.spaces import GgmlOption, KvOption, Option, Space


def _from_the_front(space: Space) -> list[int]:
    return list(range(len(space.matrix_decisions)))


def _from_the_back(space: Space) -> list[int]:
    return _from_the_front(space)[::-1]


def _both_ends(space: Space) -> list[int]:
    count = len(space.matrix_decisions)
    return sorted(range(count), key=lambda i: (min(i, count - 1 - i), i))


def _spread(space: Space) -> list[int]:
    """Every prefix of this order is spread evenly over depth (steps of the golden ratio)."""
    golden = (math.sqrt(5) - 1) / 2
    return sorted(_from_the_front(space), key=lambda i: (i * golden) % 1)


def _value_and_down(space: Space) -> list[int]:
    """Value and down projections first, the rest in depth order: the rule of llama.cpp's mixes."""
    names = [decision.name for decision in space.matrix_decisions]
    return sorted(range(len(names)), key=lambda i: (not names[i].endswith(("v_proj", "down_proj")), i))


ORDERS: dict[str, Callable[[Space], list[int]]] = {
    "front first": _from_the_front,
    "back first": _from_the_back,
    "both ends first": _both_ends,
    "spread": _spread,
    "v and down first": _value_and_down,
}


@dataclass(frozen=True)
class Mix:
    """Two neighbouring widths of one format family, filled up to the budget in several orders."""

    iterative: ClassVar[bool] = False

    def propose(self, task: Task, history: History, count: int) -> list[Proposal]:
        """Return the mixes, those that use most of the budget first."""
        proposals: dict[str, Proposal] = {}

        def keep(levels: Levels, words: str) -> None:
            if task.keeps(levels):
                proposal = task.proposal(levels, words, "mix")
                proposals.setdefault(proposal.plan.digest, proposal)

        for cache in cache_formats(task.space):
            for name, recipe in RECIPES.items() if task.space.target.types else ():
                known = recipe_levels(task.space, recipe, cache)
                if known is not None:
                    keep(known, f"llama.cpp {name}" + (f" + {cache.name}" if cache else ""))
            for low, high in _pairs(task, cache):
                whole = [task.space.uniform_levels(option, cache) for option in (low, high)]
                for name, order in ORDERS.items():
                    levels = _fill(task, whole[0], whole[1], order(task.space))
                    if levels not in whole:
                        keep(levels, f"mix {_short(low)}+{label(high, cache)}, {name}")
        for levels, words in cache_mixes(task):
            keep(levels, words)
        return sorted(proposals.values(), key=lambda p: -p.bytes)[:count]


def _short(option: Option) -> str:
    return option.name if isinstance(option, GgmlOption) else str(option.bits)


def _pairs(task: Task, cache: KvOption | None) -> list[tuple[Option, Option]]:
    """Per family of formats, the widest width that fits everywhere beside such caches and the next one.

    Plain floats have no groups and no zero points, so they are the widest members of every family.
    """
    offered = formats(task.space)
    families: dict[object, list[Option]] = {}
    for option in offered:
        if option.quantized:
            families.setdefault(option.family, []).append(option)
    floats = [option for option in offered if not option.quantized]
    pairs = []
    for family in [[*family, *floats] for family in families.values()] or [floats]:
        fitting = [
            o for o in family if task.space.bytes_of(task.space.uniform_levels(o, cache)) <= task.limit
        ]
        wider = [o for o in family if o not in fitting]
        if fitting and wider:
            pairs.append((fitting[-1], wider[0]))
    return pairs


def _fill(task: Task, low: Levels, high: Levels, order: Sequence[int]) -> Levels:
    """Start at the low width and raise decisions in this order while they fit."""
    levels, raised = list(low), high
    left = task.limit - task.space.bytes_of(levels)
    for index in order:
        costs = task.space.decisions[index].costs
        extra = costs[raised[index]] - costs[levels[index]]
        if extra <= left:
            levels[index], left = raised[index], left - extra
    return tuple(levels)
