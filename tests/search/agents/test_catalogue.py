"""What holds for every agent: a new one is tested by its line in the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.search.agents.simulation import additive, simulate

from tightfit.search.agents import AGENTS, History, Mode, Task, get_agent
from tightfit.spaces import InputError, WeightOption

KINDS = {"uniform": "uniform", "mix": "mix"}
"""Kinds of the agents whose plans are baselines; all others search."""

agents = pytest.mark.parametrize("name", AGENTS)


@agents
def test_every_proposal_keeps_the_budget_and_covers_every_decision(name: str, task: Task) -> None:
    for proposal in get_agent(name).propose(task, History(), 6):
        assert proposal.bytes == task.space.weight_bytes(proposal.plan) <= task.limit
        assert proposal.levels == task.space.levels(proposal.plan)
        assert [decision for decision, _ in proposal.plan.choices] == [d.name for d in task.space.decisions]
        assert proposal.kind == KINDS.get(name, "searched")
        assert proposal.label


@agents
def test_sites_that_run_as_one_kernel_keep_one_option(name: str, task: Task) -> None:
    for proposal in get_agent(name).propose(task, History(), 6):
        options = task.space.site_options(proposal.plan)
        for _, modules in task.space.target.fused:
            for layer in range(task.space.geometry.layers):
                members = [s for s in options if s.split(".")[1:2] == [str(layer)] and s.endswith(modules)]
                assert len(members) == len(modules)
                assert len({options[site] for site in members}) == 1


@agents
def test_pinned_and_excluded_sites_stay_as_they_are(name: str, task_of: Callable[..., Task]) -> None:
    task = task_of("pinned", 0.4)
    proposals = get_agent(name).propose(task, History(), 6)
    assert proposals
    for proposal in proposals:
        options = task.space.site_options(proposal.plan)
        assert options["embed"] == WeightOption(8, 64, "integer")  # the tied head's pin
        assert options["layers.1.attn.q_proj"] == WeightOption(4, 32, "none")  # fused with the pinned one
        assert {o for site, o in options.items() if site.startswith("layers.0.")} == {WeightOption(16)}
        assert {o.bits for site, o in options.items() if site.startswith("layers.2.mlp.")} <= {8, 16}


@agents
def test_proposals_are_distinct_and_at_most_as_many_as_asked(name: str, task: Task) -> None:
    for count in (1, 3, 40):
        digests = [proposal.plan.digest for proposal in get_agent(name).propose(task, History(), count)]
        assert len(set(digests)) == len(digests) <= count


@agents
def test_the_same_task_gets_the_same_proposals_and_a_smaller_count_the_first_of_them(
    name: str, task: Task
) -> None:
    proposals = get_agent(name).propose(task, History(), 6)
    assert get_agent(name).propose(task, History(), 6) == proposals
    assert get_agent(name).propose(task, History(), 1) == proposals[:1]


@pytest.mark.parametrize("name", [name for name in AGENTS if name != "mix"])
def test_whoever_needs_no_second_width_always_proposes_something(name: str, task: Task) -> None:
    assert get_agent(name).propose(task, History(), 1)


@agents
def test_where_one_plan_fits_nothing_else_is_proposed(name: str, task_of: Callable[..., Task]) -> None:
    task = task_of("fused", 0)
    floor = (0,) * len(task.space.decisions)
    assert {proposal.levels for proposal in get_agent(name).propose(task, History(), 6)} <= {floor}


def seconds_of(task: Task, levels: tuple[int, ...]) -> float:
    """Seconds of a plan under the only side of a task, counted anew."""
    (side,) = task.sides
    return side.fixed + sum(float(side.values[i][level]) for i, level in enumerate(levels))


@agents
def test_every_proposal_keeps_a_bound_that_is_not_monotone_in_bits(name: str, timed_task: Task) -> None:
    task = timed_task
    proposals = get_agent(name).propose(task, History(), 6)
    assert proposals or name == "mix"
    assert get_agent(name).propose(task, History(), 6) == proposals
    assert len({p.plan.digest for p in proposals}) == len(proposals) <= 6
    for proposal in proposals:
        assert proposal.bytes <= task.limit
        assert seconds_of(task, proposal.levels) <= task.sides[0].limit * (1 + 1e-8)
        assert proposal.kind == KINDS.get(name, "searched")


@pytest.mark.parametrize("name", [name for name in AGENTS if get_agent(name).iterative])
@pytest.mark.parametrize("mode", ["budget", "front"])
def test_whoever_learns_keeps_every_side_in_later_rounds(
    name: str, mode: Mode, task_of: Callable[..., Task], with_side: Callable[..., Task]
) -> None:
    if (name, mode) == ("optuna:cmaes", "front"):
        pytest.skip("refused: it cannot search a front")
    task = replace(with_side(task_of("conv1d", 0.6)), mode=mode)
    truth = task.losses["calibrated"]  # the trusted table is wrong, so there is something to learn

    def sensitivity(levels: tuple[int, ...]) -> list[np.ndarray]:
        return [row - row[level] for row, level in zip(truth, levels, strict=True)]

    task = replace(task, sensitivity=sensitivity)
    history = simulate(name, task, additive(replace(task, losses={"true": truth})), rounds=3, batch=6)
    assert history.rounds(name) >= 2
    for trial in history.trials:
        assert trial.proposal.bytes <= task.limit
        assert seconds_of(task, trial.proposal.levels) <= task.sides[0].limit * (1 + 1e-8)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("exakt", " Did you mean 'exact'?"), ("unifrom", " Did you mean 'uniform'?"), ("rl", "")],
)
def test_an_unknown_agent_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(InputError) as refusal:
        get_agent(name)
    assert str(refusal.value) == f"no agent is called {name!r} (agents: {', '.join(AGENTS)}).{hint}"


def test_a_catalogue_entry_is_a_frozen_dataclass_without_state() -> None:
    for name in AGENTS:
        agent: Any = get_agent(name)
        assert agent == get_agent(name)
        assert hash(agent) == hash(get_agent(name))
