"""Greedy: raise whatever loses most loss per byte, until the budget is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tightfit.search.agents.base import History, Proposal, Task
from tightfit.search.agents.projection import fill, project
from tightfit.search.solvers import greedy


@dataclass(frozen=True)
class Greedy:
    """The greedy plan of the most trusted loss table."""

    iterative: ClassVar[bool] = False

    def propose(self, task: Task, history: History, count: int) -> list[Proposal]:
        """Return one plan."""
        levels = greedy(task.costs, task.trusted, task.free_bytes)
        if not task.keeps(levels):
            levels = fill(task, project(task, levels))
        return [task.proposal(levels, "greedy")][:count]
