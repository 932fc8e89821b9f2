"""Explore: let every agent propose plans, and measure them on the selection text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightfit.proxies.additive import LinkAdditive
from tightfit.search.agents import Proposal, Task, get_agent
from tightfit.search.stages.prepare import Bench
from tightfit.workers.measurement import Measurement


@dataclass(frozen=True)
class Candidate:
    """A proposal and its loss on the selection text."""

    proposal: Proposal
    measured: Measurement


def explore(bench: Bench, task: Task, model: LinkAdditive) -> list[Candidate]:
    """Return every proposal, measured, the best first. Uniform plans always take part."""
    count = bench.settings.search.finalists
    proposals: dict[str, Proposal] = {}
    for name in dict.fromkeys(["uniform", *bench.settings.search.agents]):
        for proposal in get_agent(name).propose(task, count):
            proposals.setdefault(proposal.plan.digest, proposal)
    baselines = [p.to_dict() for p in proposals.values() if p.kind != "searched"]
    bench.store.put("baselines", baselines)
    predictions = model.predict(np.array([p.levels for p in proposals.values()]))
    bench.store.put("predicted", dict(zip(proposals, map(float, predictions), strict=True)))
    candidates = []
    with bench.progress.stage("explore", "measuring proposed plans") as tick:
        for done, proposal in enumerate(proposals.values(), 1):
            measured = bench.archive.measure(proposal.plan, "selection", proposal.label)
            candidates.append(Candidate(proposal, measured))
            tick(done, len(proposals))
    return sorted(candidates, key=lambda c: (c.measured.kl, c.proposal.plan.digest))
