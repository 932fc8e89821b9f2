from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState
from tests.search.agents.simulation import (
    additive,
    best_loss,
    failing,
    hypervolume,
    interacting,
    measure,
    simulate,
    trial,
)

from tightfit.search.agents import History, Proposal, Task, Trial, get_agent
from tightfit.search.agents.optuna_agents import POPULATION, SAMPLERS, check_mode
from tightfit.search.agents.optuna_study import LiveStudy, quiet
from tightfit.search.agents.projection import project
from tightfit.spaces import InputError, WeightRules, build_space, get_target, read_geometry

NAMES = [f"optuna:{name}" for name in (*SAMPLERS, "cmaes")]
FRONT = [name for name in NAMES if name != "optuna:cmaes"]
CONFIG = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def small(
    layers: int = 1, share: float = 0.4, mode: Any = "budget", bits: Sequence[int] = (2, 3, 4, 5, 6)
) -> Task:
    """Few decisions with many options, and losses that are off by half for the single option."""
    geometry = read_geometry({**CONFIG, "num_hidden_layers": layers})
    space = build_space(geometry, WeightRules(bits=tuple(bits), groups=(32,)), get_target("any"))
    losses = []
    for index, decision in enumerate(space.decisions):
        rng = np.random.default_rng([31, index])
        width = 8 * np.array(decision.costs) / decision.weights
        losses.append(rng.lognormal(0, 0.7) * 4.0**-width * rng.lognormal(0, 0.2, len(width)))
    limit = int(space.floor + share * (space.ceiling - space.floor))
    return Task(space, limit, {"fitted": losses}, mode=mode)


@dataclass(frozen=True)
class Chance:
    """Uniformly random plans, projected."""

    iterative: ClassVar[bool] = True

    def propose(self, task: Task, history: History, count: int) -> list[Proposal]:
        found: dict[str, Proposal] = {}
        rng = np.random.default_rng([task.seed, 1, history.rounds("chance")])
        while len(found) < count:
            levels = [int(rng.integers(len(d.options))) for d in task.space.decisions]
            proposal = task.proposal(project(task, levels), "chance")
            if proposal.plan.digest not in history.seen:
                found.setdefault(proposal.plan.digest, proposal)
        return list(found.values())


def stored(history: History) -> History:
    """The history as it comes back from a store: notes have been JSON."""
    return History(
        tuple(
            replace(t, proposal=replace(t.proposal, note=json.loads(json.dumps(t.proposal.note))))
            for t in history.trials
        )
    )


# A function of task, history and count


@pytest.mark.parametrize("name", NAMES)
def test_a_search_that_is_taken_up_again_goes_on_as_if_nothing_had_been(name: str) -> None:
    task = small()
    loss, fail = interacting(task, 0.5, misjudged=0.5), failing(0.2)
    whole = simulate(name, task, loss, 4, 12, fail)
    half = stored(simulate(name, task, loss, 2, 12, fail))
    assert simulate(name, task, loss, 2, 12, fail, start=half) == whole
    assert len({t.proposal.plan.digest for t in whole.trials}) == len(whole.trials) == 48


RESUME = """
import sys
sys.path.insert(0, {root!r})
from tests.search.agents.test_optuna_agents import NAMES, interacting, simulate, small
from tightfit.search.agents import get_agent
task = small()
start = simulate("optuna:nsga2", task, interacting(task, 0.5, misjudged=0.5), 2, 20)
print({{name: [p.levels for p in get_agent(name).propose(task, start, 4)] for name in NAMES}})
"""


def test_another_process_proposes_the_same(request: pytest.FixtureRequest) -> None:
    code = RESUME.format(root=str(request.config.rootpath))
    answers = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert answers[0] == answers[1]
    assert answers[0].count("optuna:") == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_rounds_and_seeds_differ_and_a_smaller_count_gets_the_first_ones(name: str) -> None:
    task = small(layers=2)
    history = simulate("optuna:nsga2", task, additive(task), 1, 30)
    agent = get_agent(name)
    proposals = agent.propose(task, history, 5)
    assert agent.propose(task, history, 2) == proposals[:2]
    assert agent.propose(replace(task, seed=1), history, 5) != proposals
    later = history.with_trials([Trial(name, 5, history.trials[0].proposal, history.trials[0].measured)])
    assert agent.propose(task, later, 5) != proposals


def test_listing_agents_does_not_import_optuna() -> None:
    heavy = "[m for m in ('optuna', 'cmaes', 'torch') if m in sys.modules]"
    code = f"import sys, tightfit.search.agents; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_logged_or_warned_of(
    name: str, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    task = small()
    before = optuna.logging.get_verbosity()
    simulate(name, task, additive(task), 3, 12)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr().err == ""
    assert not recwarn.list


# What is proposed


@pytest.mark.parametrize("name", NAMES)
def test_the_first_round_starts_from_the_optima_that_are_not_known(
    name: str, task_of: Callable[..., Task]
) -> None:
    task = task_of("fused", 0.4)
    optima = [p.levels for p in get_agent("exact").propose(task, History(), 2)]
    first = get_agent(name).propose(task, History(), 6)
    assert [p.levels for p in first[:2]] == optima
    assert {p.levels for p in first[2:]}.isdisjoint(optima)
    known = History(tuple(trial("exact", 0, p, additive(task)) for p in first[:2]))
    assert {p.levels for p in get_agent(name).propose(task, known, 6)}.isdisjoint(optima)


def test_for_a_front_the_optima_of_several_sizes_come_first(task_of: Callable[..., Task]) -> None:
    task = replace(task_of("fused", 0.8), mode="front")
    first = [p for p in get_agent("optuna:nsga2").propose(task, History(), 20) if "exact" in p.label]
    sizes = [p.bytes for p in first]
    assert max(sizes) > task.space.floor + 0.7 * (task.limit - task.space.floor)
    assert min(sizes) <= task.space.floor + 0.25 * (task.limit - task.space.floor)
    assert len(first) == 8


@pytest.mark.parametrize("name", NAMES)
def test_a_small_space_is_searched_to_its_end_and_then_nothing_is_proposed(name: str) -> None:
    task = small(share=0.3, bits=(3, 4))
    fitting = {
        levels
        for levels in np.ndindex(*(len(d.options) for d in task.space.decisions))
        if task.space.bytes_of(levels) <= task.limit
    }
    history = simulate(name, task, additive(task), 40, 8)
    found = {t.proposal.levels for t in history.trials}
    assert found <= fitting
    assert len(found) == len(history.trials) >= 0.8 * len(fitting)
    assert get_agent(name).propose(task, history, 8) == []


@pytest.mark.parametrize("name", ["optuna:tpe", "optuna:nsga2", "optuna:nsga3", "optuna:gp", "optuna:cmaes"])
def test_learning_beats_chance(name: str) -> None:
    task = small(layers=2, share=0.25)
    loss = interacting(task, 0.5, misjudged=0.7)
    optimum = trial("exact", 0, get_agent("exact").propose(task, History(), 1)[0], loss)
    rounds = 4 if name == "optuna:gp" else 9
    learnt = simulate(name, task, loss, rounds, 16, start=History((optimum,)))
    chance = simulate(Chance(), task, loss, rounds, 16)
    assert best_loss(learnt) < 0.97 * min(best_loss(chance), loss(optimum.proposal.levels))


@pytest.mark.parametrize("name", ["optuna:nsga2", "optuna:nsga3"])
def test_generations_breed_from_the_best_so_far(name: str) -> None:
    task = small(layers=3, share=1.0)  # without projection
    loss = additive(task)
    history = simulate(Chance(), task, loss, 1, 4 * POPULATION)
    parents = np.array([t.proposal.levels for t in history.measured[:POPULATION]])
    children = get_agent(name).propose(task, History(history.trials).with_trials(_turn(name, history)), 40)
    inherited = [np.mean((np.array(p.levels) == parents).any(axis=0)) for p in children]
    assert np.mean(inherited) > 0.9
    strangers = np.array([t.proposal.levels for t in history.measured[-2 * POPULATION :]])
    assert np.mean([loss(p.levels) for p in children]) < 0.7 * np.mean([loss(s) for s in strangers])


def _turn(name: str, history: History) -> list[Trial]:
    """A first turn of an agent, so that it does not start from the optima."""
    return [replace(history.trials[0], agent=name)]


@pytest.mark.parametrize("name", FRONT)
def test_a_front_is_pushed_on_at_every_size(name: str) -> None:
    task = small(layers=2, share=0.8, mode="front")
    loss = interacting(task, 0.5, misjudged=0.7)
    corner = (float(task.limit), loss([0] * len(task.space.decisions)))
    optima = [p for p in get_agent(name).propose(task, History(), 8) if "exact" in p.label]
    start = History(tuple(trial("exact", 0, p, loss) for p in optima))
    rounds, batch = (2, 8) if name == "optuna:gp" else (6, 12)
    history = simulate(name, task, loss, rounds, batch, start=start)
    assert hypervolume(history, corner) > 1.0005 * hypervolume(start, corner)


def test_cma_es_does_not_search_a_front() -> None:
    with pytest.raises(InputError, match="'optuna:cmaes' minimizes the loss at one budget"):
        check_mode("optuna:cmaes", "front")
    with pytest.raises(InputError, match="cannot search a whole front"):
        get_agent("optuna:cmaes").propose(small(mode="front"), History(), 4)
    for name in FRONT:
        check_mode(name, "front")
        check_mode(name, "budget")


# Failures, and numbers that are none


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("optuna:nsga2", 1000),
        ("optuna:nsga3", 300),
        ("optuna:cmaes", 1000),
        ("optuna:qmc", 300),
        ("optuna:tpe", 50),
        ("optuna:gp", 20),
    ],
)
def test_a_thousand_plans_of_which_a_fifth_fails(name: str, own: int) -> None:
    task = small(share=0.6, bits=(2, 3, 4, 5, 6, 8))
    loss, fail, batch = interacting(task, 0.5), failing(0.2), min(own, 50)
    others = simulate(Chance(), task, loss, 1, 1000 - own, fail)
    history = simulate(name, task, loss, own // batch, batch, fail, start=others)
    digests = [t.proposal.plan.digest for t in history.trials]
    assert len(digests) == len(set(digests)) == 1000
    failed = [t for t in history.trials if t.measured is None]
    assert 0.1 < len(failed) / len(digests) < 0.3
    study = rebuilt(task, history).study
    states = {s: sum(t.state == s for t in study.trials) for s in (TrialState.FAIL, TrialState.COMPLETE)}
    assert states == {TrialState.FAIL: len(failed), TrialState.COMPLETE: len(digests) - len(failed)}
    for known in study.trials:
        assert (known.values is None) == (known.state == TrialState.FAIL)
        assert known.values is None or all(map(math.isfinite, known.values))
    assert study.best_value == best_loss(history)
    for again in range(2):
        new = get_agent(name).propose(replace(task, seed=again), history, 5)
        assert not {p.plan.digest for p in new} & set(digests)


def rebuilt(task: Task, history: History, **options: Any) -> LiveStudy:
    with quiet():
        return LiveStudy(task, history, SAMPLERS["nsga2"](0), **options)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["budget", "front"])
@pytest.mark.parametrize("smooth", [False, True])
def test_no_number_that_is_not_finite_is_ever_told(value: float, mode: Any, smooth: bool) -> None:
    task = small(mode=mode)
    one, two = get_agent("optuna:qmc").propose(task, History(), 2)
    history = History((Trial("a", 0, one, measure(one, value)), trial("a", 0, two, additive(task))))
    first, second = rebuilt(task, history, smooth=smooth).study.trials
    assert (first.state, first.values) == (TrialState.FAIL, None)
    assert second.state == TrialState.COMPLETE
    assert all(map(math.isfinite, second.values))
    for name in NAMES if mode == "budget" else FRONT:
        assert len(get_agent(name).propose(task, history, 3)) == 3


def test_a_loss_of_nothing_has_a_logarithm_too() -> None:
    task = small()
    (one,) = get_agent("exact").propose(task, History(), 1)
    history = History((Trial("a", 0, one, measure(one, 0.0)),))
    assert math.isfinite(rebuilt(task, history, smooth=True).study.best_value)


def test_a_bounded_study_holds_the_best_and_the_newest_plans() -> None:
    task = small(layers=2)
    history = simulate(Chance(), task, additive(task), 2, 20, failing(0.2))
    held = [t for t in rebuilt(task, history, most=10).study.trials if t.state == TrialState.COMPLETE]
    values = [t.value for t in held]
    best = [t.loss for t in history.measured[:5]]
    assert len(values) == 10
    assert set(best) <= set(values)
    rest = [t.loss for t in history.trials if t.loss is not None and t.loss not in best]
    assert set(values) - set(best) == set(rest[-5:])


def test_decisions_without_a_choice_are_no_parameters(task_of: Callable[..., Task]) -> None:
    task = task_of("pinned", 0.4)
    history = simulate("optuna:nsga2", task, additive(task), 1, 3)
    for known in rebuilt(task, history).study.trials:
        assert set(known.params) == {d.name for d in task.space.decisions if len(d.options) > 1}
        assert len(known.params) < len(task.space.decisions)


# CMA-ES


def test_cma_es_notes_its_points_and_learns_from_them_alone() -> None:
    task = small(layers=2)
    name, loss = "optuna:cmaes", additive(task)
    history = simulate(name, task, loss, 6, 12)
    points = [t.proposal.note["x"] for t in history.trials if t.proposal.note]
    assert len(points) == len(history.trials) - 1  # the optimum was not asked for
    assert len(json.dumps(points[0])) < 10 * len(task.space.decisions)
    without = [replace(t, proposal=replace(t.proposal, note={})) for t in history.trials]
    proposed = get_agent(name).propose(task, history, 6)
    assert get_agent(name).propose(task, History(tuple(without)), 6) != proposed
    others = History(tuple(replace(t, agent="another") for t in history.trials[:5]))
    assert get_agent(name).propose(task, stored(history), 6) == proposed
    assert get_agent(name).propose(task, History((*others.trials, *history.trials)), 6) == proposed


def test_a_single_decision_can_be_searched() -> None:
    task = small(bits=(2, 3, 4, 5, 6))
    names = [d.name for d in task.space.decisions]
    pins = dict.fromkeys(names[1:], "4b-g32-float")
    geometry = read_geometry({**CONFIG, "num_hidden_layers": 1})
    rules = WeightRules(bits=(2, 3, 4, 5, 6), groups=(32,), zeros=("float",), pin=pins)
    space = build_space(geometry, rules, get_target("any"))
    assert [len(d.options) > 1 for d in space.decisions].count(True) == 1
    losses = [np.arange(len(d.options), 0.0, -1) for d in space.decisions]
    single = Task(space, space.ceiling, {"fitted": losses})
    for name in NAMES:
        history = simulate(name, single, additive(single), 4, 3)
        assert {t.proposal.levels[0] for t in history.trials} == set(range(5))
