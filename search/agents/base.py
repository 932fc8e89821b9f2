"""What an agent is given and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tightfit.spaces import InfeasibleError, Plan, Space

Table = Sequence[NDArray[np.float64]]
"""Additive losses: one array per decision, indexed by option."""


@dataclass(frozen=True)
class Task:
    """The problem that every agent works on.

    Attributes:
        space: the decisions.
        limit: most weight bytes of a plan.
        losses: additive loss tables by name, the most trusted one first. They differ in what was
            known when they were made: after fitting, after calibration, before any measurement.
    """

    space: Space
    limit: int
    losses: Mapping[str, Table]

    @property
    def costs(self) -> list[NDArray[np.int64]]:
        """Bytes of every option, as solvers take them."""
        return [np.array(decision.costs, dtype=np.int64) for decision in self.space.decisions]

    @property
    def free_bytes(self) -> int:
        """Bytes that the decisions may spend: the limit without what no decision changes."""
        return self.limit - self.space.fixed_bytes

    def proposal(self, levels: Sequence[int], label: str, kind: Kind = "searched") -> Proposal:
        """Turn levels into a proposal.

        Raises:
            InfeasibleError: the plan is larger than the limit; no agent may propose such a one.
        """
        weight_bytes = self.space.bytes_of(levels)
        if weight_bytes > self.limit:
            raise InfeasibleError(f"{label}: {weight_bytes} B exceed the budget of {self.limit} B.")
        return Proposal(self.space.plan(levels), tuple(levels), weight_bytes, label, kind)


Kind = Literal["searched", "uniform", "mix"]


@dataclass(frozen=True)
class Proposal:
    """A plan within the budget, and where it comes from.

    Attributes:
        kind: ``uniform`` and ``mix`` are baselines: what one gets without searching.
    """

    plan: Plan
    levels: tuple[int, ...]
    weight_bytes: int
    label: str
    kind: Kind

    def to_dict(self) -> dict[str, Any]:
        """Return digest, kind and label, as the store lists baselines."""
        return {"digest": self.plan.digest, "kind": self.kind, "label": self.label}


class Agent(Protocol):
    """Proposes plans within the budget."""

    def propose(self, task: Task, count: int) -> list[Proposal]:
        """Return at most ``count`` distinct proposals, the most promising first."""
        ...
