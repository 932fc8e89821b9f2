"""Everything that a report, the command line or a user interface shows of a run, from its store alone.

A run that is still under way lacks what later stages write; those parts are None or empty here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tightfit.search.facts import (
    Exploration,
    ModelFacts,
    PredictedPoint,
    ReliabilityPoint,
    Result,
    SolutionFacts,
    SpaceFacts,
    TextFacts,
)
from tightfit.search.hardware import TIMES, SpeedRow, speed_rows
from tightfit.search.maps import MemoryPart, SiteMap, memory_parts, plan_map, sensitivity_map
from tightfit.search.records import Event, StoredPlan
from tightfit.search.store import Store
from tightfit.workers.measurement import Measurement, Paired, compare

SPLITS = ("holdout", "validation", "selection")
"""Parts of the text, the most trustworthy first: whatever a choice looked at flatters that choice."""


BASELINES = ("uniform", "mix")
"""Kinds of plan that every search must beat."""


@dataclass(frozen=True)
class PlanRow:
    """One measured plan, as a row of a table and a point of a figure.

    Attributes:
        label: where it came from, in words: ``exact``, ``uniform 4b-g64-int``.
        kind: ``searched``, ``uniform`` or ``mix``.
        predicted: loss under the loss model, nats per token.
        measured: what it measured.
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


@dataclass(frozen=True)
class Summary:
    """A run as people see it.

    Attributes:
        name: name of the run's folder.
        stage: the stage that the run was last heard of in.
        limit: the budget in weight bytes, and ``budget`` as it was asked for.
        predicted: the exact front over the loss model, ascending in bytes.
        fronts: measured plans, one front per split and set of tokens, the most trustworthy first.
        estimate_seconds: cost estimate made before the run.
            link, variance, band, sensing: the fits, as their makers stored them.
        reliability: plans that no fit has seen, from the certificates.
        speeds: plans that were run in the tool they are for, the baseline of all ratios first.
        latency: tables of times by phase, as they were fitted.
        reach: whether bounds on speed can be kept, and how far plans come, in words.
    """

    name: str
    stage: str | None
    model: ModelFacts | None
    space: SpaceFacts | None
    text: TextFacts | None
    limit: int | None
    budget: str | None
    settings: Mapping[str, Any] | None
    solution: SolutionFacts | None
    predicted: tuple[PredictedPoint, ...]
    fronts: tuple[Front, ...]
    result: Result | None
    sensitivity: SiteMap | None
    layout: SiteMap | None
    memory: tuple[MemoryPart, ...]
    forward_tokens: Mapping[str, int]
    timing: Mapping[str, float]
    estimate_seconds: float | None
    peak_memory: int | None
    link: Mapping[str, Any] | None
    variance: Mapping[str, Any] | None
    band: Mapping[str, Any] | None
    sensing: Mapping[str, Any] | None
    reliability: tuple[ReliabilityPoint, ...]
    exploration: Exploration | None = None
    speeds: tuple[SpeedRow, ...] = ()
    latency: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reach: Mapping[str, Any] | None = None

    @property
    def front(self) -> Front | None:
        """The most trustworthy front, the one to show first."""
        return self.fronts[0] if self.fronts else None

    @property
    def chosen(self) -> PlanRow | None:
        """The plan that the search chose, on the most trustworthy text it was measured on."""
        return self._row(self.result.chosen if self.result else None)

    @property
    def final(self) -> PlanRow | None:
        """The plan to use, on the same terms: the chosen one, or a baseline that turned out better."""
        return self._row(self.result.final if self.result else None)

    @property
    def baseline(self) -> PlanRow | None:
        """The best baseline, on the same terms."""
        return self._row(self.result.best_baseline if self.result else None)

    def _row(self, digest: str | None) -> PlanRow | None:
        return next((row for front in self.fronts if (row := front.find(digest))), None)


def summarize(store: Store) -> Summary:
    """Read a run, at one moment even while it is being written."""
    with store.snapshot():
        return _summarize(store)


def _summarize(store: Store) -> Summary:
    space, result = SpaceFacts.read(store.get("space")), Result.read(store.get("result"))
    solution = SolutionFacts.read(store.get("solution"))
    points = [point for data in store.get("front", []) if (point := PredictedPoint.read(data))]
    plans, sites, decisions = store.plans(), store.sites(), store.decisions()
    budget, cost, events = store.get("budget", {}), store.get("cost", {}), store.events()
    so_far = store.get("best", {}).get("digest") or (solution.digest if solution else None)
    final = plans.get((result.final if result else None) or so_far or "")
    predictions = {**_predictions(points, solution), **store.get("predicted", {})}
    rows = _Rows(plans, space, result, predictions, store.get("baselines", []))
    variance, band = store.get_fit("certificate_variance"), store.get_fit("certificate_band")
    return Summary(
        name=store.path.resolve().parent.name,
        stage=events[-1].stage if events else None,
        model=ModelFacts.read(store.get("model")),
        space=space,
        text=TextFacts.read(store.get("text")),
        limit=budget.get("limit"),
        budget=budget.get("text"),
        settings=store.get("settings"),
        solution=solution,
        predicted=tuple(sorted(points, key=lambda point: point.bytes)),
        fronts=_fronts(store.measurements(), rows),
        result=result,
        sensitivity=sensitivity_map(sites, decisions, store.scores, final.plan if final else None),
        layout=plan_map(sites, decisions, final.plan) if final else None,
        memory=memory_parts(decisions, space.fixed, final.plan if final else None) if space else (),
        forward_tokens=cost.get("forward_tokens", {}),
        timing=store.get("timing", {}),
        estimate_seconds=cost.get("estimate_seconds"),
        peak_memory=store.get("peak_memory"),
        link=store.get_fit("link"),
        variance=variance,
        band=band,
        sensing=store.get_fit("sensing"),
        reliability=_reliability(variance, band),
        exploration=_exploration(store, events),
        speeds=speed_rows(store, {d: rows.label(d) for d in plans}) if store.get_fit("hardware") else (),
        reach=store.get("speed_reach"),
        latency={phase: data for phase in TIMES if (data := store.get_fit(f"latency_{phase}"))},
    )


def _exploration(store: Store, events: Sequence[Event]) -> Exploration | None:
    trials = store.trials()
    if not trials:
        return None
    rounds = [event.data for event in events if event.kind == "round"]
    return Exploration(
        proposed=len(trials) + sum(data.get("duplicates", 0) for data in rounds),
        distinct=len({trial.plan for trial in trials}),
        turns=len(rounds),
        failures={failure.plan: failure.reason for failure in store.failures()},
        tokens=store.get("work", {}).get("tokens"),
    )


def _predictions(points: Iterable[PredictedPoint], solution: SolutionFacts | None) -> dict[str, float]:
    losses = {point.digest: point.loss for point in points}
    if solution and solution.digest and solution.loss_predicted is not None:
        losses[solution.digest] = solution.loss_predicted
    return losses


def _reliability(*fits: Mapping[str, Any] | None) -> tuple[ReliabilityPoint, ...]:
    stored = [data for fit in fits if fit for data in fit.get("points", [])]
    points = {point.digest: point for data in stored if (point := ReliabilityPoint.read(data))}
    return tuple(points.values())


class _Rows:
    """Makes rows of measurements: everything about a plan that is not measured."""

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
        plan = self._plans[measured.plan]
        label, kind = self.label(measured.plan)
        return PlanRow(
            digest=measured.plan,
            label=label,
            kind=kind,
            bytes=plan.bytes,
            effective_bits=self._space.effective_bits(plan.bytes) if self._space else None,
            predicted=self._predictions.get(measured.plan),
            measured=measured,
            chosen=measured.plan == self._result.chosen,
            offered=measured.plan == self._result.offered,
            best_baseline=measured.plan == self._result.best_baseline,
        )


def _fronts(measurements: Iterable[Measurement], rows: _Rows) -> tuple[Front, ...]:
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measured in measurements:
        if measured.split in SPLITS:  # others serve proxies, where plans are partial or random
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
