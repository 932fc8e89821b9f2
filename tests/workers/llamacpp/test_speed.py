import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.workers.llamacpp.speed import Sample, Speed, estimate

VALUES = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40)


def speed(rates, **changes):
    samples = tuple(Sample(10 * rate, rate, 1 / rate, 0.5, 1000 + i) for i, rate in enumerate(rates))
    return replace(Speed("a.gguf", 5, 128, 32, "cpu", "1", samples), **changes)


@given(VALUES)
def test_the_median_lies_in_its_interval(values):
    found = estimate(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found.median == np.median(values)
    assert found.spread == (found.high - found.low) / 2


@pytest.mark.parametrize(
    ("count", "low", "high"), [(1, 0, 0), (3, 0, 2), (5, 0, 4), (6, 0, 5), (8, 0, 7), (9, 1, 7), (20, 5, 14)]
)
def test_the_interval_is_the_one_of_the_tables(count, low, high):
    found = estimate(range(count))
    assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize("count", [6, 9, 15])
def test_the_interval_covers_the_median_of_what_values_are_drawn_from(count):
    drawn = np.random.default_rng([0, count]).exponential(size=(4000, count))
    found = [estimate(row) for row in drawn.tolist()]
    covered = np.mean([e.low <= np.log(2) <= e.high for e in found])
    assert covered > 0.94
    assert covered < 0.99


def test_ratios_are_paired_by_round():
    busy = [1.0, 0.2, 0.6, 0.9, 0.4]
    slow, fast = speed([100 * b for b in busy]), speed([150 * b for b in busy])
    found = fast.ratio(slow, "generation_rate")
    assert (found.low, found.median, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert fast.estimate("generation_rate").spread == pytest.approx(60)
    assert fast.ratio(slow, "first_token").median == pytest.approx(1 / 1.5)


@pytest.mark.parametrize("changes", [{"machine": "other"}, {"prompt": 64}, {"version": "2"}])
def test_files_of_two_benches_do_not_pair(changes):
    with pytest.raises(ValueError, match="one bench"):
        speed([1.0, 2.0]).ratio(speed([1.0, 2.0], **changes), "load")
    with pytest.raises(ValueError, match="one bench"):
        speed([1.0, 2.0]).ratio(speed([1.0]), "load")


def test_what_is_written_is_read():
    known = speed([3.0, 4.0])
    assert Speed.from_dict(json.loads(json.dumps(known.to_dict()))) == known
    assert known.peak_bytes == 1001
