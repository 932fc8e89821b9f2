from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tightfit.search.solvers import Relaxation, Table, _core
from tightfit.search.solvers._core import search_core
from tightfit.search.solvers._states import Pool


def relax(instance: Any) -> Relaxation:
    return Relaxation.of(Table.of(instance.costs, instance.losses))


def test_only_plans_below_the_ceiling_are_returned(random_small: Callable[[int], Any]) -> None:
    for seed in range(200):
        instance = random_small(seed)
        ranked = instance.ranked()
        relaxation = relax(instance)
        assert search_core(relaxation, instance.limit, 1, ceiling=ranked[0] - 1e-9).plans == []
        (levels,) = search_core(relaxation, instance.limit, 1, ceiling=ranked[0] + 1e-9).plans
        assert relaxation.table.loss(levels) == pytest.approx(ranked[0], abs=1e-9)


def test_what_was_given_up_is_never_claimed(
    random_small: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "_STATES", 1)
    short = 0
    for seed in range(800):
        instance = random_small(seed)
        ranked, relaxation = instance.ranked(), relax(instance)
        found = search_core(relaxation, instance.limit, 3)
        losses = [relaxation.table.loss(levels) for levels in found.plans]
        short += losses != pytest.approx(ranked[:3], abs=1e-9)
        for rank, optimum in enumerate(ranked[:3]):
            reached = losses[rank] if rank < len(losses) else np.inf
            assert min(reached, found.missed) <= optimum + 1e-9
    assert short > 50  # the cap must have bitten for this to mean anything


def test_reduced_losses_are_exact_beside_huge_costs(random_small: Callable[[int], Any]) -> None:
    for seed in range(100):
        instance = random_small(seed)
        relaxation = Relaxation.of(Table.of([row + 10**15 for row in instance.costs], instance.losses))
        limit = instance.limit + 10**15 * len(instance.costs)
        search = _core._Search(relaxation, limit, Pool(1, np.inf), 0.0)
        assert search.reduced.min() >= -relaxation.table.rounding
        assert search.reduced[relaxation.table.rows, search.base].tolist() == [0.0] * len(instance.costs)


def test_ends_when_out_of_work_and_says_so(
    random_large: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = random_large(60, 8)
    relaxation = relax(instance)
    (best,) = search_core(relaxation, instance.limit, 1).plans
    monkeypatch.setattr(_core, "_WORK", 10)
    found = search_core(relaxation, instance.limit, 1)
    assert found.missed <= relaxation.table.loss(best)
    assert found.missed >= float(relaxation.curve(instance.limit)) - relaxation.table.rounding


def test_accepts_a_near_plan_once_states_were_dropped(
    random_large: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = random_large(60, 8)
    relaxation = relax(instance)
    monkeypatch.setattr(_core, "_STATES", 4)
    found = search_core(relaxation, instance.limit, 1, accept=np.inf)
    assert np.isfinite(found.missed)
    assert relaxation.table.cost(found.plans[0]) <= instance.limit
