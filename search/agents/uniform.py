"""Uniform plans: one format for everything. What every search has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tightfit.search.agents.base import History, Proposal, Task
from tightfit.spaces import Decision, Space, WeightOption


@dataclass(frozen=True)
class Uniform:
    """The largest uniform plans within the budget."""

    iterative: ClassVar[bool] = False

    def propose(self, task: Task, history: History, count: int) -> list[Proposal]:
        """Return the feasible uniform plans, the one that uses most of the budget first."""
        proposals: dict[str, Proposal] = {}
        for option in formats(task.space):
            levels = uniform_levels(task.space, option)
            if task.space.bytes_of(levels) <= task.limit:
                proposal = task.proposal(levels, f"uniform {option.name}", "uniform")
                proposals.setdefault(proposal.plan.digest, proposal)
        if not proposals:
            # Formats differ between decisions so much that only the floor itself fits.
            floor = task.proposal([0] * len(task.space.decisions), "smallest everywhere", "uniform")
            proposals[floor.plan.digest] = floor
        return sorted(proposals.values(), key=lambda p: -p.weight_bytes)[:count]


def formats(space: Space) -> list[WeightOption]:
    """Return every format that some decision with a choice offers, ascending in effective bits."""
    free = [d for d in space.decisions if len(d.options) > 1] or list(space.decisions)
    bits = {o: 8 * cost / d.weights for d in free for o, cost in zip(d.options, d.costs, strict=True)}
    return sorted(bits, key=lambda option: (bits[option], option))


def uniform_levels(space: Space, option: WeightOption) -> tuple[int, ...]:
    """Return the levels of the plan that uses one format wherever it is offered."""
    return tuple(nearest_level(decision, option) for decision in space.decisions)


def nearest_level(decision: Decision, wanted: WeightOption) -> int:
    """Return the option itself, or where it is not offered the nearest in bits, then kind, then group."""

    def distance(level: int) -> tuple[int, bool, int, int]:
        option = decision.options[level]
        return (
            abs(option.bits - wanted.bits),
            option.zero != wanted.zero,
            abs(option.group - wanted.group),
            level,
        )

    return min(range(len(decision.options)), key=distance)
