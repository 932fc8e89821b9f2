"""Explore: let every agent propose plans, and measure them on the selection text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightfit.proxies.additive import LinkAdditive
from tightfit.search.agents import Proposal, Task, get_agent
from tightfit.search.stages.prepare import Bench
from tightfit.workers.measurement import Measurement

# Agents that propose baselines.
_ALWAYS = ("uniform", "mix")
_BASELINES = 6
_ALL = 10_000


@dataclass(frozen=True)
class Candidate:
    """A proposal and its loss on the selection text."""

    proposal: Proposal
    measured: Measurement


def explore(bench: Bench, task: Task, model: LinkAdditive) -> list[Candidate]:
    """Return every proposal, measured, the best first. Uniform plans always take part."""
    proposals = _proposals(bench, task, model)
    known = {row["digest"]: row for row in bench.store.get("baselines", [])}
    known.update({p.plan.digest: p.to_dict() for p in proposals if p.kind != "searched"})
    bench.store.put("baselines", list(known.values()))
    predictions = model.predict(np.array([p.levels for p in proposals]))
    digests = [p.plan.digest for p in proposals]
    bench.store.put("predicted", dict(zip(digests, map(float, predictions), strict=True)))
    candidates = []
    with bench.progress.stage("explore", "measuring proposed plans") as tick:
        for done, proposal in enumerate(proposals, 1):
            measured = bench.archive.measure(proposal.plan, "selection", proposal.label)
            candidates.append(Candidate(proposal, measured))
            tick(done, len(proposals))
    return sorted(candidates, key=lambda c: (c.measured.kl, c.proposal.plan.digest))


def _proposals(bench: Bench, task: Task, model: LinkAdditive) -> list[Proposal]:
    """Return what all agents propose, each plan once. Baselines take part whoever is listed.

    Baselines are many where a space has many families of formats. All of them are considered; the
    ones with the least predicted loss are measured, as many as there may be finalists and at least
    :data:`_BASELINES` of each kind, so that a search never competes with a poor choice of baselines.
    """
    count = bench.settings.search.finalists
    found: dict[str, Proposal] = {}
    for name in dict.fromkeys([*_ALWAYS, *bench.settings.search.agents]):
        proposals = get_agent(name).propose(task, _ALL if name in _ALWAYS else count)
        if name in _ALWAYS and proposals:
            predicted = model.predict(np.array([p.levels for p in proposals]))
            order = np.argsort(predicted, kind="stable")[: max(count, _BASELINES)]
            proposals = [proposals[i] for i in order]
        for proposal in proposals:
            found.setdefault(proposal.plan.digest, proposal)
    return list(found.values())
