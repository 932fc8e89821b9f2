"""Which plans are drawn by their speed: those that were run and whose loss was measured on one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.proxies.latency import Phase
from tightfit.search.hardware import Bound, SpeedRow, bounds_of
from tightfit.search.settings import Settings
from tightfit.search.summary import Front, PlanRow, Summary
from tightfit.workers.llamacpp.speed import Estimate, Quantity, Speed

__all__ = [
    "MEASURES",
    "Measure",
    "Phase",
    "Point",
    "asked_bounds",
    "keeps",
    "points_of",
    "predicted_rows",
    "speed_front",
]


@dataclass(frozen=True)
class Measure:
    """What an axis of speed shows.

    Attributes:
        scale: from the stored unit to the shown one.
        better: where the better plans are, in words.
    """

    title: str
    unit: str
    quantity: Quantity
    scale: float
    better: str


MEASURES: dict[Phase, Measure] = {
    "generate": Measure("generated tokens/s", "tokens/s", "generation_rate", 1.0, "right"),
    "prompt": Measure("time to the first token, ms", "ms to the first token", "first_token", 1000.0, "left"),
}
"""What is drawn of each phase."""


@dataclass(frozen=True)
class Point:
    """A plan that was run and measured."""

    run: SpeedRow
    row: PlanRow
    speed: Speed
    at: Estimate

    @property
    def digest(self) -> str:
        """Of the plan."""
        return self.run.digest


def asked_bounds(summary: Summary) -> list[Bound]:
    """Return the bounds on speed that a run was given."""
    budget = (summary.settings or {}).get("budget", {})
    if budget.get("tokens_per_second") is None and budget.get("latency") is None:
        return []
    return bounds_of(Settings.from_dict(dict(summary.settings or {})))


def keeps(bounds: Sequence[Bound], speed: Speed) -> bool:
    """Say whether the medians of a plan keep all bounds."""
    return not any(bound.missed(speed) for bound in bounds)


def speed_front(summary: Summary) -> Front | None:
    """Return the most trustworthy front that holds two or more of the plans that were run."""
    run = {row.digest for row in summary.speeds if isinstance(row.speed, Speed)}
    least = min(2, len(run))
    return next((f for f in summary.fronts if len(run & {row.digest for row in f.rows}) >= least), None)


def points_of(summary: Summary, front: Front | None, phase: Phase) -> list[Point]:
    """Return the plans that were run and whose loss was measured on a text."""
    measure, points = MEASURES[phase], []
    for run in summary.speeds:
        row = front.find(run.digest) if front else None
        if row and isinstance(run.speed, Speed):
            found = run.speed.estimate(measure.quantity)
            at = Estimate(*(measure.scale * x for x in (found.median, found.low, found.high)))
            points.append(Point(run, row, run.speed, at))
    return points


def predicted_rows(summary: Summary) -> list[SpeedRow]:
    """Return the plans whose speed was predicted before they were run, all but the baseline."""
    return [row for row in summary.speeds[1:] if "generate" in row.predicted and "generate" in row.measured]
