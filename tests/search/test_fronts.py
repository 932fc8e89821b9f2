from __future__ import annotations

from collections.abc import Callable

import pytest

from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    return summarize(fake_run(kv=True))


def test_effective_bits_are_those_of_the_weights_alone(summary: Summary) -> None:
    for row in summary.front.rows:
        assert 0 < row.cache_bytes < row.bytes
        assert row.weight_bytes == row.bytes - row.cache_bytes
        weights = row.weight_bytes - summary.space.fixed
        assert row.effective_bits == pytest.approx(8 * weights / summary.space.weights)


def test_probes_make_no_fronts_of_their_own(summary: Summary) -> None:
    assert [front.split for front in summary.fronts] == ["holdout", "validation"]
