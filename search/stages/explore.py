"""Explore: let every agent propose plans, and measure them on the selection text.

Agents that need no measurements propose once. The others take turns, a batch at a time, until they have
used up the evaluations or the time of the run, or have nothing new to propose. What was proposed is
stored before it is measured, and an agent knows nothing but this history: a run that is killed goes on
where it was, with the same plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tightfit.search.agents import Agent, History, Proposal, Task, get_agent
from tightfit.search.loss_models import LossModel
from tightfit.search.stages.prepare import Bench
from tightfit.search.trials import read_history, record
from tightfit.spaces import InfeasibleError
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


def explore(bench: Bench, task: Task, model: LossModel) -> list[Candidate]:
    """Return every proposal that could be measured, the best first. Uniform plans always take part.

    Raises:
        InfeasibleError: no proposed plan has a loss that can be measured.
    """
    names = list(dict.fromkeys([*_ALWAYS, *bench.settings.search.agents]))
    agents = {name: get_agent(name) for name in names}
    _propose_once(bench, task, model, agents)
    history = _note(bench, model, _measured(bench, History(), "measuring proposed plans"))
    turns = [name for name in names if agents[name].iterative]
    idle = 0  # agents that had nothing new, one after the other; nobody has once all of them had a turn
    while idle < len(turns):
        left = _evaluations_left(bench, history, agents)
        if left <= 0 or _out_of_time(bench):
            break
        name = _next(turns, history, idle)
        proposals = agents[name].propose(task, history, min(bench.settings.search.batch, left))
        new = [p for p in proposals if p.plan.digest not in history.seen]
        if not new:
            idle += 1
            continue
        idle = 0
        turn = history.rounds(name)
        record(bench.archive, name, turn, new)
        history = _note(bench, model, _measured(bench, history, f"{name}, round {turn + 1}"))
        facts = {
            "agent": name,
            "round": turn,
            "plans": len(new),
            "duplicates": len(proposals) - len(new),
            "best": history.measured[0].loss,
        }
        bench.store.add_event("explore", "round", facts)
        bench.book()
    return _candidates(history)


def _next(turns: Sequence[str], history: History, idle: int) -> str:
    """Whose turn it is, by the history alone: whoever comes after the last one, but for the idle ones."""
    last = next((trial.agent for trial in reversed(history.trials) if trial.agent in turns), turns[-1])
    return turns[(turns.index(last) + 1 + idle) % len(turns)]


def _propose_once(bench: Bench, task: Task, model: LossModel, agents: dict[str, Agent]) -> None:
    """Store the proposals of every agent that learns nothing, unless an earlier process did.

    Baselines are many where a space has many families of formats. All of them are considered; the
    ones with the least predicted loss are measured, as many as there may be finalists and at least
    :data:`_BASELINES` of each kind, so that a search never competes with a poor choice of baselines.
    """
    count = bench.settings.search.finalists
    done = {trial.agent for trial in bench.store.trials()}
    for name, agent in agents.items():
        if agent.iterative or name in done:
            continue
        proposals = agent.propose(task, History(), _ALL if name in _ALWAYS else count)
        if name in _ALWAYS and proposals:
            order = np.argsort(_predict(model, proposals), kind="stable")[: max(count, _BASELINES)]
            proposals = [proposals[i] for i in order]
        record(bench.archive, name, 0, proposals)


def _measured(bench: Bench, known: History, what: str) -> History:
    with bench.progress.stage("explore", what) as tick:
        return read_history(bench.archive, known, tick)


def _note(bench: Bench, model: LossModel, history: History) -> History:
    """Write into the store what people see of the history: baselines, predictions, the best so far."""
    proposals = {trial.proposal.plan.digest: trial.proposal for trial in reversed(history.trials)}
    baselines = {row["digest"]: row for row in bench.store.get("baselines", [])}
    baselines.update({p.plan.digest: p.to_dict() for p in proposals.values() if p.kind != "searched"})
    bench.store.put("baselines", list(baselines.values()))
    predicted = _predict(model, list(proposals.values()))
    bench.store.put("predicted", dict(zip(proposals, predicted.tolist(), strict=True)))
    if not history.measured:
        raise InfeasibleError(
            f"none of the {len(history.failed)} proposed plans has a loss that can be measured "
            f"({bench.store.failures()[-1].reason}): allow more bits or a larger budget."
        )
    best = history.measured[0]
    bench.store.put("best", {"digest": best.proposal.plan.digest, "loss": best.loss})
    return history


def _predict(model: LossModel, proposals: Sequence[Proposal]) -> np.ndarray:
    if not proposals:
        return np.zeros(0)
    return model.predict(np.array([proposal.levels for proposal in proposals]))


def _evaluations_left(bench: Bench, history: History, agents: dict[str, Agent]) -> int:
    """Evaluations that agents may still use; a plan counts for whoever proposed it first."""
    first: dict[str, str] = {}
    for trial in history.trials:
        first.setdefault(trial.proposal.plan.digest, trial.agent)
    iterative = {name for name, agent in agents.items() if agent.iterative}
    return bench.settings.search.evaluations - sum(name in iterative for name in first.values())


def _out_of_time(bench: Bench) -> bool:
    bound = bench.settings.search.time
    return bound is not None and bench.spent > bound


def _candidates(history: History) -> list[Candidate]:
    return [
        Candidate(trial.proposal, trial.measured) for trial in history.measured if trial.measured is not None
    ]
