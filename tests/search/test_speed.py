from __future__ import annotations

import re

import numpy as np
import pytest
from tests.proxies.timing import space_of

from tightfit.proxies.latency import LatencyTable, Phase
from tightfit.search.solvers import solve
from tightfit.search.speed import loosened, reach, sides_of
from tightfit.spaces import Budget, InputError, Space

RATES = {"Q2_K": 4e-9, "IQ3_S": 3e-9, "Q3_K": 1.5e-9, "IQ4_XS": 1e-9, "Q4_K": 1e-9, "Q8_0": 2e-9}


def table(phase: Phase, tokens: int = 1) -> LatencyTable:
    return LatencyTable(phase, tokens, 1e-4, 2e-9, RATES, {}, {}, 12, 0.02)


TABLES: dict[Phase, LatencyTable] = {"generate": table("generate"), "prompt": table("prompt", 64)}


def losses_of(space: Space) -> list[np.ndarray]:
    return [4.0 ** -(8 * np.array(d.costs) / d.weights) for d in space.decisions]


def test_bounds_become_sums_of_seconds() -> None:
    space = space_of()
    assert sides_of(Budget(weights=10**9), space, TABLES) == ()
    speed, latency = sides_of(Budget(tokens_per_second=200.0, latency=0.5), space, TABLES)
    rng = np.random.default_rng(0)
    levels = [int(rng.integers(len(d.options))) for d in space.decisions]
    options = space.site_options(space.plan(levels))
    assert speed.total(levels) == pytest.approx(TABLES["generate"].predict(space.geometry, options))
    assert latency.total(levels) == pytest.approx(TABLES["prompt"].predict(space.geometry, options))
    assert (speed.limit, latency.limit) == (1 / 200, 0.5)
    assert (speed.asked(), latency.asked()) == ("at least 200 tokens/s", "at most 0.5 s")


def test_a_margin_asks_for_more_speed() -> None:
    (side,) = sides_of(Budget(tokens_per_second=200.0), space_of(), TABLES, margin=0.05)
    assert side.limit == pytest.approx(1 / 210)


def test_a_bound_without_times_is_refused() -> None:
    with pytest.raises(InputError, match=r"budget\.latency can only be kept where plans are timed"):
        sides_of(Budget(latency=0.5), space_of(), {"generate": TABLES["generate"]})


def test_what_cannot_be_reached_is_said_and_the_search_goes_on_among_the_nearest_plans() -> None:
    space = space_of()
    losses = losses_of(space)
    (side,) = sides_of(Budget(tokens_per_second=1e6), space, TABLES)
    found = reach(space, space.ceiling, losses, [side])
    assert not found.kept
    rows = [row.min() for row in side.values]
    assert side.total(found.nearest.levels) == pytest.approx(side.fixed + sum(rows))
    assert re.search(r"budget\.tokens_per_second \(at least 1e\+06 tokens/s\) cannot be kept", found.text)
    assert side.text(side.total(found.nearest.levels)) in found.text
    (looser,) = loosened([side], found.nearest.levels)
    costs = [np.array(d.costs) for d in space.decisions]
    best = solve(costs, losses, space.ceiling - space.fixed_bytes, sides=[looser])
    assert looser.keeps(best.levels)
    assert best.loss <= found.nearest.loss


def test_what_can_be_reached_leaves_sides_as_they_are() -> None:
    space = space_of()
    (side,) = sides_of(Budget(tokens_per_second=1.0), space, TABLES)
    found = reach(space, 2 * space.ceiling, losses_of(space), [side])
    assert found.kept
    assert loosened([side], found.nearest.levels)[0].limit == side.limit
