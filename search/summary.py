"""Everything that a report, the command line or a user interface shows of a run, from its store alone.

A run that is still under way lacks what later stages write; those parts are None or empty here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from tightfit.search.fronts import BASELINES, SPLITS, Front, PlanRow, Rows, fronts_of
from tightfit.search.hardware import TIMES, SpeedRow, speed_rows
from tightfit.search.maps import MemoryPart, SiteMap, memory_parts, plan_map, sensitivity_map
from tightfit.search.memory_use import MemoryUse, memory_use
from tightfit.search.probes import Probes, read_probes
from tightfit.search.records import Event
from tightfit.search.spending import Spent, spend
from tightfit.search.store import Store

__all__ = ["BASELINES", "SPLITS", "Front", "PlanRow", "Summary", "summarize"]


@dataclass(frozen=True)
class Summary:
    """A run as people see it.

    Attributes:
        name: name of the run's folder.
        stage: the stage that the run was last heard of in.
        limit: the budget in bytes of weights, and of KV caches where plans decide about them; ``budget`` is
            what was asked for.
        predicted: the exact front over the loss model, ascending in bytes.
        fronts: measured plans, one front per split and set of tokens, the most trustworthy first.
        estimate_seconds: cost estimate made before the run.
            link, variance, band, sensing: the fits, as their makers stored them.
        reliability: plans that no fit has seen, from the certificates.
        speeds: plans that were run in the tool they are for, the baseline of all ratios first.
        latency: tables of times by phase, as they were fitted.
        reach: whether bounds on speed can be kept, and how far plans come, in words.
        beside: what running a plan takes beside its bytes, ``spent`` what the plan to use and the best
            uniform one spend on what, ``probes`` what their caches forget and ``pairs`` the fit of what a
            block loses jointly; None where plans do not decide about KV caches.
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
    beside: MemoryUse | None = None
    spent: Spent | None = None
    probes: Probes | None = None
    pairs: Mapping[str, Any] | None = None

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
    rows = Rows(plans, space, result, predictions, store.get("baselines", []))
    measurements, link, settings = store.measurements(), store.get_fit("link"), store.get("settings")
    fronts, limit = fronts_of(measurements, rows), budget.get("limit")
    beside = memory_use(store.get("space"), settings)
    variance, band = store.get_fit("certificate_variance"), store.get_fit("certificate_band")
    return Summary(
        name=store.path.resolve().parent.name,
        stage=events[-1].stage if events else None,
        model=ModelFacts.read(store.get("model")),
        space=space,
        text=TextFacts.read(store.get("text")),
        limit=limit,
        budget=budget.get("text"),
        settings=settings,
        solution=solution,
        predicted=tuple(sorted(points, key=lambda point: point.bytes)),
        fronts=fronts,
        result=result,
        sensitivity=sensitivity_map(sites, decisions, store.scores, final.plan if final else None),
        layout=plan_map(sites, decisions, final.plan) if final else None,
        memory=memory_parts(decisions, space.fixed, final.plan if final else None) if space else (),
        forward_tokens=cost.get("forward_tokens", {}),
        timing=store.get("timing", {}),
        estimate_seconds=cost.get("estimate_seconds"),
        peak_memory=store.get("peak_memory"),
        link=link,
        variance=variance,
        band=band,
        sensing=store.get_fit("sensing"),
        reliability=_reliability(variance, band),
        exploration=_exploration(store, events),
        speeds=speed_rows(store, {d: rows.label(d) for d in plans}) if store.get_fit("hardware") else (),
        reach=store.get("speed_reach"),
        latency={phase: data for phase in TIMES if (data := store.get_fit(f"latency_{phase}"))},
        beside=beside,
        spent=spend(decisions, space.fixed, link, final.plan, fronts, limit, plans)
        if space and beside and final
        else None,
        probes=read_probes(measurements, store.get("probes"), result, fronts, beside.vocabulary)
        if beside
        else None,
        pairs=store.get_fit("pairs"),
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
