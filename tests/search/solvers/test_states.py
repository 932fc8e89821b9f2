from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tightfit.search.solvers._states import Pool, States, Trace, undominated

POINTS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=30)


@given(points=POINTS, depth=st.integers(1, 4))
def test_kept_points_include_all_that_few_others_dominate(points: list[tuple[int, int]], depth: int) -> None:
    points.sort(key=lambda point: point[0])
    cost, loss = np.array([p[0] for p in points]), np.array([float(p[1]) for p in points])
    kept = undominated(cost, loss, depth)
    assert (np.diff(kept) > 0).all()
    gone = np.setdiff1d(np.arange(len(points)), kept)
    for at in gone:
        assert ((cost[kept] <= cost[at]) & (loss[kept] <= loss[at])).sum() >= depth


@given(points=POINTS)
def test_one_layer_is_the_strict_front(points: list[tuple[int, int]]) -> None:
    points.sort(key=lambda point: point[0])
    cost, loss = np.array([p[0] for p in points]), np.array([float(p[1]) for p in points])
    kept = undominated(cost, loss, 1)
    assert (np.diff(cost[kept]) > 0).all()
    assert (np.diff(loss[kept]) < 0).all()


def test_trace_recovers_plans() -> None:
    trace, base = Trace(), np.array([5, 5, 5, 5])
    first = trace.add(2, np.array([0, 0]), np.array([1, 3]))
    second = trace.add(0, np.array([first[1], 0]), np.array([7, 8]))
    assert trace.levels(base, 0).tolist() == [5, 5, 5, 5]
    assert [trace.levels(base, node).tolist() for node in first] == [[5, 5, 1, 5], [5, 5, 3, 5]]
    assert [trace.levels(base, node).tolist() for node in second] == [[7, 5, 3, 5], [8, 5, 5, 5]]
    assert base.tolist() == [5, 5, 5, 5]


def test_pool_keeps_the_best_below_its_ceiling() -> None:
    pool = Pool(2, 9.0)
    pool.offer(np.array([9.0, 10.0]), np.array([1, 2]))
    assert pool.entries == []
    assert pool.threshold == 9.0
    pool.offer(np.array([8.0, 5.0, 7.0]), np.array([3, 4, 5]))
    assert pool.entries == [(5.0, 4), (7.0, 5)]
    assert pool.threshold == 7.0
    pool.offer(np.array([7.0, 6.0]), np.array([6, 7]))
    assert pool.entries == [(5.0, 4), (6.0, 7)]


def test_states_take() -> None:
    states = States(np.array([1, 2, 3]), np.array([0.1, 0.2, 0.3]), np.array([7, 8, 9]))
    part = states.take(np.array([True, False, True]))
    assert len(part) == 2
    assert part.node.tolist() == [7, 9]
