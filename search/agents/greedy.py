"""Greedy: raise whatever loses most loss per byte, until the budget is full."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.search.agents.base import Proposal, Task
from tightfit.search.solvers import greedy


@dataclass(frozen=True)
class Greedy:
    """The greedy plan of the most trusted loss table."""

    def propose(self, task: Task, count: int) -> list[Proposal]:
        """Return one plan."""
        losses = next(iter(task.losses.values()))
        return [task.proposal(greedy(task.costs, losses, task.free_bytes), "greedy")][:count]
