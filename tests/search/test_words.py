from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tightfit.search.palette import plain
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize
from tightfit.search.words import comparison, duration, shortfalls, trust
from tightfit.workers.measurement import DocumentLoss, compare


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    return summarize(fake_run())


def test_the_comparison_is_paired_and_says_how_sure_it_is(summary: Summary) -> None:
    paired = summary.baseline.versus_chosen
    sentence = comparison(summary)
    assert f"{paired.difference:.4f} ± {paired.se:.4f} nats/token less than the best baseline" in sentence
    assert f"{paired.z:.1f} standard errors" in sentence
    assert "noise" not in sentence


def test_a_difference_within_the_noise_is_called_that(summary: Summary) -> None:
    row = summary.chosen
    deltas = [1e-4 if i % 2 else -1e-4 for i in range(len(row.measured.documents))]
    near = tuple(replace(d, kl=d.kl + x) for d, x in zip(row.measured.documents, deltas, strict=True))
    assert "within the noise" in comparison(_with_baseline(summary, near))


def test_a_worse_plan_is_said_to_lose_more(summary: Summary) -> None:
    better = tuple(replace(d, kl=0.5 * d.kl) for d in summary.chosen.measured.documents)
    assert "nats/token more than the best baseline" in comparison(_with_baseline(summary, better))


def _with_baseline(summary: Summary, documents: tuple[DocumentLoss, ...]) -> Summary:
    measured = replace(summary.chosen.measured, plan=summary.baseline.digest, documents=documents)
    versus = compare(measured, summary.chosen.measured)
    baseline = replace(summary.baseline, measured=measured, versus_chosen=versus)
    front = replace(summary.front, rows=(summary.chosen, baseline))
    return replace(summary, fronts=(front,))


def test_there_is_no_comparison_before_both_are_measured(fake_run: Callable[..., Store]) -> None:
    assert comparison(summarize(fake_run("validate"))) is None


def test_both_certificates_are_put_into_words(summary: Summary) -> None:
    topics = dict(trust(summary))
    assert topics["Variance explained"] == (
        "The loss model explains 91.3% (95% interval 86.1% to 94.8%) of the variance of the loss among "
        "24 plans that no fit has seen (drawn independently, tilted to a mean of 84.44 MiB), "
        "measurement noise subtracted; on average it predicts 0.0040 nats/token too much."
    )
    assert topics["Near the budget"] == (
        "Among 16 plans within ±1% of the budget's bytes that no fit has seen: R² 0.74 (95% interval "
        "−0.12 to 0.90), Kendall τ 0.63 (95% interval 0.40 to unbounded); of the 71 pairs that differ by "
        "more than two standard errors, 4.2% are predicted in the wrong order."
    )
    assert topics["Interaction"] == (
        "Losses of single choices add up through the amplifying link (cross-validated error in nats/token: "
        "identity 0.0121, amplifying 0.0084), fitted to 32 measured plans; all choices together lose 1.31 "
        "times what they lose one at a time."
    )
    assert topics["Sensing"].endswith("alike with Kendall τ 0.86.")
    assert "proven within 0.002% of the lowest that the loss model allows" in topics["Solver"]
    assert f"predicted loss {plain(summary.solution.loss_predicted)} nats/token" in topics["Solver"]


def test_what_cannot_be_told_is_said_so(summary: Summary) -> None:
    variance = {**summary.variance, "unexplained": None}
    band = {**summary.band, "misordered": None, "pairs": 0, "band": 0.025}
    topics = dict(trust(replace(summary, variance=variance, band=band)))
    assert topics["Variance explained"].startswith("Cannot be told")
    assert "16 plans within ±2.5% of the budget" in topics["Near the budget"]
    assert "no pair differs by more than two standard errors" in topics["Near the budget"]


def test_what_is_not_known_yet_is_not_said(fake_run: Callable[..., Store]) -> None:
    assert [topic for topic, _ in trust(summarize(fake_run("sense")))] == ["Sensing"]


def test_splits_that_got_too_few_tokens_are_named(summary: Summary) -> None:
    assert shortfalls(summary) == ["holdout: 3,711 of 4,096 tokens"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (245, "4 min 05 s"), (3600, "1 h 00 min"), (7384, "2 h 03 min")],
)
def test_durations_are_written_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words
