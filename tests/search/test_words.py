from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tightfit.search.palette import plain
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize
from tightfit.search.tables import loss_text
from tightfit.search.words import Judged, Outcome, comparison, duration, shortfalls, trust, verdict
from tightfit.workers.measurement import DocumentLoss, Measurement, compare


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    return summarize(fake_run())


def test_the_comparison_is_paired_and_says_how_sure_it_is(summary: Summary) -> None:
    paired = summary.baseline.versus_chosen
    sentence = comparison(summary)
    gain = loss_text(paired.difference, paired.se)
    assert f"{gain} nats/token less than the best baseline" in sentence
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


def test_a_single_document_supports_no_comparison(summary: Summary) -> None:
    (one,) = summary.chosen.measured.documents[:1]
    chosen = replace(summary.chosen, measured=replace(summary.chosen.measured, documents=(one,)))
    found = _with_baseline(
        replace(summary, fronts=(replace(summary.front, rows=(chosen, summary.baseline)),)),
        (replace(one, kl=2 * one.kl),),
    )
    sentence = comparison(replace(found, fronts=(replace(found.front, documents=1),)))
    assert "a single document cannot say how sure that is" in sentence
    assert "±" not in sentence
    assert "inf" not in sentence


# The verdict

LIMIT = 76 * 2**20


def measured(plan: str, *losses: float) -> Measurement:
    """Losses of a plan, in nats per token, document by document."""
    rows = [DocumentLoss(f"doc-{i}", 100, 100 * kl, 330, 320, 90) for i, kl in enumerate(losses)]
    return Measurement(plan * 64, "holdout", "protocol", tuple(rows), 1.0, 1.0)


def sentence(offered: Judged, rival: Judged | None, recounted: int = LIMIT - 2**20) -> str:
    return verdict(Outcome(offered, rival, 0.19, LIMIT - 2**20, recounted, LIMIT))


def found(*losses: float) -> Judged:
    return Judged(True, "exact", measured("a", *losses))


def uniform(*losses: float) -> Judged:
    return Judged(False, "uniform 4b-g64-int", measured("b", *losses))


def test_the_verdict_says_what_fits_what_it_loses_and_beside_what() -> None:
    assert sentence(found(0.2, 0.21, 0.22), uniform(0.4, 0.42, 0.41)) == (
        "fits: plan aaaaaaaaaaaa takes 75.00 MiB of 76.00 MiB (78,643,200 B predicted and recounted), "
        "holdout KL 0.2100 ± 0.0058 nats/token (predicted 0.1900), 0.512 × the best baseline, "
        "uniform 4b-g64-int (34.6 standard errors, paired over 3 documents)"
    )


def test_bytes_that_differ_from_the_prediction_are_both_told() -> None:
    line = sentence(found(0.2, 0.21), uniform(0.4, 0.42), recounted=LIMIT + 1)
    assert line.startswith("does not fit: plan aaaaaaaaaaaa takes 76.00 MiB of 76.00 MiB ")
    assert "(78,643,200 B predicted, 79,691,777 B recounted)" in line


def test_a_win_within_the_noise_is_called_that() -> None:
    line = sentence(found(0.20, 0.22), uniform(0.22, 0.21))
    assert line.endswith("standard errors, paired over 2 documents: within the noise of this text)")


@pytest.mark.parametrize("better", [True, False])
def test_one_document_gives_no_error_and_no_certainty(better: bool) -> None:
    pair = (found(0.2), uniform(0.3)) if better else (uniform(0.2), found(0.3))
    line = sentence(*pair)
    assert "holdout KL 0.2000 ± ? nats/token" in line
    assert line.endswith("(a single document cannot say how sure that is)")
    assert "inf" not in line
    assert "-0.0" not in line


def test_differences_without_spread_have_no_standard_errors() -> None:
    same = sentence(found(0.2, 0.3), uniform(0.2, 0.3))
    assert same.endswith(
        "1.000 × the best baseline, uniform 4b-g64-int (the same loss in each of 2 documents)"
    )
    shifted = sentence(found(0.25, 0.25), uniform(0.5, 0.5))
    assert shifted.endswith("(the same difference in each of 2 documents)")


def test_a_baseline_that_loses_nothing_divides_nothing() -> None:
    line = sentence(found(0.0, 0.0), uniform(0.0, 0.0))
    assert "beside 0 of the best baseline, uniform 4b-g64-int" in line


def test_a_baseline_that_is_offered_is_said_to_be_one() -> None:
    clear = sentence(uniform(0.2, 0.21, 0.22), found(0.4, 0.42, 0.41))
    assert clear.startswith("fits: plan bbbbbbbbbbbb ")
    assert (
        "; this is the baseline uniform 4b-g64-int: the plan of the search, aaaaaaaaaaaa, loses 0.4100 "
        in clear
    )
    assert "noise" not in clear
    assert "within the noise of this text" in sentence(uniform(0.22, 0.21), found(0.20, 0.24))
    assert sentence(uniform(0.2, 0.3), None).endswith(
        "; this is the baseline uniform 4b-g64-int: the search proposed no other plan"
    )


def test_both_certificates_are_put_into_words(summary: Summary) -> None:
    topics = dict(trust(summary))
    assert topics["Variance explained"] == (
        "The loss model explains 91.3% (95% interval 86.1% to 94.8%) of the variance of the loss among "
        "24 plans that no fit has seen (drawn independently, tilted to a mean of 84.44 MiB), "
        "measurement noise subtracted; on average it predicts 0.004 nats/token too much."
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
