"""Uniform plans: one format for everything. What every search has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tightfit.search.agents.base import History, Proposal, Task
from tightfit.spaces import KvOption, Option, Space


@dataclass(frozen=True)
class Uniform:
    """The largest uniform plans within the budget."""

    iterative: ClassVar[bool] = False

    def propose(self, task: Task, history: History, count: int) -> list[Proposal]:
        """Return the uniform plans that keep every bound, the one that uses most of the budget first."""
        proposals: dict[str, Proposal] = {}
        for option in formats(task.space):
            for cache in cache_formats(task.space):
                levels = task.space.uniform_levels(option, cache)
                if task.keeps(levels):
                    proposal = task.proposal(levels, f"uniform {label(option, cache)}", "uniform")
                    proposals.setdefault(proposal.plan.digest, proposal)
        if not proposals:
            last = _last_resort(task)
            proposals[last.plan.digest] = last
        return sorted(proposals.values(), key=lambda p: -p.bytes)[:count]


def _last_resort(task: Task) -> Proposal:
    """Return the fastest plan where every format is too slow or too large, else the smallest."""
    if any(side.unit != "B" for side in task.sides):  # the smallest plan keeps every bound on bytes
        from tightfit.search.solvers import least_violating  # brings SciPy

        fastest = least_violating(task.costs, task.trusted, task.free_bytes, task.sides)
        return task.proposal(fastest.levels, "fastest within the budget", "uniform")
    # Formats differ between decisions so much that only the floor itself fits.
    return task.proposal([0] * len(task.space.decisions), "smallest everywhere", "uniform")


def cache_formats(space: Space) -> list[KvOption | None]:
    """Return every option that some KV cache with a choice offers; None where none is decided about."""
    free = [d for d in space.kv_decisions if len(d.options) > 1] or list(space.kv_decisions)
    return list(dict.fromkeys(option for d in free for option in d.kv_options)) or [None]


def label(option: Option, cache: KvOption | None) -> str:
    """Name a format for all matrices, and one for all caches if there is any."""
    return option.name if cache is None else f"{option.name} + {cache.name}"


def formats(space: Space) -> list[Option]:
    """Return every format that some decision with a choice offers, ascending in effective bits."""
    free = [d for d in space.matrix_decisions if len(d.options) > 1] or list(space.matrix_decisions)
    bits = {o: 8 * cost / d.weights for d in free for o, cost in zip(d.matrix_options, d.costs, strict=True)}
    return sorted(bits, key=lambda option: (bits[option], option))
