from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightfit.proxies import distribution_text, sample, sample_band, tilted
from tightfit.spaces import InfeasibleError

RNG = np.random.default_rng(0)
COSTS = [np.sort(RNG.integers(100, 2000, 4)) * (8 if d == 0 else 1) for d in range(40)]
FLOOR, CEILING = (sum(int(end(row)) for row in COSTS) for end in (min, max))
MIDDLE = (FLOOR + CEILING) / 2


def expected_bytes(probabilities, costs=COSTS) -> float:
    return sum(float(p @ row) for p, row in zip(probabilities, costs, strict=True))


def total_bytes(levels, costs=COSTS) -> np.ndarray:
    return np.sum([row[column] for row, column in zip(costs, levels.T, strict=True)], axis=0)


ragged = st.lists(st.lists(st.integers(1, 10**7), min_size=1, max_size=5), min_size=1, max_size=12)


@given(costs=ragged, share=st.floats(0.0, 1.0))
@settings(deadline=None)
def test_tilt_has_the_asked_mean(costs, share):
    costs = [np.array(row) for row in costs]
    low, high = sum(min(row) for row in costs), sum(max(row) for row in costs)
    mean = low + share * (high - low)
    probabilities = tilted(costs, mean)
    assert all(p.sum() == pytest.approx(1.0) and (p >= 0).all() for p in probabilities)
    # At the very ends the distribution can only approach the mean, never pass it.
    assert expected_bytes(probabilities, costs) == pytest.approx(mean, abs=2e-3 * (high - low) + 1e-6)


def test_tilt_is_one_exponential_family_in_bytes():
    probabilities = tilted(COSTS, 0.4 * FLOOR + 0.6 * CEILING)
    slopes = [
        np.diff(np.log(p)) / np.diff(row)
        for p, row in zip(probabilities, COSTS, strict=True)
        if len(set(row)) == len(row) and p.min() > 1e-12
    ]
    assert np.ptp(np.concatenate(slopes)) < 1e-9


def test_tilt_has_the_largest_entropy_of_its_mean():
    costs = [np.array([0, 1, 3]), np.array([0, 2])]
    probabilities = tilted(costs, 1.5)

    def entropy(rows):
        return -sum(float(p @ np.log(p)) for p in rows)

    best = entropy(probabilities)
    for shift, other in itertools.product((-0.02, 0.02), (-0.01, 0.01)):
        first = probabilities[0] + shift * np.array([2, -3, 1])  # bytes unchanged, sum unchanged
        second = probabilities[1] + other * np.array([1, -1])
        first = first + other * 2 / 3 * np.array([-1, 0, 1])  # pays back what the second moved
        assert expected_bytes([first, second], costs) == pytest.approx(1.5)
        assert entropy([first, second]) < best


def test_losses_draw_plans_near_good_ones():
    rng = np.random.default_rng(1)
    losses = [np.sort(rng.exponential(0.01, 4))[::-1] for _ in COSTS]

    def mean_loss(probabilities):
        return sum(float(p @ row) for p, row in zip(probabilities, losses, strict=True))

    plain, mild, sharp = (tilted(COSTS, MIDDLE, *args) for args in ((), (losses, 0.02), (losses, 0.002)))
    for probabilities in (plain, mild, sharp):
        assert expected_bytes(probabilities) == pytest.approx(MIDDLE, rel=1e-6)
    assert mean_loss(sharp) < mean_loss(mild) < mean_loss(plain)


def test_the_ends_are_single_plans():
    assert all(
        p[row.argmin()] == pytest.approx(1) for p, row in zip(tilted(COSTS, FLOOR), COSTS, strict=True)
    )
    assert all(
        p[row.argmax()] == pytest.approx(1) for p, row in zip(tilted(COSTS, CEILING), COSTS, strict=True)
    )


@pytest.mark.parametrize("mean", [FLOOR - 1, CEILING + 1])
def test_impossible_means_are_infeasible(mean):
    with pytest.raises(InfeasibleError, match=f"{FLOOR} to {CEILING}"):
        tilted(COSTS, mean)


@pytest.mark.parametrize("args", [(COSTS, None), (None, 0.1), (COSTS, 0.0)])
def test_losses_and_temperature_go_together(args):
    with pytest.raises(ValueError, match="temperature"):
        tilted(COSTS, MIDDLE, *args)


def test_distribution_is_stated_in_words():
    assert distribution_text(80 * 2**20) == "independent choices of largest entropy with 80.00 MiB on average"
    assert "0.02 nats" in distribution_text(80 * 2**20, 0.02)


def test_sample_follows_its_probabilities():
    probabilities = [np.array([0.7, 0.3]), np.array([0.1, 0.0, 0.9])] + [np.full(4, 0.25)] * 10
    levels = sample(probabilities, 4000, np.random.default_rng(2))
    assert levels.shape == (4000, 12)
    assert len(np.unique(levels, axis=0)) == 4000
    for column, p in zip(levels.T, probabilities, strict=True):
        assert np.bincount(column, minlength=len(p)) / 4000 == pytest.approx(p, abs=0.04)
    assert not (levels[:, 1] == 1).any(), "an option of probability 0 is never drawn"


def test_sample_of_a_tiny_space_gives_every_plan_once():
    levels = sample([np.array([0.5, 0.5]), np.array([0.9, 0.1])], 100, np.random.default_rng(3))
    assert sorted(map(tuple, levels.tolist())) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_same_generator_same_plans():
    first, second = (sample(tilted(COSTS, MIDDLE), 20, np.random.default_rng([4, 1])) for _ in range(2))
    assert (first == second).all()


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.8])
def test_band_holds_its_bytes(share):
    target = FLOOR + share * (CEILING - FLOOR)
    low, high = 0.99 * target, 1.01 * target
    levels = sample_band(COSTS, tilted(COSTS, target), low, high, 60, np.random.default_rng(5))
    assert len(np.unique(levels, axis=0)) == 60
    assert ((low <= total_bytes(levels)) & (total_bytes(levels) <= high)).all()


def test_band_far_from_the_mean_is_reached_by_repairs():
    probabilities = tilted(COSTS, MIDDLE)
    low, high = FLOOR * 1.05, FLOOR * 1.06
    levels = sample_band(COSTS, probabilities, low, high, 30, np.random.default_rng(6))
    assert len(levels) == 30
    assert ((low <= total_bytes(levels)) & (total_bytes(levels) <= high)).all()


def test_repairs_never_use_an_option_of_probability_zero():
    costs = [np.array([1, 2, 3])] * 6
    probabilities = [np.array([0.5, 0.0, 0.5])] * 6
    levels = sample_band(costs, probabilities, 6, 8, 20, np.random.default_rng(7))
    assert len(levels) > 1
    assert not (levels == 1).any()


def test_an_empty_band_gives_no_plans():
    costs = [np.array([10, 20])] * 3
    levels = sample_band(costs, tilted(costs, 45), 41, 44, 5, np.random.default_rng(8))
    assert levels.shape == (0, 3)


def test_plans_of_a_wide_band_are_untouched_draws():
    probabilities = tilted(COSTS, MIDDLE)
    plain = sample(probabilities, 25, np.random.default_rng(9))
    assert (sample_band(COSTS, probabilities, 0, np.inf, 25, np.random.default_rng(9)) == plain).all()
