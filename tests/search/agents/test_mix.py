from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tightfit.search.agents import History, Task, get_agent
from tightfit.search.agents.mix import ORDERS
from tightfit.spaces import WeightOption


def read_label(label: str) -> tuple[int, int, str]:
    """The two widths and the order that a label names."""
    match = re.fullmatch(r"mix (\d+)\+(\d+)b[-\w]*, (.+)", label)
    assert match, label
    return int(match[1]), int(match[2]), match[3]


def test_a_mix_uses_two_widths_and_no_upgrade_in_its_order_fits_any_more(task: Task) -> None:
    for proposal in get_agent("mix").propose(task, History(), 60):
        low, high, order = read_label(proposal.label)
        assert order in ORDERS
        left = task.limit - proposal.bytes
        widths = set()
        for decision, level in zip(task.space.decisions, proposal.levels, strict=True):
            option = decision.options[level]
            bits = {other.bits for other in decision.options}
            if len(decision.options) == 1 or not {low, high} <= bits:
                continue
            widths.add(option.bits)
            if option.bits == low:
                upgrade = WeightOption(high) if high > 8 else replace(option, bits=high)
                assert decision.costs[decision.index(upgrade.name)] - decision.costs[level] > left
        assert widths == {low, high}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_there_is_a_mix_for_every_order_between_two_uniform_plans(
    task_of: Callable[..., Task], share: float
) -> None:
    proposals = get_agent("mix").propose(task_of("untied", share), History(), 60)
    pairs = {read_label(proposal.label)[:2] for proposal in proposals}
    assert len(pairs) == 1
    low, high = pairs.pop()
    assert high == low + 1
    # Distinct orders may lead to one plan, but here every one of them fills the budget differently.
    assert {read_label(proposal.label)[2] for proposal in proposals} == set(ORDERS)
    assert all(p.bytes > 0.995 * task_of("untied", share).limit for p in proposals)


def test_mixes_that_use_most_of_the_budget_come_first(task: Task) -> None:
    sizes = [proposal.bytes for proposal in get_agent("mix").propose(task, History(), 60)]
    assert sizes == sorted(sizes, reverse=True)


def test_nothing_is_mixed_at_the_bytes_of_a_uniform_plan(task_of: Callable[..., Task]) -> None:
    space = task_of("untied", 0).space
    size = space.bytes_of(space.uniform_levels(WeightOption(4, 64, "integer")))
    assert get_agent("mix").propose(task_of("untied", size), History(), 60) == []


def test_plain_floats_continue_every_family(task_of: Callable[..., Task]) -> None:
    """Between uniform 6 bits and uniform 16 bits, what fills the budget is some matrices at 16."""
    task = task_of("conv1d", 0.7)
    labels = [proposal.label for proposal in get_agent("mix").propose(task, History(), 60)]
    assert labels
    assert all(label.startswith("mix 6+16b, ") for label in labels)


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_names_every_decision_once(task: Task, name: str) -> None:
    count = len(task.space.decisions)
    assert sorted(ORDERS[name](task.space)) == list(range(count))


def test_orders_begin_where_they_say(task_of: Callable[..., Task]) -> None:
    space = task_of("untied", 0).space
    names = [decision.name for decision in space.decisions]
    count = len(names)
    assert ORDERS["front first"](space)[:3] == [0, 1, 2]
    assert ORDERS["back first"](space)[:3] == [count - 1, count - 2, count - 3]
    assert ORDERS["both ends first"](space)[:4] == [0, count - 1, 1, count - 2]
    favoured = [names[index] for index in ORDERS["v and down first"](space)[:48]]
    assert all(name.endswith(("v_proj", "down_proj")) for name in favoured)
    tenth = ORDERS["spread"](space)[: count // 10]
    gaps = [b - a for a, b in zip(sorted(tenth), sorted(tenth)[1:], strict=False)]
    assert max(gaps) < 3 * min(gaps)  # no stretch of the model is left out
