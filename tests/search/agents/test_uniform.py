from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tightfit.search.agents import History, Task, get_agent
from tightfit.search.agents.uniform import formats
from tightfit.search.solvers import solve


def test_a_format_is_used_wherever_it_is_offered(task: Task) -> None:
    for option in formats(task.space):
        for decision, level in zip(task.space.decisions, task.space.uniform_levels(option), strict=True):
            chosen = decision.options[level]
            if option in decision.options:
                assert chosen == option
            else:
                gaps = [abs(offered.bits - option.bits) for offered in decision.options]
                assert abs(chosen.bits - option.bits) == min(gaps)


def test_formats_are_what_free_decisions_offer_ascending_in_bits(task_of: Callable[..., Task]) -> None:
    space = task_of("pinned", 0.5).space
    assert [option.name for option in formats(space)] == ["3b-g64-int", "4b-g64-int", "8b-g64-int", "16b"]
    mixed = formats(task_of("uneven", 0.5).space)
    sizes = [option.tensor_bytes(576, 192) for option in mixed]
    assert sizes == sorted(sizes)
    assert len(mixed) == 6 * 2 * 3 + 1


def test_the_best_uniform_plan_is_the_largest_that_fits(task: Task) -> None:
    sizes = [task.space.bytes_of(task.space.uniform_levels(option)) for option in formats(task.space)]
    fitting = {size for size in sizes if size <= task.limit}
    proposals = get_agent("uniform").propose(task, History(), len(sizes))
    assert proposals[0].bytes == max(fitting, default=task.space.floor)
    assert [p.bytes for p in proposals] == sorted((p.bytes for p in proposals), reverse=True)
    assert {p.bytes for p in proposals} == (fitting or {task.space.floor})


def test_where_no_format_fits_everywhere_the_smallest_options_do(task_of: Callable[..., Task]) -> None:
    task = task_of("crossed", 0)
    assert all(task.space.bytes_of(task.space.uniform_levels(o)) > task.limit for o in formats(task.space))
    (proposal,) = get_agent("uniform").propose(task, History(), 6)
    assert proposal.levels == (0,) * len(task.space.decisions)
    assert proposal.kind == "uniform"


def test_where_every_format_is_too_slow_the_fastest_plan_is_the_baseline(timed_task: Task) -> None:
    (side,) = timed_task.sides
    fastest = side.total(solve(timed_task.costs, list(side.values), timed_task.free_bytes).levels)
    tight = replace(timed_task, sides=(replace(side, limit=fastest * (1 + 1e-6)),))
    (proposal,) = get_agent("uniform").propose(tight, History(), 6)
    assert side.total(proposal.levels) == pytest.approx(fastest)
    assert (proposal.label, proposal.kind) == ("fastest within the budget", "uniform")


def test_uniform_plans_that_are_too_slow_are_left_out(timed_task: Task) -> None:
    (side,) = timed_task.sides
    proposals = get_agent("uniform").propose(timed_task, History(), 100)
    fitting = {
        levels
        for option in formats(timed_task.space)
        if timed_task.space.bytes_of(levels := timed_task.space.uniform_levels(option)) <= timed_task.limit
        and side.keeps(levels)
    }
    found = {proposal.levels for proposal in proposals if proposal.label != "fastest within the budget"}
    assert found == fitting


def test_a_budget_of_exactly_a_uniform_plan_gets_that_plan(task_of: Callable[..., Task]) -> None:
    space = task_of("untied", 0).space
    for option in formats(space):
        size = space.bytes_of(space.uniform_levels(option))
        best, less = task_of("untied", size), task_of("untied", max(size - 1, space.floor))
        assert get_agent("uniform").propose(best, History(), 1)[0].label == f"uniform {option.name}"
        if size > space.floor:
            assert get_agent("uniform").propose(less, History(), 1)[0].bytes < size
