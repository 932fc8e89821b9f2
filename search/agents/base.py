"""What an agent is given and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tightfit.search.sides import Side, keeps_all
from tightfit.spaces import InfeasibleError, Plan, Space
from tightfit.workers.measurement import Measurement

if TYPE_CHECKING:
    from tightfit.proxies.coupling import Coupling

Table = Sequence[NDArray[np.float64]]
"""Additive losses: one array per decision, indexed by option."""

Levels = tuple[int, ...]

Kind = Literal["searched", "uniform", "mix"]

Mode = Literal["budget", "front"]
"""What is sought: the best plan of the budget, or good plans of every size up to it."""

_FINE, _ROUGH = 1e-4, 3e-3  # relative gaps; loss tables are further off than either

Sensitivity = Callable[[Levels], Table]
"""What every option of every decision would change, in nats per token, at the plan with these levels."""


@dataclass(frozen=True)
class Task:
    """The problem that every agent works on.

    Attributes:
        space: the decisions.
        limit: most bytes of a plan.
        losses: additive loss tables by name, the most trusted one first. They differ in what was
            known when they were made: after fitting, after calibration, before any measurement.
        seed: every draw of an agent comes from a generator made from (seed, purpose, index).
        mode: what is sought.
        sensitivity: one backward pass at a plan; None where there is no model to run it on.
        sides: further bounds that every plan must keep, such as seconds per token. Some plan within the
            limit keeps them all.
        couplings: what decisions of one block lose together beyond what the most trusted table says of each.
    """

    space: Space
    limit: int
    losses: Mapping[str, Table]
    seed: int = 0
    mode: Mode = "budget"
    sensitivity: Sensitivity | None = None
    sides: tuple[Side, ...] = ()
    couplings: tuple[Coupling, ...] = ()

    @cached_property
    def costs(self) -> list[NDArray[np.int64]]:
        """Bytes of every option, as solvers take them."""
        return [np.array(decision.costs, dtype=np.int64) for decision in self.space.decisions]

    @property
    def free_bytes(self) -> int:
        """Bytes that the decisions may spend: the limit without what no decision changes."""
        return self.limit - self.space.fixed_bytes

    @property
    def tolerance(self) -> float:
        """Relative gap of solutions that searches start from: with sides, the last digits take long."""
        return _ROUGH if self.sides else _FINE

    @cached_property
    def floor(self) -> int:
        """Fewest bytes of a plan that keeps every side, as far as the solver can tell."""
        from tightfit.search.solvers import solve  # brings SciPy, which listing uniform plans does without

        if not self.sides:
            return self.space.floor
        smallest = solve(self.costs, self.costs, self.free_bytes, self.tolerance, self.sides)
        return self.space.fixed_bytes + smallest.cost

    def keeps(self, levels: Sequence[int]) -> bool:
        """Whether a plan is within the limit and keeps every side."""
        return self.space.bytes_of(levels) <= self.limit and keeps_all(self.sides, levels)

    @property
    def trusted(self) -> Table:
        """The most trusted loss table."""
        return next(iter(self.losses.values()))

    def proposal(
        self,
        levels: Sequence[int],
        label: str,
        kind: Kind = "searched",
        note: Mapping[str, Any] | None = None,
    ) -> Proposal:
        """Turn levels into a proposal.

        Raises:
            InfeasibleError: the plan is larger than the limit or keeps some side not; no agent may
                propose such a one.
        """
        size = self.space.bytes_of(levels)
        if size > self.limit:
            raise InfeasibleError(f"{label}: {size} B exceed the budget of {self.limit} B.")
        for side in self.sides:
            if not side.keeps(levels):
                reached = side.text(side.total(levels))
                raise InfeasibleError(f"{label}: {reached}, but {side.name} asks for {side.asked()}.")
        own = tuple(int(level) for level in levels)
        return Proposal(self.space.plan(own), own, size, label, kind, dict(note or {}))


@dataclass(frozen=True)
class Proposal:
    """A plan within the budget, and where it comes from.

    Attributes:
        bytes: of its weights, and of its KV caches where the space decides about them.
        kind: ``uniform`` and ``mix`` are baselines: what one gets without searching.
        note: plain JSON data that the agent finds again in its history.
    """

    plan: Plan
    levels: Levels
    bytes: int
    label: str
    kind: Kind = "searched"
    note: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return digest, kind and label, as the store lists baselines."""
        return {"digest": self.plan.digest, "kind": self.kind, "label": self.label}


@dataclass(frozen=True)
class Trial:
    """A proposal that was recorded, and what became of it.

    Attributes:
        agent: who proposed it, and ``round`` in which of its turns, from 0.
        measured: on the selection text; None where measuring failed, for good.
    """

    agent: str
    round: int
    proposal: Proposal
    measured: Measurement | None

    @property
    def loss(self) -> float | None:
        """Finite loss in nats per token, or None where measuring failed."""
        return None if self.measured is None else self.measured.kl


@dataclass(frozen=True)
class History:
    """Every trial of a search so far, in the order of being proposed, whoever proposed it.

    It is all that an agent may remember: what it proposes next is a function of task and history. So
    the history, which the store keeps, is the saved state of every agent.
    """

    trials: tuple[Trial, ...] = ()

    def of(self, agent: str) -> list[Trial]:
        """Return the trials of one agent."""
        return [trial for trial in self.trials if trial.agent == agent]

    def rounds(self, agent: str) -> int:
        """Return in how many turns an agent has proposed something."""
        return max((trial.round + 1 for trial in self.of(agent)), default=0)

    @cached_property
    def seen(self) -> frozenset[str]:
        """Digests of all plans that were proposed; none of them needs to be measured again."""
        return frozenset(trial.proposal.plan.digest for trial in self.trials)

    @cached_property
    def failed(self) -> frozenset[str]:
        """Digests of plans whose loss could not be measured."""
        return frozenset(t.proposal.plan.digest for t in self.trials if t.measured is None)

    @cached_property
    def measured(self) -> tuple[Trial, ...]:
        """The first trial of every measured plan, the best first."""
        first: dict[str, Trial] = {}
        for trial in self.trials:
            if trial.measured is not None:
                first.setdefault(trial.proposal.plan.digest, trial)
        return tuple(sorted(first.values(), key=_merit))

    def with_trials(self, trials: Iterable[Trial]) -> History:
        """Return a history that goes on with these trials."""
        return History((*self.trials, *trials))


def _merit(trial: Trial) -> tuple[float, str]:
    """Sort key: loss, then digest, so that ties do not depend on who came first."""
    return (float("inf") if trial.loss is None else trial.loss, trial.proposal.plan.digest)


class Agent(Protocol):
    """Proposes plans within the budget.

    Attributes:
        iterative: whether it learns from what was measured and so is asked again. Others are asked once.
    """

    iterative: ClassVar[bool]

    def propose(self, task: Task, history: History, count: int) -> list[Proposal]:
        """Return at most ``count`` distinct proposals, the most promising first.

        The answer depends on nothing but the arguments: the same task, history and count give the
        same proposals in any process. An empty answer ends the agent's part in the search.
        """
        ...
