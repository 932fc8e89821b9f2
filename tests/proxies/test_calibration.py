from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from tightfit.proxies import calibrate_prescreen, split_half_tau

BITS = np.array([3, 4, 5, 6])
FACTORS = np.array([0.5, 0.8, 1.3, 2.0])  # pre-screen over loss, per width
TYPES = ("q_proj", "up_proj", "down_proj")


@dataclass
class Sensing:
    prescreen: list[np.ndarray]
    truth: list[np.ndarray]
    bits: list[np.ndarray]
    types: list[str]
    pairs: list[tuple[int, int]]

    def measured(self, noise: float = 0.05, seed: int = 0) -> list[tuple[int, int, float, float]]:
        rng = np.random.default_rng([seed, 1])
        rows = []
        for d, o in self.pairs:
            loss = self.truth[d][o]
            rows.append((d, o, float(loss * (1 + noise * rng.normal())), float(noise * loss)))
        return rows

    def calibrate(self, measured) -> list[np.ndarray]:
        return calibrate_prescreen(self.prescreen, self.bits, self.types, measured)

    def log_error(self, table: list[np.ndarray], unmeasured: bool = True) -> np.ndarray:
        """Log error of every option, shape (D, 4); NaN where measured."""
        error = np.log(np.array(table) / np.array(self.truth))
        for d, o in self.pairs if unmeasured else []:
            error[d, o] = np.nan
        return error


def make(seed: int, decisions: int = 60, per_width: int = 10, scatter: float = 0.3) -> Sensing:
    rng = np.random.default_rng([seed, 0])
    prescreen, truth = [], []
    for _ in range(decisions):
        loss = rng.lognormal(-6, 1) * 4.0 ** (4.0 - BITS) * rng.lognormal(0, 0.2, 4)
        truth.append(loss)
        prescreen.append(loss * FACTORS * rng.lognormal(0, scatter, 4))
    pairs = [(int(d), o) for o in range(4) for d in rng.permutation(decisions)[:per_width]]
    types = [TYPES[d % 3] for d in range(decisions)]
    return Sensing(prescreen, truth, [BITS] * decisions, types, pairs)


@pytest.mark.parametrize("seed", range(3))
def test_finds_the_factor_of_every_width(seed):
    sensing = make(seed)
    error = sensing.log_error(sensing.calibrate(sensing.measured()))
    assert np.nanmean(error, axis=0) == pytest.approx(np.zeros(4), abs=0.3)
    assert np.nanstd(error) < 0.45


def test_sums_of_losses_are_unbiased_though_the_scatter_is_skewed():
    ratios = []
    for seed in range(24):
        sensing = make(seed, decisions=150, per_width=15, scatter=1.0)
        table = np.array(sensing.calibrate(sensing.measured(seed=seed)))
        unmeasured = ~np.isnan(sensing.log_error(table.tolist()))
        ratios.append(table[unmeasured].sum() / np.array(sensing.truth)[unmeasured].sum())
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.1)


def test_measured_options_lean_on_their_measurement_when_it_is_sharp():
    sensing = make(0)
    sharp = sensing.log_error(sensing.calibrate(sensing.measured(noise=0.01)), unmeasured=False)
    at = tuple(np.array(sensing.pairs).T)
    assert np.abs(sharp[at]).max() < 0.1


def test_measured_options_lean_on_the_regression_when_it_is_vague():
    sensing = make(1)
    rows = sensing.measured()
    d, o, loss, _ = rows[0]
    rows[0] = (d, o, 5 * loss, 100 * loss)
    vague = sensing.calibrate(rows)[d][o]
    rows[0] = (d, o, 5 * loss, 0.01 * loss)
    assert vague < 2.5 * loss
    assert sensing.calibrate(rows)[d][o] == pytest.approx(5 * loss, rel=0.15)


def test_posterior_lies_between_measurement_and_regression():
    sensing = make(2)
    rows = sensing.measured(noise=0.3)
    with_it = sensing.calibrate(rows)
    for d, o, loss, _ in rows[:10]:
        regressed = sensing.calibrate([row for row in rows if row[:2] != (d, o)])[d][o]
        low, high = sorted((loss, regressed))
        # The regression itself moves a little by the measurement it now has.
        assert 0.85 * low <= with_it[d][o] <= 1.15 * high


def test_a_few_wild_measurements_do_not_bend_the_line():
    sensing = make(3)
    rows = sensing.measured()
    clean = sensing.log_error(sensing.calibrate(rows))
    for i in (0, 15, 30):
        d, o, loss, se = rows[i]
        rows[i] = (d, o, 50 * loss, 50 * se)
    wild = sensing.log_error(sensing.calibrate(rows))
    assert np.nanmax(np.abs(np.nanmean(wild, axis=0) - np.nanmean(clean, axis=0))) < 0.2


def test_a_width_without_measurements_follows_the_trend_of_its_neighbours():
    sensing = make(4)
    sensing.pairs = [pair for pair in sensing.pairs if pair[1] != 2]
    error = np.nanmean(sensing.log_error(sensing.calibrate(sensing.measured())), axis=0)
    assert abs(error[2]) < 0.3


def test_calibrated_scores_sum_better_than_raw_ones_in_nearly_every_world():
    better = 0
    for seed in range(10):
        sensing = make(seed)
        total = np.array(sensing.truth).sum(axis=0)
        calibrated = np.array(sensing.calibrate(sensing.measured(seed=seed))).sum(axis=0)
        raw = np.array(sensing.prescreen).sum(axis=0)
        better += np.abs(np.log(calibrated / total)).mean() < np.abs(np.log(raw / total)).mean()
    assert better >= 9


def test_exact_options_stay_free():
    sensing = make(5)
    for row in sensing.prescreen:
        row[3] = 0.0
    rows = sensing.measured()
    table = sensing.calibrate(rows)
    assert all(row[3] == 0.0 and (row[:3] > 0).all() for row in table)


def test_without_measurements_scores_come_back_as_copies():
    sensing = make(6)
    table = sensing.calibrate([])
    assert all((a == b).all() and a is not b for a, b in zip(table, sensing.prescreen, strict=True))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_few_measurements_already_fix_the_level(count):
    sensing = make(7)
    for row in sensing.prescreen:
        row *= 20
    sensing.pairs = sensing.pairs[:: len(sensing.pairs) // count][:count]
    error = sensing.log_error(sensing.calibrate(sensing.measured()))
    assert abs(np.nanmean(error)) < 1.2 < abs(np.log(np.array(sensing.prescreen) / sensing.truth).mean())


def test_losses_that_are_not_positive_and_unknown_errors_are_survived():
    sensing = make(8)
    rows = sensing.measured()
    rows[0] = (*rows[0][:2], -1e-6, 1e-5)
    rows[1] = (*rows[1][:2], 0.0, 0.0)
    rows[2:] = [(d, o, loss, math.inf) for d, o, loss, _ in rows[2:]]
    table = sensing.calibrate(rows)
    assert np.isfinite(np.array(table)).all()
    assert np.nanstd(sensing.log_error([np.maximum(row, 1e-9) for row in table])) < 0.5


def test_ragged_decisions_keep_their_shapes():
    table = calibrate_prescreen(
        [np.array([0.2, 0.1]), np.array([0.3])], [np.array([3, 4]), np.array([8])], ["a", "b"],
        [(0, 1, 0.2, 0.01)],
    )  # fmt: skip
    assert [row.shape for row in table] == [(2,), (1,)]
    assert table[0][0] > table[0][1]


def test_split_half_tau_of_equal_halves_is_one():
    a = np.array([[0.1, 0.4], [0.2, 0.3]])
    assert split_half_tau(a, 3 * a) == pytest.approx(1.0)
    assert split_half_tau(a, -a) == pytest.approx(-1.0)
    assert math.isnan(split_half_tau(a, np.zeros((2, 2))))


def test_split_half_tau_falls_with_noise():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=400)
    taus = [
        split_half_tau(truth + s * rng.normal(size=400), truth + s * rng.normal(size=400)) for s in (0.2, 1)
    ]
    assert 1 > taus[0] > taus[1] > 0
