"""The rules of thumb that every allocation has to beat: the same everywhere, or the ends a little wider."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tightfit.proxies.kv.menu import Menu
from tightfit.spaces import InputError
from tightfit.spaces.kv import KvOption

END_LAYERS = 2


def uniform(menu: Menu, budget: int) -> list[int]:
    """Give every layer the same option, the largest that fits; see :func:`uniform_plans` for the others."""
    return uniform_plans(menu, budget)[0]


def uniform_plans(menu: Menu, budget: int) -> list[list[int]]:
    """Every uniform plan within a budget, most bytes first; of equal ones the one with more bits.

    Layers with a single option have that; an option is uniform where all others offer it.

    Raises:
        InputError: the layers have no option in common, or even the smallest is above the budget.
    """
    plans = _same_everywhere(menu)
    menu.require(budget, plans[-1])
    return [plan for plan in plans if menu.size(plan) <= budget]


def ends(menu: Menu, budget: int, count: int = END_LAYERS) -> list[int]:
    """Give the first and last ``count`` layers their widest option, and all others the same one."""
    return ends_plans(menu, budget, count)[0]


def ends_plans(menu: Menu, budget: int, count: int = END_LAYERS) -> list[list[int]]:
    """Every plan with wide ends within a budget, the largest option in between first.

    Fewer layers at the ends are wide where that is all that the budget pays for, at last none. What is left
    is spent from the ends inwards, on options with no fewer bits and tokens.

    Raises:
        InputError: as :func:`uniform_plans`.
    """
    plans = _same_everywhere(menu)
    menu.require(budget, plans[-1])
    widest = [
        max(found, key=lambda i, costs=costs: int(costs[i]))  # type: ignore[misc]
        for costs, found in zip(menu.costs, menu.plain, strict=True)
    ]
    last = menu.layers - 1
    for wide in range(min(count, math.ceil(menu.layers / 2)), -1, -1):
        mixed = [
            [widest[i] if min(i, last - i) < wide else option for i, option in enumerate(plan)]
            for plan in plans
        ]
        if fitting := [plan for plan in mixed if menu.size(plan) <= budget]:
            break
    finished = dict.fromkeys(tuple(_spend_inwards(menu, plan, budget)) for plan in fitting)
    return [list(plan) for plan in finished]


def _same_everywhere(menu: Menu) -> list[list[int]]:
    """Every uniform plan, most bytes first."""
    offered = [
        {options[i]: i for i in reversed(found)}
        for options, found in zip(menu.options, menu.plain, strict=True)
    ]
    chosen = [choices for choices in offered if len(choices) > 1]
    if not chosen:
        return [[found[0] for found in menu.plain]]
    common = set.intersection(*(set(choices) for choices in chosen))
    if not common:
        raise InputError("no KV option is offered in every layer that has a choice.")

    def plan(option: KvOption) -> list[int]:
        return [choices[option] if len(choices) > 1 else next(iter(choices.values())) for choices in offered]

    def rank(option: KvOption) -> tuple[float, ...]:
        return (menu.size(plan(option)), option.k_bits + option.v_bits, option.k_bits, option.keep)

    # A set has no order: options that rank alike follow their own.
    return [plan(option) for option in sorted(sorted(common), key=rank, reverse=True)]


def _spend_inwards(menu: Menu, plan: Sequence[int], budget: int) -> list[int]:
    plan, left = list(plan), budget - menu.size(plan)
    for layer in sorted(range(menu.layers), key=lambda i: (min(i, menu.layers - 1 - i), i)):
        costs, options = menu.costs[layer], menu.options[layer]
        now = options[plan[layer]]
        wider = [i for i in menu.plain[layer] if _no_less(options[i], now)]
        affordable = [i for i in wider if int(costs[i] - costs[plan[layer]]) <= left]
        best = max(affordable, key=lambda i: (int(costs[i]), -i))
        left -= int(costs[best] - costs[plan[layer]])
        plan[layer] = best
    return plan


def _no_less(option: KvOption, than: KvOption) -> bool:
    return option.k_bits >= than.k_bits and option.v_bits >= than.v_bits and option.keep >= than.keep
