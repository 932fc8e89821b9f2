from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import kendalltau

from tightfit.proxies import band_certificate, paired_ses, unexplained_variance
from tightfit.workers.measurement import ratio_se

SPREAD = 0.05


def simulate(
    plans: int, misfit: float, noise: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Predictions, losses measured with independent noise, their standard errors."""
    rng = np.random.default_rng([seed, 1])
    predicted = rng.normal(0.5, SPREAD, plans)
    measured = predicted + misfit * rng.normal(size=plans) + noise * rng.normal(size=plans)
    return predicted, measured, np.full(plans, noise), rng


def share_of(misfit: float) -> float:
    return misfit**2 / (misfit**2 + SPREAD**2)


def certify(plans, misfit, noise, seed):
    predicted, measured, ses, rng = simulate(plans, misfit, noise, seed)
    return unexplained_variance(predicted, measured, ses, rng, "plans of the simulation")


@pytest.mark.parametrize(("misfit", "noise"), [(0.02, 0.005), (0.02, 0.02), (0.03, 0.03)])
def test_interval_of_unexplained_variance_covers_the_truth(misfit, noise):
    seen = [certify(40, misfit, noise, seed) for seed in range(100)]
    covered = sum(c.interval.low <= share_of(misfit) <= c.interval.high for c in seen)
    assert covered >= 88


def test_noise_is_subtracted_on_average():
    shares = [certify(60, 0.02, 0.02, seed).unexplained for seed in range(100)]
    assert np.mean(shares) == pytest.approx(share_of(0.02), rel=0.15)
    unsubtracted = 2 * 0.02**2 / (2 * 0.02**2 + SPREAD**2)
    assert np.mean(shares) < 0.7 * unsubtracted


def test_perfect_predictions_leave_nothing_but_noise():
    c = certify(60, 0.0, 0.02, 0)
    assert c.unexplained < 0.08
    assert c.noise == pytest.approx(0.02**2 / (SPREAD**2 + 0.02**2), rel=0.5)


def test_a_bias_is_told_apart_from_unexplained_variance():
    predicted, measured, ses, rng = simulate(40, 0.01, 0.002, 0)
    centred = unexplained_variance(predicted, measured, ses, rng, "x")
    biased = unexplained_variance(predicted + 0.05, measured, ses, rng, "x")
    assert biased.bias == pytest.approx(centred.bias + 0.05)
    assert biased.unexplained == pytest.approx(centred.unexplained)


def test_noise_that_all_plans_share_is_not_subtracted():
    rng = np.random.default_rng(3)
    tokens = rng.integers(100, 800, 12)
    plan_losses = rng.normal(0.5, SPREAD, 30)
    document = rng.normal(0, 0.1, 12)  # documents differ far more than plans do
    sums = (plan_losses[:, None] + document + 0.002 * rng.normal(size=(30, 12))) * tokens
    measured = sums.sum(1) / tokens.sum()
    alone = np.array([ratio_se(row.tolist(), tokens.tolist()) for row in sums])
    predicted = plan_losses + (measured - plan_losses).mean()
    paired = unexplained_variance(predicted, measured, paired_ses(sums, tokens), rng, "x")
    assert paired.noise < 0.01
    assert paired.unexplained < 0.02
    assert unexplained_variance(predicted, measured, alone, rng, "x").noise > 0.1


def test_a_spread_of_pure_noise_cannot_be_told():
    rng = np.random.default_rng(4)
    measured = 0.5 + 0.01 * rng.normal(size=20)
    c = unexplained_variance(np.full(20, 0.5), measured, np.full(20, 0.05), rng, "x")
    assert c.unexplained is None
    assert json.loads(json.dumps(c.to_dict(), allow_nan=False))["unexplained"] is None


def test_band_statistics_are_the_textbook_ones():
    predicted, measured, ses, rng = simulate(30, 0.03, 0.005, 6)
    c = band_certificate(predicted, measured, ses, rng)
    residual = np.sum((measured - predicted) ** 2) / np.sum((measured - measured.mean()) ** 2)
    assert c.r2 == pytest.approx(1 - residual)
    assert c.tau == pytest.approx(kendalltau(predicted, measured).statistic)
    wrong = clear = 0
    for i in range(30):
        for j in range(i):
            if abs(measured[i] - measured[j]) > 2 * np.hypot(ses[i], ses[j]):
                clear += 1
                wrong += (measured[i] - measured[j]) * (predicted[i] - predicted[j]) < 0
    assert c.pairs == clear
    assert c.misordered == pytest.approx(wrong / clear)


def test_tau_handles_ties_as_kendalls_b():
    predicted = np.array([0.1, 0.1, 0.2, 0.3, 0.3])
    measured = np.array([0.1, 0.2, 0.2, 0.4, 0.35])
    c = band_certificate(predicted, measured, np.full(5, 0.001), np.random.default_rng(0))
    assert c.tau == pytest.approx(kendalltau(predicted, measured).statistic)


def test_a_tied_prediction_is_half_wrong():
    measured = np.array([0.1, 0.2, 0.3, 0.4])
    c = band_certificate(np.full(4, 0.25), measured, np.full(4, 0.001), np.random.default_rng(0))
    assert (c.misordered, c.pairs) == (0.5, 6)


def test_intervals_of_the_band_cover_the_truth():
    certificates = []
    for seed in range(100):
        predicted, measured, ses, rng = simulate(30, 0.03, 0.01, seed)
        certificates.append(band_certificate(predicted, measured, ses, rng))
    truths = {name: np.mean([getattr(c, name) for c in certificates]) for name in ("tau", "misordered")}
    truths["r2"] = 1 - (0.03**2 + 0.01**2) / (SPREAD**2 + 0.03**2 + 0.01**2)
    for name, truth in truths.items():
        intervals = [getattr(c, f"{name}_interval") for c in certificates]
        assert sum(i.low <= truth <= i.high for i in intervals) >= 88, name


def test_pairing_finds_more_pairs_that_clearly_differ():
    rng = np.random.default_rng(7)
    tokens = np.full(10, 400)
    losses = rng.normal(0.5, 0.01, 12)
    sums = (losses[:, None] + rng.normal(0, 0.1, 10) + 0.003 * rng.normal(size=(12, 10))) * tokens
    measured = sums.sum(1) / tokens.sum()
    alone = np.array([ratio_se(row.tolist(), tokens.tolist()) for row in sums])
    paired = band_certificate(losses, measured, paired_ses(sums, tokens), rng)
    assert paired.pairs > 40 > 10 > band_certificate(losses, measured, alone, rng).pairs


def test_indistinguishable_plans_have_no_misordered_share():
    predicted, measured, _, rng = simulate(10, 0.01, 0.0, 8)
    c = band_certificate(predicted, measured, np.full(10, 10.0), rng)
    assert (c.misordered, c.pairs) == (None, 0)
    json.dumps(c.to_dict(), allow_nan=False)


def test_paired_ses_are_the_ratio_estimator_of_every_pair():
    rng = np.random.default_rng(10)
    tokens = rng.integers(20, 500, 7)
    sums = rng.exponential(0.4, (5, 7)) * tokens
    matrix = paired_ses(sums, tokens)
    for i in range(5):
        for j in range(5):
            expected = ratio_se((sums[i] - sums[j]).tolist(), tokens.tolist())
            assert matrix[i, j] == pytest.approx(expected, abs=1e-15)


def test_paired_ses_need_two_documents():
    with pytest.raises(ValueError, match="two documents, got 1"):
        paired_ses(np.ones((4, 1)), np.array([100]))


@pytest.mark.parametrize("certificate", [band_certificate, lambda *args: unexplained_variance(*args, "x")])
@pytest.mark.parametrize(
    ("predicted", "measured", "ses", "message"),
    [
        (np.ones(3), np.ones(3), np.ones(3), "at least 4 plans, got 3"),
        (np.ones(5), np.ones(4), np.ones(4), "4 predictions"),
        (np.ones(4), np.ones(4), np.ones((4, 3)), "standard errors"),
        (np.ones(4), np.ones(4), np.full(4, np.inf), "finite"),
        (np.full(4, np.nan), np.ones(4), np.ones(4), "finite"),
    ],
)
def test_unusable_input_is_refused(certificate, predicted, measured, ses, message):
    with pytest.raises(ValueError, match=message):
        certificate(predicted, measured, ses, np.random.default_rng(0))
