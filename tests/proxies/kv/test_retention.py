from __future__ import annotations

import numpy as np
import pytest
import torch

from tightfit.proxies.kv.retention import Retention, allocate_tokens, highest_threshold, retention_curve
from tightfit.spaces import InputError


def curve(*mass: float, sinks: int = 0, residual: int = 0) -> Retention:
    return retention_curve(torch.tensor(mass).reshape(1, 1, -1), sinks, residual)


def test_best_tokens_first():
    found = curve(0.1, 0.4, 0.2, 0.3)
    assert (found.least, found.tokens) == (1, 4)
    assert found.shares.tolist() == pytest.approx([0.4, 0.7, 0.9, 1.0])
    assert found.retained(2) == pytest.approx(0.7)
    assert [found.needed(t) for t in (0.0, 0.39, 0.41, 0.95, 1.0)] == [1, 1, 2, 4, 4]


def test_what_always_stays_is_counted_first():
    found = curve(0.1, 0.2, 0.4, 0.25, 0.05, sinks=1, residual=1)
    assert found.least == 2
    assert found.shares.tolist() == pytest.approx([0.15, 0.55, 0.8, 1.0])
    assert found.retained(0) == found.retained(2)


def test_heads_keep_their_own_tokens_but_equally_many():
    found = retention_curve(torch.tensor([[[0.8, 0.2], [0.5, 0.5]], [[0.0, 1.0], [0.1, 0.9]]]))
    assert found.shares.tolist() == pytest.approx([(0.8 + 0.5 + 1.0 + 0.9) / 4, 1.0])


def test_mass_is_taken_relative_to_what_is_in_the_cache():
    assert curve(1, 3).shares.tolist() == curve(0.25, 0.75).shares.tolist() == [0.75, 1.0]


@pytest.mark.parametrize(("sinks", "residual"), [(2, 1), (5, 5), (3, 0), (0, 9)])
def test_everything_may_always_stay(sinks, residual):
    found = curve(0.5, 0.3, 0.2, sinks=sinks, residual=residual)
    assert (found.least, found.shares.tolist()) == (3, [1.0])


def test_more_tokens_than_there_are():
    with pytest.raises(InputError, match="5 tokens cannot be kept of 4"):
        curve(0.1, 0.4, 0.2, 0.3).retained(5)


def test_one_threshold_for_all_layers():
    sharp, flat = curve(0.9, 0.05, 0.03, 0.02), curve(0.25, 0.25, 0.25, 0.25)
    # At 0.9 the sharp layer needs one token, the flat one all four; at 0.75 three.
    assert allocate_tokens([sharp, flat], 5)[1] == [1, 4]
    threshold, counts = allocate_tokens([sharp, flat], 4)
    assert (threshold, counts) == (pytest.approx(0.75), [1, 3])


def test_ties_go_to_lower_layers():
    same = [curve(0.5, 0.25, 0.25)] * 3
    assert allocate_tokens(same, 4)[1] == [2, 1, 1]
    assert allocate_tokens(same, 5)[1] == [2, 2, 1]


def test_what_always_stays_can_be_too_much():
    with pytest.raises(InputError, match="4 tokens always stay over all layers, but only 3 are allowed"):
        allocate_tokens([curve(0.5, 0.3, 0.2, sinks=2)] * 2, 3)


def test_counts_follow_the_budget_and_the_threshold():
    generator = torch.Generator().manual_seed(1)
    curves = [
        retention_curve(torch.randn(2, 3, 50, generator=generator).mul(1 + layer).softmax(-1), 2, 3)
        for layer in range(5)
    ]
    before = -np.inf
    for total in range(25, 251):
        threshold, counts = allocate_tokens(curves, total)
        assert sum(counts) == total  # there are no ties in random masses
        assert threshold >= before
        assert all(c.retained(n) >= threshold for c, n in zip(curves, counts, strict=True))
        least = [c.needed(threshold) for c in curves]
        assert all(n - m in (0, 1) for n, m in zip(counts, least, strict=True))
        before = threshold
    assert threshold == 1.0


def test_threshold_that_some_layer_cannot_reach():
    values = [np.array([0.2, 0.5]), np.array([0.1, 0.9, 1.0])]
    prices = [np.array([1, 2]), np.array([1, 5, 9])]
    assert highest_threshold(values, prices, 11) == (1.0, [1, 2])
    assert highest_threshold(values, prices, 10) == (0.9, [1, 1])
    assert highest_threshold(values, prices, 6) == (0.2, [0, 1])
    assert highest_threshold(values, prices, 5) == (0.1, [0, 0])
