"""What a run's probes measured of the plan to use and of the best baseline: less context, and copying."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightfit.search.facts import Result
from tightfit.search.fronts import Front
from tightfit.workers.measurement import Measurement, Paired, compare

HALF, COPY = "holdout after half the context", "copying"
"""Splits of the probes, see :mod:`tightfit.workers.probes`."""


@dataclass(frozen=True)
class Probed:
    """One plan under the probes.

    Attributes:
        label: what it is called.
        full: its loss on the holdout text, and ``half`` on the same tokens after half the context.
        copied: what it loses on planted tokens that are asked for again.
    """

    label: str
    full: Measurement | None = None
    half: Measurement | None = None
    copied: Measurement | None = None

    @property
    def per_doubling(self) -> Paired | None:
        """Loss after the whole context minus that after half of it, paired; None where one is unknown."""
        return compare(self.full, self.half) if self.full and self.half else None

    @property
    def copying(self) -> float | None:
        """Negative log-likelihood of the planted tokens, nats per token."""
        return _mean(self.copied, "nll")

    @property
    def copying_reference(self) -> float | None:
        """The same of the uncompressed model."""
        return _mean(self.copied, "reference_nll")


@dataclass(frozen=True)
class Probes:
    """The plan to use under the probes, and what it was judged by: the best baseline or the search's plan.

    Attributes:
        guess: nats per token that drawing planted tokens at random costs.
    """

    plan: Probed
    rival: Probed | None
    guess: float


def read_probes(
    measurements: Sequence[Measurement],
    probed: Mapping[str, Sequence[str]] | None,
    result: Result | None,
    fronts: Sequence[Front],
    vocabulary: int,
) -> Probes | None:
    """Return what the probes of a run found; None where it has not made any.

    Args:
        measurements: of the run, oldest first.
        probed: per split of a probe the digests of the plans that it measured, as stored.
        result: of the run.
        fronts: of the run.
        vocabulary: number of tokens that the model knows.
    """
    if not probed or result is None:
        return None
    rival = next((d for d in (result.best_baseline, result.chosen) if d and d != result.final), None)
    latest = {(m.plan, m.split): m for m in measurements if m.plan in probed.get(m.split, ())}
    plan = _probed(result.final, fronts, latest)
    other = _probed(rival, fronts, latest) if rival else None
    return Probes(plan, other, math.log(vocabulary))


def extrapolated(full: float, change: float, prefix: int, context: int) -> float:
    """Loss after ``context`` tokens if every doubling from ``prefix`` on changed it as the last one did.

    L(C) = L(N) + Δ · log₂(C / N), never below zero.
    """
    return max(0.0, full + change * math.log2(context / prefix))


def _probed(digest: str, fronts: Sequence[Front], latest: Mapping[tuple[str, str], Measurement]) -> Probed:
    row = next((row for front in fronts if front.split == "holdout" and (row := front.find(digest))), None)
    full, half = row.measured if row else None, latest.get((digest, HALF))
    if full and half and _scored(full) != _scored(half):  # windows that are too short were left out
        half = None
    return Probed(row.label if row else digest[:12], full, half, latest.get((digest, COPY)))


def _scored(measured: Measurement) -> list[tuple[str, int]]:
    return [(document.document, document.tokens) for document in measured.documents]


def _mean(measured: Measurement | None, name: str) -> float | None:
    if measured is None:
        return None
    return float(sum(getattr(document, name) for document in measured.documents)) / measured.tokens
