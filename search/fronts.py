"""Fronts: what plans measured on the same tokens, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tightfit.search.facts import Result, SpaceFacts
from tightfit.search.records import StoredPlan
from tightfit.workers.measurement import Measurement, Paired, compare

SPLITS = ("holdout", "validation", "selection")
"""Parts of the text, the most trustworthy first: whatever a choice looked at flatters that choice."""

CLEAR = 2.0
"""Standard errors beyond which a difference counts as one."""

BASELINES = ("uniform", "mix")
"""Kinds of plan that every search must beat."""


@dataclass(frozen=True)
class PlanRow:
    """One measured plan, as a row of a table and a point of a figure.

    Attributes:
        label: where it came from, in words: ``exact``, ``uniform 4b-g64-int``.
        kind: ``searched``, ``uniform`` or ``mix``.
        bytes: of its weights, and of its KV caches where it decides about them.
        effective_bits: of the weights alone.
        predicted: loss under the loss model, nats per token.
        measured: what it measured.
        cache_bytes: what of ``bytes`` are KV caches.
        versus_chosen: this plan minus the chosen one, paired over documents.
        dominated: another plan of the same front is no larger and no worse, and better in one.
    """

    digest: str
    label: str
    kind: str
    bytes: int
    effective_bits: float | None
    predicted: float | None
    measured: Measurement
    cache_bytes: int = 0
    versus_chosen: Paired | None = None
    chosen: bool = False
    offered: bool = False
    best_baseline: bool = False
    dominated: bool = False

    @property
    def short(self) -> str:
        """First twelve characters of the digest."""
        return self.digest[:12]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights alone."""
        return self.bytes - self.cache_bytes

    @property
    def kl_se(self) -> float | None:
        """Standard error of the loss; None where a single document leaves it unknown."""
        return self.measured.kl_se if len(self.measured.documents) > 1 else None


@dataclass(frozen=True)
class Front:
    """Plans that were measured on the same tokens, so that their losses compare; ascending bytes."""

    split: str
    protocol: str
    tokens: int
    documents: int
    reference_perplexity: float
    rows: tuple[PlanRow, ...]

    def find(self, digest: str | None) -> PlanRow | None:
        """Return the row of a plan, or None where it was not measured here."""
        return next((row for row in self.rows if row.digest == digest), None)


class Rows:
    """Makes rows of measurements: everything about a plan that is not measured.

    Args:
        plans: by digest.
        space: of the run, where it is known yet.
        result: of the run, likewise.
        predictions: losses under the loss model by digest, nats per token.
        baselines: plans that are baselines, with their kinds and labels.
    """

    def __init__(
        self,
        plans: Mapping[str, StoredPlan],
        space: SpaceFacts | None,
        result: Result | None,
        predictions: Mapping[str, float],
        baselines: Sequence[Mapping[str, Any]],
    ) -> None:
        self._plans, self._space = plans, space
        self._result = result or Result()
        self._baselines = {entry["digest"]: entry for entry in baselines}
        self._predictions = predictions

    def label(self, digest: str) -> tuple[str, str]:
        """Return what a plan is called, and its kind."""
        baseline = self._baselines.get(digest, {})
        kind = baseline["kind"] if baseline.get("kind") in BASELINES else "searched"
        return str(baseline.get("label") or self._plans[digest].source), kind

    def row(self, measured: Measurement) -> PlanRow:
        """Return the row of a plan that was measured."""
        plan = self._plans[measured.plan]
        label, kind = self.label(measured.plan)
        weights = plan.bytes - plan.cache_bytes
        return PlanRow(
            digest=measured.plan,
            label=label,
            kind=kind,
            bytes=plan.bytes,
            effective_bits=self._space.effective_bits(weights) if self._space else None,
            predicted=self._predictions.get(measured.plan),
            measured=measured,
            cache_bytes=plan.cache_bytes,
            chosen=measured.plan == self._result.chosen,
            offered=measured.plan == self._result.offered,
            best_baseline=measured.plan == self._result.best_baseline,
        )


def fronts_of(measurements: Iterable[Measurement], rows: Rows) -> tuple[Front, ...]:
    """Return one front per split and set of tokens, the most trustworthy first."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measured in measurements:
        if measured.split in SPLITS:  # others serve proxies and probes, where plans are partial or random
            groups.setdefault((measured.split, measured.protocol), []).append(measured)
    fronts = [_front([rows.row(measured) for measured in group]) for group in groups.values()]
    return tuple(sorted(fronts, key=lambda front: (SPLITS.index(front.split), -front.tokens, front.protocol)))


def _front(rows: list[PlanRow]) -> Front:
    first = rows[0].measured
    chosen = next((row.measured for row in rows if row.chosen), None)
    rows = sorted(rows, key=lambda row: (row.bytes, row.measured.kl))
    marked = [
        replace(
            row,
            dominated=any(_dominates(other, row) for other in rows),
            versus_chosen=compare(row.measured, chosen) if chosen and not row.chosen else None,
        )
        for row in rows
    ]
    return Front(
        first.split,
        first.protocol,
        first.tokens,
        len(first.documents),
        first.reference_perplexity,
        tuple(marked),
    )


def _dominates(first: PlanRow, second: PlanRow) -> bool:
    a, b = (first.bytes, first.measured.kl), (second.bytes, second.measured.kl)
    return a[0] <= b[0] and a[1] <= b[1] and a != b
