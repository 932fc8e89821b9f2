"""Hand-made plans for KV caches: one format for all matrices, and a published rule for the caches.

The rules that need no measurement are used: wide ends, and tokens that fall with depth (PyramidKV).
"""

from __future__ import annotations

from collections.abc import Iterator

from tightfit.proxies.kv.allocators import pyramid
from tightfit.proxies.kv.menu import Menu
from tightfit.proxies.kv.uniform import ends_plans
from tightfit.search.agents.base import Levels, Task
from tightfit.search.agents.uniform import formats
from tightfit.spaces import InputError


def cache_mixes(task: Task) -> Iterator[tuple[Levels, str]]:
    """Yield plans and what they are called; none where all caches are one decision, or none is decided."""
    space = task.space
    caches = space.kv_decisions
    if len(caches) < 2:
        return
    menu = Menu(task.costs[len(space.matrix_decisions) :], [decision.kv_options for decision in caches])
    for option in formats(space):
        weights = space.uniform_levels(option)[: len(space.matrix_decisions)]
        taken = sum(int(row[level]) for row, level in zip(task.costs, weights, strict=False))
        for name, plan in _plans(menu, task.free_bytes - taken):
            yield (*weights, *plan), f"{option.name} + caches by {name}"


def _plans(menu: Menu, budget: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the plans of every rule that a number of bytes for the caches is enough for."""
    try:
        for plan in ends_plans(menu, budget):
            yield "wide ends", plan
    except InputError:  # no rule has anything small enough, or layers have no option in common
        return
    for pair in menu.precisions():
        try:
            plan = pyramid(menu, budget, pair)
        except InputError:  # not at these bits
            continue
        yield f"pyramid k{pair[0]}v{pair[1]}", plan
