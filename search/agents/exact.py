"""Exact: the best plan of the loss model under the budget, by the knapsack solvers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tightfit.search.agents.base import History, Proposal, Task
from tightfit.search.solvers import solve, solve_k_best


@dataclass(frozen=True)
class Exact:
    """The optimum of every loss table, then the runners-up of the most trusted one."""

    iterative: ClassVar[bool] = False

    def propose(self, task: Task, history: History, count: int) -> list[Proposal]:
        """Return distinct plans; tables that agree give one."""
        proposals: dict[str, Proposal] = {}
        for name, losses in task.losses.items():
            joint = task.couplings if losses is task.trusted else ()
            best = solve(task.costs, losses, task.free_bytes, sides=task.sides, couplings=joint)
            proposal = task.proposal(best.levels, f"exact ({name})")
            proposals.setdefault(proposal.plan.digest, proposal)
        runners = solve_k_best(
            task.costs,
            task.trusted,
            task.free_bytes,
            count,
            sides=task.sides,
            couplings=task.couplings,
        )
        for rank, solution in enumerate(runners, 1):
            proposal = task.proposal(solution.levels, f"exact (no. {rank})")
            proposals.setdefault(proposal.plan.digest, proposal)
        return list(proposals.values())[:count]
