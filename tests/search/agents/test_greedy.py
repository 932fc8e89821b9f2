from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tightfit.search.agents import History, Task, get_agent


def test_no_single_change_that_fits_would_lower_the_loss(
    task: Task, loss_of: Callable[[Task, Any], float]
) -> None:
    (proposal,) = get_agent("greedy").propose(task, History(), 6)
    left = task.limit - proposal.bytes
    table = next(iter(task.losses.values()))
    for losses, costs, level in zip(table, task.costs, proposal.levels, strict=True):
        fits = costs - costs[level] <= left
        assert losses[fits].min() >= losses[level]


def test_the_first_table_is_the_one_that_counts(task_of: Callable[..., Task]) -> None:
    task = task_of("fused", 0.4)
    first, second = task.losses["fitted"], task.losses["calibrated"]
    one = get_agent("greedy").propose(Task(task.space, task.limit, {"a": first, "b": second}), History(), 1)
    other = get_agent("greedy").propose(Task(task.space, task.limit, {"b": second, "a": first}), History(), 1)
    assert one == get_agent("greedy").propose(task, History(), 1)
    assert one[0].levels != other[0].levels
