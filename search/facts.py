"""The values that a run writes into its store as it goes, as dataclasses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from tightfit.spaces import Space


class StoredFacts:
    """A value of the run that is read from plain data: unknown keys are ignored, missing ones None."""

    @classmethod
    def read(cls, data: Mapping[str, Any] | None) -> Self | None:
        """Read the value, or return None where the run has not written it yet."""
        if data is None:
            return None
        names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        return cls(**{key: value for key, value in data.items() if key in names})


@dataclass(frozen=True)
class ModelFacts(StoredFacts):
    """The model of the run."""

    name: str = ""
    folder: str | None = None
    digest: str | None = None
    family: str | None = None
    parameters: int | None = None
    layers: int | None = None


@dataclass(frozen=True)
class SpaceFacts(StoredFacts):
    """Size of the space, in bytes of weights, and of KV caches where plans decide about them.

    Attributes:
        plans_log10: logarithm of the number of plans.
        floor, ceiling: bytes of the smallest and the largest plan.
        fixed: bytes that no decision changes.
        weights: number of weights that the decisions govern.
        notes: whatever a user should know about what was left out.
        patterns: how many sites each pattern of the settings matched.
        context, batch: that KV caches are counted at; no context where plans do not decide about them.
        prefix: tokens in the cache where losses are measured.
    """

    decisions: int
    plans_log10: float
    floor: int
    ceiling: int
    fixed: int
    weights: int
    notes: Sequence[str] = ()
    patterns: Mapping[str, Any] | None = None
    context: int | None = None
    batch: int = 1
    prefix: int | None = None

    @classmethod
    def of(cls, space: Space) -> SpaceFacts:
        """Return the size of a space."""
        return cls(
            len(space.decisions),
            math.log10(space.size),
            space.floor,
            space.ceiling,
            space.fixed_bytes,
            space.weights,
            context=space.load.context if space.load else None,
            batch=space.load.batch if space.load else 1,
        )

    def effective_bits(self, weight_bytes: int) -> float:
        """Stored bits per governed weight, scales, zero points and padding included."""
        return 8 * (weight_bytes - self.fixed) / self.weights


@dataclass(frozen=True)
class TextFacts(StoredFacts):
    """The text: tokens asked for and used, and documents, of every split."""

    source: str = ""
    removed_share: float | None = None
    splits: Mapping[str, Mapping[str, int]] | None = None


@dataclass(frozen=True)
class SolutionFacts(StoredFacts):
    """What the solver proved: predicted loss, a lower bound on it (nats per token), and their gap."""

    loss_predicted: float | None = None
    bound: float | None = None
    gap: float | None = None
    digest: str | None = None


@dataclass(frozen=True)
class Result(StoredFacts):
    """How the run ended.

    Attributes:
        chosen, offered, best_baseline: digests; ``offered`` differs from ``chosen`` where a
            baseline turned out better.
        agrees: whether the chosen plan is no worse than the best baseline.
        verdict: the one line to remember.
        recounted_bytes: weight bytes counted from packed tensors.
        fits: whether the plan keeps the budget, ``too_slow`` whether it misses a bound on speed.
        next: commands to go on with.
    """

    chosen: str = ""
    offered: str | None = None
    best_baseline: str | None = None
    agrees: bool | None = None
    verdict: str = ""
    recounted_bytes: int | None = None
    fits: bool | None = None
    next: Sequence[str] = ()
    too_slow: bool = False

    @property
    def final(self) -> str:
        """Digest of the plan to use."""
        return self.offered or self.chosen


@dataclass(frozen=True)
class Exploration:
    """What agents proposed.

    Attributes:
        proposed: plans, repeated ones too.
        distinct: different plans among them.
        turns: times that an agent which learns proposed something.
        failures: per plan that could not be measured, why.
        tokens: run forward through the model for all stages together.
    """

    proposed: int
    distinct: int
    turns: int
    failures: Mapping[str, str]
    tokens: int | None = None


@dataclass(frozen=True)
class PredictedPoint(StoredFacts):
    """A plan of the exact front over the loss model; loss in nats per token."""

    bytes: int
    loss: float
    digest: str
    effective_bits: float | None = None
    cache_bytes: int = 0


@dataclass(frozen=True)
class ReliabilityPoint(StoredFacts):
    """Predicted and measured loss of a plan that no fit has seen, in nats per token."""

    digest: str
    predicted: float
    measured: float
    se: float | None = None
