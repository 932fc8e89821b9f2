from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

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
    assert list(topics) == ["Variance explained", "Near the budget", "Interaction", "Sensing", "Solver"]
    assert "91.3%" in topics["Variance explained"]
    assert "Kendall τ 0.63" in topics["Near the budget"]
    assert "3 of the 71 pairs" in topics["Near the budget"]
    assert "amplifying" in topics["Interaction"]
    assert "0.86" in topics["Sensing"]
    assert "within 0.002% of the best" in topics["Solver"]


def test_what_is_not_known_is_not_said(fake_run: Callable[..., Store], summary: Summary) -> None:
    assert [topic for topic, _ in trust(replace(summary, variance={}, band={"tau": None}, link={}))] == [
        "Sensing",
        "Solver",
    ]


def test_splits_that_got_too_few_tokens_are_named(summary: Summary) -> None:
    assert shortfalls(summary) == ["holdout: 3,711 of 4,096 tokens"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (245, "4 min 05 s"), (3600, "1 h 00 min"), (7384, "2 h 03 min")],
)
def test_durations_are_written_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words
