"""What one browser tab looks at, and the plan that this comes down to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from tightfit.search.resolve import Resolved, resolve, size_budget
from tightfit.search.speed_points import Phase
from tightfit.search.store import Store
from tightfit.search.summary import PlanRow
from tightfit.spaces import Decision, format_size
from tightfit.ui.plan_panels import Shown
from tightfit.ui.runs import Run, Version, version


@dataclass(frozen=True)
class View:
    """What a tab looks at.

    Attributes:
        folder: the run; None where there is none.
        digest: a stored plan that was picked; None follows the run's own best plan.
        budget: bytes that a plan is solved for; it takes the place of ``digest``.
        front: key of the front that is shown; None shows the most trustworthy one.
        decision: the matrix or cache that was picked; None shows the most sensitive one.
        phase: what the page of speeds shows: ``generate`` or ``prompt``.
        seen: what the tab shows; the same again needs no drawing.
        sent: fingerprint of what each component was last given, by its id.
    """

    folder: Path | None = None
    digest: str | None = None
    budget: int | None = None
    front: str | None = None
    decision: str | None = None
    phase: Phase = "generate"
    seen: object = None
    sent: Mapping[int, str] = field(default_factory=dict)

    def of(self, folder: Path | None) -> View:
        """Return the view of another run, from its start."""
        return View(folder=folder, sent=self.sent)

    def picking(self, digest: str) -> View:
        """Return the view after a stored plan was picked."""
        return replace(self, digest=digest, budget=None)

    def solving(self, budget: int) -> View:
        """Return the view after a budget was picked."""
        return replace(self, digest=None, budget=budget)


def shown_plan(run: Run, view: View) -> Shown | None:
    """Return the plan that a view comes down to: the budget's, the one picked, or the run's best so far."""
    if view.budget is not None and run.summary.link is not None:
        answer = solved(run.folder, version(run.folder), view.budget)
        label = f"solved for {format_size(view.budget)}"
        return Shown(answer.plan, answer.size, label, answer.loss, answer, view.budget, answer.cache)
    best, solution = run.best, run.summary.solution
    digests = (view.digest, best.digest if best else None, solution.digest if solution else None)
    digest = next((digest for digest in digests if digest in run.plans), None)
    if digest is None:
        return None
    stored = run.plans[digest]
    rows = [row for front in run.summary.fronts if (row := front.find(digest))]
    label = _label(rows[0]) if rows else f"proposed by {stored.source}"
    loss = rows[0].predicted if rows else _predicted(run, digest)
    return Shown(stored.plan, stored.bytes, label, loss, cache=stored.cache_bytes)


def _label(row: PlanRow) -> str:
    return f"proposed by {row.label}" if row.kind == "searched" else f"baseline {row.label}"


def _predicted(run: Run, digest: str) -> float | None:
    solution = run.summary.solution
    if solution and solution.digest == digest:
        return solution.loss_predicted
    return next((point.loss for point in run.summary.predicted if point.digest == digest), None)


@lru_cache(maxsize=64)
def solved(folder: Path, _version: Version, budget: int) -> Resolved:
    """Return the best plan for a budget in bytes of all that the run decides about, from the stored scores.

    Raises:
        InputError: the run has no loss model yet.
        InfeasibleError: the budget is below the floor.
    """
    with Store.open(folder, mode="ro") as store:
        return resolve(store, size_budget(store, budget))


def shown_decision(run: Run, view: View) -> Decision | None:
    """Return the decision that a view comes down to: the one picked, or the most sensitive with a choice."""
    sites, free = run.summary.sensitivity, {d.name for d in run.decisions if len(d.options) > 1}
    name = view.decision
    if name is None and sites:
        scored = [cell for cell in sites.all() if cell.loss is not None and cell.decision in free]
        name = max(scored, key=lambda cell: cell.loss or 0.0).decision if scored else None
    return next((decision for decision in run.decisions if decision.name == name), None)
