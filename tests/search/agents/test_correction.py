from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import kendalltau
from tests.search.agents.simulation import LossOf, additive, interacting, trial

from tightfit.search.agents import Task, Trial
from tightfit.search.agents.base import Levels
from tightfit.search.agents.correction import Correction
from tightfit.search.agents.variation import random_swap


def neighbours(task: Task, count: int, seed: int) -> list[Levels]:
    """Plans that use the budget, a random walk away from one another."""
    rng = np.random.default_rng([61, seed])
    plans = {random_swap(task, (0,) * len(task.costs), task.limit, rng)}
    while len(plans) < count:
        plans.add(random_swap(task, sorted(plans)[rng.integers(len(plans))], task.limit, rng))
    return sorted(plans)


def trials_of(task: Task, plans: list[Levels], loss_of: LossOf, noise: float = 0.0) -> list[Trial]:
    return [trial("any", 0, task.proposal(p, "any"), loss_of, noise=noise) for p in plans]


@pytest.mark.parametrize(("strength", "misjudged"), [(1.0, 0.0), (0.0, 0.7), (0.5, 0.3)])
def test_plans_that_were_not_measured_are_ranked_better_than_by_the_table(
    strength: float, misjudged: float, task_of: Callable[..., Task]
) -> None:
    task = task_of("fused", 0.4)
    gains = []
    for seed in range(4):
        loss_of = interacting(task, strength, seed, misjudged)
        plans = neighbours(task, 160, seed)
        order = np.random.default_rng([62, seed]).permutation(160)
        known, held_out = [plans[i] for i in order[:80]], [plans[i] for i in order[80:]]
        correction = Correction.fit(task, trials_of(task, known, loss_of, noise=0.01))
        truth = [loss_of(levels) for levels in held_out]
        by_table = kendalltau([additive(task)(levels) for levels in held_out], truth).statistic
        gains.append(kendalltau(correction.predict(held_out), truth).statistic - by_table)
    assert np.mean(gains) > 0.02
    assert min(gains) > -0.02


def test_where_the_table_is_right_or_little_is_known_nothing_is_corrected(
    task_of: Callable[..., Task],
) -> None:
    task = task_of("fused", 0.4)
    plans = neighbours(task, 60, 0)
    table = [additive(task)(levels) for levels in plans]
    right = Correction.fit(task, trials_of(task, plans[:40], additive(task)))
    few = Correction.fit(task, trials_of(task, plans[:7], interacting(task, 1.0)))
    assert right.predict(plans) == pytest.approx(table, rel=1e-9)
    assert few.predict(plans) == pytest.approx(table, rel=1e-12)


def test_pure_noise_moves_predictions_by_less_than_itself(task_of: Callable[..., Task]) -> None:
    task = task_of("fused", 0.4)
    plans = neighbours(task, 100, 1)
    correction = Correction.fit(task, trials_of(task, plans[:60], additive(task), noise=0.1))
    moved = correction.predict(plans[60:]) / np.array([additive(task)(p) for p in plans[60:]])
    assert np.std(moved) < 0.05
