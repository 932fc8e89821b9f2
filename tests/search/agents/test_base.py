from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tightfit.search.agents import Task
from tightfit.spaces import InfeasibleError


def test_a_plan_beyond_the_limit_cannot_be_proposed(task_of: Callable[..., Task]) -> None:
    task = task_of("fused", 0.3)
    largest = [len(decision.options) - 1 for decision in task.space.decisions]
    message = rf"mine: {task.space.ceiling} B exceed the budget of {task.limit} B"
    with pytest.raises(InfeasibleError, match=message):
        task.proposal(largest, "mine")


def test_the_limit_itself_can_be_proposed(task_of: Callable[..., Task]) -> None:
    space = task_of("fused", 0).space
    levels = [1] * len(space.decisions)
    proposal = task_of("fused", space.bytes_of(levels)).proposal(levels, "mine", "mix")
    assert proposal.bytes == space.bytes_of(levels)
    assert proposal.to_dict() == {"digest": proposal.plan.digest, "kind": "mix", "label": "mine"}


def test_solvers_get_the_bytes_of_the_decisions_alone(task_of: Callable[..., Task]) -> None:
    task = task_of("pinned", 0.3)
    assert task.free_bytes + task.space.fixed_bytes == task.limit
    assert [row.tolist() for row in task.costs] == [list(d.costs) for d in task.space.decisions]
    assert all(row.dtype == np.int64 for row in task.costs)
