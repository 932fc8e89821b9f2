from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.search.agents.simulation import LossOf, additive, best_loss, failing, hypervolume, simulate

from tightfit.search.agents import History, Sensitivity, Task, get_agent
from tightfit.search.agents.base import Levels, Table

NAME = "relinearize"


class World:
    """A loss that is quadratic in the errors of all decisions, which interact.

    Attributes:
        asked: how often the sensitivity was asked for.
    """

    def __init__(self, task: Task, strength: float, seed: int = 0) -> None:
        rng = np.random.default_rng([94, seed])
        count = len(task.trusted)
        directions = np.eye(count) + strength * rng.standard_normal((count, count)) / np.sqrt(count)
        self._directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        self._lengths = [np.sqrt(row) for row in task.trusted]
        self.asked: list[Levels] = []
        self.task = replace(task, sensitivity=self.sensitivity)

    def loss(self, levels: Levels) -> float:
        return float(np.sum(self._error(levels) ** 2))

    def sensitivity(self, levels: Levels) -> Table:
        """Exact slope and exact curvature of every single swap."""
        self.asked.append(levels)
        error = self._error(levels)
        rows = [row - row[level] for row, level in zip(self._lengths, levels, strict=True)]
        return [2 * row * (error @ own) + row**2 for row, own in zip(rows, self._directions, strict=True)]

    def _error(self, levels: Levels) -> np.ndarray:
        lengths = [row[level] for row, level in zip(self._lengths, levels, strict=True)]
        return np.asarray(np.array(lengths) @ self._directions)


def start(task: Task, loss: LossOf) -> History:
    """The optimum of the additive table, measured."""
    return simulate("exact", task, loss, 1, 1)


@pytest.fixture(params=["uneven", "untied"])
def world(request: pytest.FixtureRequest, task_of: Callable[..., Task]) -> World:
    return World(task_of(request.param, 0.25), strength=1.0)


def test_single_swaps_are_foretold_exactly_in_this_world(world: World) -> None:
    levels = (1,) * len(world.task.costs)
    for index, row in enumerate(world.sensitivity(levels)):
        for level, change in enumerate(row):
            swapped = (*levels[:index], level, *levels[index + 1 :])
            assert change == pytest.approx(world.loss(swapped) - world.loss(levels), abs=1e-12)


def test_it_descends_below_the_additive_optimum_in_few_rounds(world: World) -> None:
    history = simulate(NAME, world.task, world.loss, rounds=4, batch=4)
    exact = world.loss(start(world.task, world.loss).trials[0].proposal.levels)
    assert best_loss(history) < 0.9 * exact
    assert len(set(world.asked)) <= 3  # one plan a round, none in the first


def test_nothing_is_left_to_gain_by_a_single_swap_where_it_ends(task_of: Callable[..., Task]) -> None:
    world = World(task_of("uneven", 0.25), strength=1.0)
    history = simulate(NAME, world.task, world.loss, rounds=60, batch=6)
    assert history.rounds(NAME) < 60
    best = history.measured[0].proposal
    left = world.task.limit - best.bytes
    for row, costs, level in zip(world.sensitivity(best.levels), world.task.costs, best.levels, strict=True):
        fits = costs - costs[level] <= left
        assert row[fits].min() > -1e-3 * world.loss(best.levels)


@pytest.mark.parametrize("mode", ["budget", "front"])
def test_a_history_from_json_gives_the_same_proposals(world: World, mode: str) -> None:
    task = replace(world.task, mode=mode)
    history = simulate(NAME, task, world.loss, rounds=3, batch=5, start=start(task, world.loss), noise=0.01)
    again = History(
        tuple(
            replace(t, proposal=replace(t.proposal, note=json.loads(json.dumps(dict(t.proposal.note)))))
            for t in history.trials
        )
    )
    agent = get_agent(NAME)
    assert agent.propose(task, again, 5) == agent.propose(task, history, 5) != []


@pytest.mark.parametrize("mode", ["budget", "front"])
def test_plans_are_new_within_the_limit_and_end_where_measuring_fails(
    task_of: Callable[..., Task], mode: str
) -> None:
    world = World(task_of("uneven", 0.25), strength=1.0)
    task = replace(world.task, mode=mode)
    history = simulate(NAME, task, world.loss, 80, 4, fail=failing(0.4), start=start(task, world.loss))
    digests = [trial.proposal.plan.digest for trial in history.trials]
    assert len(digests) > 8
    assert len(set(digests)) == len(digests)
    assert all(trial.proposal.bytes <= task.limit for trial in history.trials)
    assert get_agent(NAME).propose(task, history, 4) == [] or mode == "front"
    assert best_loss(history, NAME) < best_loss(history, "exact")


def test_a_turn_goes_from_the_boldest_step_to_careful_ones(world: World) -> None:
    first = start(world.task, world.loss)
    notes = [p.note for p in get_agent(NAME).propose(world.task, first, 6)]
    radii = list(dict.fromkeys(note["radius"] for note in notes))
    assert len(radii) > 1
    assert radii == sorted(radii, reverse=True)
    assert all(1 <= note["swaps"] <= note["radius"] for note in notes)
    best = [max(note["gain"] for note in notes if note["radius"] == radius) for radius in radii]
    assert best == sorted(best, reverse=True)
    assert {note["origin"] for note in notes} == {first.trials[0].proposal.plan.digest}


def test_labels_count_steps_and_swaps(world: World) -> None:
    history = simulate(NAME, world.task, world.loss, rounds=2, batch=3)
    steps = [t.proposal for t in history.trials if t.round == 1]
    assert steps
    for step in steps:
        swaps = step.note["swaps"]
        assert step.label == f"relinearize (step 2, {swaps} swap{'s' * (swaps != 1)})"


def test_regions_shrink_where_nothing_came_true_and_grow_where_all_did(world: World) -> None:
    first = start(world.task, world.loss)
    worse = simulate(NAME, world.task, lambda levels: 9.0, rounds=2, batch=2, start=first)
    before, after = ([t.proposal.note["radius"] for t in worse.of(NAME) if t.round == r] for r in (0, 1))
    assert max(after) <= min(before) / 2
    better = simulate(NAME, world.task, world.loss, rounds=2, batch=1, start=first)
    bold, next_one = better.of(NAME)
    if bold.measured is not None and better.measured[0] is not first.trials[0]:
        assert next_one.proposal.note["origin"] == bold.proposal.plan.digest
        assert next_one.proposal.note["radius"] == 2 * bold.proposal.note["swaps"]


def test_every_step_begins_at_the_best_plan_so_far(world: World) -> None:
    history = simulate(NAME, world.task, world.loss, rounds=4, batch=4)
    for turn in range(1, history.rounds(NAME)):
        known = History(tuple(t for t in history.trials if t.round < turn))
        origins = {t.proposal.note["origin"] for t in history.trials if t.round == turn}
        assert origins == {known.measured[0].proposal.plan.digest}


def test_without_a_model_it_proposes_the_exact_plans_once(task_of: Callable[..., Task]) -> None:
    task = task_of("uneven", 0.3)
    history = simulate(NAME, task, additive(task), rounds=5, batch=4)
    assert history.rounds(NAME) == 1
    exact = get_agent("exact").propose(task, History(), 1)[0]
    assert history.trials[0].proposal.plan == exact.plan
    assert get_agent(NAME).propose(task, history, 4) == []


def test_scores_that_are_no_numbers_attract_nothing(world: World) -> None:
    def broken(levels: Levels) -> Table:
        rows = [np.array(row) for row in world.sensitivity(levels)]
        for row, level in zip(rows[::2], levels[::2], strict=True):
            row[np.arange(len(row)) != level] = np.nan
        rows[1][np.arange(len(rows[1])) != levels[1]] = -np.inf
        return rows

    sensitivity: Sensitivity = broken
    task = replace(world.task, sensitivity=sensitivity)
    first = start(task, world.loss)
    at = first.trials[0].proposal.levels
    proposals = get_agent(NAME).propose(task, first, 4)
    assert proposals
    for proposal in proposals:
        assert proposal.levels[::2] == at[::2]
        assert proposal.levels[1] == at[1]


def test_scores_that_see_nothing_leave_the_trusted_table_to_speak(task_of: Callable[..., Task]) -> None:
    task = task_of("uneven", 0.3)
    blind = replace(task, sensitivity=lambda levels: [np.zeros(len(row)) for row in task.trusted])
    begun = simulate("uniform", task, additive(task), 1, 1)
    proposals = get_agent(NAME).propose(blind, begun, 3)
    assert proposals
    for proposal in proposals:
        gain = begun.trials[0].loss - additive(task)(proposal.levels)
        assert proposal.note["gain"] == pytest.approx(gain / 2)


def test_along_the_front_plans_of_many_sizes_get_better(task_of: Callable[..., Task]) -> None:
    world = World(task_of("uneven", 0.5), strength=1.0)
    task = replace(world.task, mode="front")
    begun = History()
    for share in (0.1, 0.2, 0.3, 0.4, 0.5):
        smaller = replace(world.task, limit=int(task.space.floor + share * (task.limit - task.space.floor)))
        begun = begun.with_trials(start(smaller, world.loss).trials)
    history = simulate(NAME, task, world.loss, rounds=6, batch=6, start=begun)
    corner = (task.limit + 1.0, max(t.loss or 0.0 for t in begun.trials) * 1.01)
    assert hypervolume(history, corner) > 1.02 * hypervolume(begun, corner)
    assert len({t.proposal.note["origin"] for t in history.of(NAME)}) > 6
