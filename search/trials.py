"""The history of a search, kept in the store: what agents proposed, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tightfit.search.agents import History, Proposal, Trial
from tightfit.search.agents.base import Kind
from tightfit.search.archive import Archive
from tightfit.search.progress import Tick
from tightfit.search.records import StoredTrial
from tightfit.workers.measurement import Failure

SPLIT = "selection"


def record(archive: Archive, agent: str, round_: int, proposals: Sequence[Proposal]) -> None:
    """Store one turn of an agent, before any of it is measured: a resumed run asks for it no more."""
    for proposal in proposals:
        size, cache = archive.space.charge(proposal.plan)
        archive.store.add_plan(proposal.plan, size, proposal.label, cache)
    archive.store.add_trials(
        StoredTrial(agent, round_, position, p.plan.digest, p.label, p.kind, dict(p.note))
        for position, p in enumerate(proposals)
    )


def read_history(archive: Archive, known: History, tick: Tick = lambda done, total: None) -> History:
    """Return every stored trial with its outcome; those that have none yet are measured now.

    Args:
        archive: of the run.
        known: what was read before; only later trials are read.
        tick: called with (done, total) as plans are measured.
    """
    store, plans = archive.store, archive.store.plans()
    stored = store.trials()[len(known.trials) :]
    chosen = [plans[trial.plan] for trial in stored]
    outcomes = archive.measure_all([(plan.plan, plan.source) for plan in chosen], SPLIT, tick=tick)
    return known.with_trials(
        Trial(
            trial.agent,
            trial.round,
            Proposal(
                plan.plan,
                archive.space.levels(plan.plan),
                plan.bytes,
                trial.label,
                cast(Kind, trial.kind),
                trial.note,
            ),
            None if isinstance(outcome, Failure) else outcome,
        )
        for trial, plan, outcome in zip(stored, chosen, outcomes, strict=True)
    )
