from __future__ import annotations

import numpy as np
import pytest

from tightfit.proxies import Interval
from tightfit.proxies.resampling import bootstrap, mean, pair_sum, ratio, variance

COUNTS = np.array([[1.0, 1.0, 1.0, 1.0], [2.0, 0.0, 1.0, 1.0]])
VALUES = np.array([1.0, 4.0, 2.0, 7.0])
RESAMPLED = [VALUES, np.array([1.0, 1.0, 2.0, 7.0])]


def test_counts_mean_the_same_as_repeated_plans():
    assert mean(VALUES, COUNTS) == pytest.approx([row.mean() for row in RESAMPLED])
    assert variance(VALUES, COUNTS) == pytest.approx([row.var(ddof=1) for row in RESAMPLED])


def test_pairs_of_a_plan_with_its_copy_do_not_count():
    apart = 1.0 - np.eye(4)
    assert pair_sum(apart, COUNTS) == pytest.approx([12, 12 - 2])


def test_ratio_is_undefined_over_nothing():
    result = ratio(np.array([1.0, 1.0]), np.array([2.0, 0.0]))
    assert result[0] == 0.5
    assert np.isnan(result[1])


def test_interval_of_a_mean_has_the_width_of_its_standard_error():
    values = np.random.default_rng(0).normal(size=400)
    interval = bootstrap(lambda counts: mean(values, counts), 400, np.random.default_rng(1))
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)


def test_intervals_repeat_with_their_generator():
    def draw() -> Interval:
        return bootstrap(lambda counts: mean(VALUES, counts), 4, np.random.default_rng([5, 2]))

    assert draw() == draw()


def test_interval_without_any_defined_value_bounds_nothing():
    interval = bootstrap(lambda counts: np.full(len(counts), np.nan), 4, np.random.default_rng(0))
    assert interval == Interval(-np.inf, np.inf)


def test_interval_may_have_an_infinite_end():
    rng = np.random.default_rng(0)
    interval = bootstrap(lambda counts: np.where(counts[:, 0] > 1, np.inf, counts[:, 0]), 6, rng)
    assert interval == Interval(0.0, np.inf)
