"""What a run found, in sentences: for the terminal, the report and the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tightfit.search.fronts import CLEAR
from tightfit.search.kv_words import cache_topics, pairs_words
from tightfit.search.loss_models import link_words
from tightfit.search.palette import plain
from tightfit.search.summary import Summary
from tightfit.search.tables import loss_text, nats_text, split_text
from tightfit.spaces import format_size
from tightfit.workers.measurement import Measurement, Paired, compare

_NOISE = "within the noise of this text"


class Judged(NamedTuple):
    """A plan on the holdout text: whether it was searched, or which baseline it is, in words."""

    searched: bool
    label: str
    measured: Measurement


@dataclass(frozen=True)
class Outcome:
    """What a verdict is about.

    Attributes:
        offered: the plan to use.
        rival: what it was judged by: the best baseline, or where the baseline itself is offered the
            plan that the search chose; None where the search proposed nothing but baselines.
        predicted: loss of the plan to use under the loss model, nats per token.
        size: its bytes by the formula, and ``recounted`` from its packed tensors and a cache that is full.
        cache: what of them are KV caches.
        limit: most bytes that the budget allows.
        speed: what running it gave, beside the bounds on speed; empty where it was not run. ``too_slow``
            says whether it misses one.
    """

    offered: Judged
    rival: Judged | None
    predicted: float
    size: int
    recounted: int
    limit: int
    cache: int = 0
    speed: str = ""
    too_slow: bool = False


def verdict(outcome: Outcome) -> str:
    """Say in one line whether the plan to use fits, what it takes and loses, and beside what."""
    loss, rival = outcome.offered.measured, outcome.rival
    fits = "fits" if outcome.recounted <= outcome.limit else "does not fit"
    if outcome.too_slow:
        fits = "too slow" if fits == "fits" else f"{fits} and is too slow"
    speed = f", {outcome.speed}" if outcome.speed else ""
    line = (
        f"{fits}: plan {loss.plan[:12]} takes {format_size(outcome.recounted)} of "
        f"{format_size(outcome.limit)}{split_text(outcome.recounted, outcome.cache)} ({_bytes(outcome)})"
        f"{speed}, holdout KL {_loss(loss)} nats/token "
        f"(predicted {nats_text(outcome.predicted)})"
    )
    if rival and outcome.offered.searched:
        times = _times(loss, rival.measured)
        return f"{line}, {times} the best baseline, {rival.label} ({_certainty(loss, rival.measured)})"
    line += f"; this is the baseline {outcome.offered.label}: "
    if rival is None:
        return line + "the search proposed no other plan"
    searched = f"the plan of the search, {rival.measured.plan[:12]}, loses {_loss(rival.measured)}"
    return f"{line}{searched} ({_certainty(rival.measured, loss)})"


def _bytes(outcome: Outcome) -> str:
    if outcome.recounted == outcome.size:
        return f"{outcome.recounted:,} B predicted and recounted"
    return f"{outcome.size:,} B predicted, {outcome.recounted:,} B recounted"


def _loss(measured: Measurement) -> str:
    return loss_text(measured.kl, measured.kl_se if len(measured.documents) > 1 else None)


def _times(loss: Measurement, baseline: Measurement) -> str:
    if baseline.kl > 0:
        return f"{loss.kl / baseline.kl:.3f} ×"
    return f"beside {nats_text(baseline.kl)} of"


def _certainty(first: Measurement, second: Measurement) -> str:
    paired, documents = compare(first, second), len(first.documents)
    doubt = "" if documents < 2 or _clear(paired) else f": {_NOISE}"
    return _sureness(paired, documents) + doubt


def _sureness(paired: Paired, documents: int) -> str:
    """Say how many standard errors a difference is, or why that cannot be said."""
    if documents < 2:
        return "a single document cannot say how sure that is"
    if paired.se > 0:
        return f"{abs(paired.z):.1f} standard errors, paired over {documents} documents"
    return f"the same {'difference' if paired.difference else 'loss'} in each of {documents} documents"


def _clear(paired: Paired) -> bool:
    return abs(paired.difference) >= CLEAR * paired.se


def comparison(summary: Summary) -> str | None:
    """Compare the chosen plan with the best baseline, paired; None before both are measured."""
    front = summary.front
    baseline = front.find(summary.result.best_baseline) if front and summary.result else None
    chosen = front.find(summary.result.chosen) if front and summary.result else None
    if front is None or chosen is None or baseline is None or baseline.versus_chosen is None:
        return None
    paired, sure = baseline.versus_chosen, _sureness(baseline.versus_chosen, front.documents)
    known = front.documents > 1
    gain = loss_text(abs(paired.difference), paired.se) if known else nats_text(abs(paired.difference))
    ratio = f"; KL ratio {chosen.measured.kl / baseline.measured.kl:.3f}" if baseline.measured.kl > 0 else ""
    doubt = "" if not known or _clear(paired) else f", which is {_NOISE}"
    return (
        f"On {front.split}, the chosen plan loses {gain} nats/token {_less(paired.difference)} than the best "
        f"baseline, {baseline.label} ({sure}{ratio}){doubt}."
    )


def _less(gain: float) -> str:
    return "less" if gain >= 0 else "more"


def trust(summary: Summary) -> list[tuple[str, str]]:
    """Say how far the result can be trusted: (topic, sentence) pairs, as far as the run has come."""
    return [*model_trust(summary), *cache_topics(summary)]


def model_trust(summary: Summary) -> list[tuple[str, str]]:
    """Say how far the loss model can be trusted, likewise."""
    topics = [
        ("Variance explained", _variance(summary.variance)),
        ("Near the budget", _band(summary.band)),
        ("Interaction", _link(summary.link)),
        ("Keys, values, cache", pairs_words(summary.pairs, summary.link)),
        ("Sensing", _sensing(summary.sensing)),
        ("Solver", _solver(summary)),
    ]
    return [(topic, sentence) for topic, sentence in topics if sentence]


def _variance(fit: Mapping[str, Any] | None) -> str:
    if not fit:
        return ""
    seen = f"{fit['plans']} plans that no fit has seen ({fit['distribution']})"
    if fit["unexplained"] is None:
        return f"Cannot be told: among {seen}, all the spread is measurement noise."
    low, high = fit["interval"]["low"], fit["interval"]["high"]
    explained = Interval(None if high is None else 1 - high, None if low is None else 1 - low)
    return (
        f"The loss model explains {_percent(1 - fit['unexplained'])}{_between(explained, _percent)} of the "
        f"variance of the loss among {seen}, measurement noise subtracted; on average it predicts "
        f"{nats_text(abs(fit['bias']))} nats/token too {'much' if fit['bias'] > 0 else 'little'}."
    )


def _band(fit: Mapping[str, Any] | None) -> str:
    if not fit:
        return ""
    where = (
        fit["band"]
        if isinstance(fit["band"], str)
        else f"within ±{100 * fit['band']:g}% of the budget's bytes"
    )
    r2, tau = _figure(fit, "r2"), _figure(fit, "tau")
    if fit["misordered"] is None:
        order = "no pair differs by more than two standard errors"
    else:
        order = (
            f"of the {fit['pairs']} pairs that differ by more than two standard errors, "
            f"{_percent(fit['misordered'])} are predicted in the wrong order"
        )
    return f"Among {fit['plans']} plans {where} that no fit has seen: R² {r2}, Kendall τ {tau}; {order}."


def _link(fit: Mapping[str, Any] | None) -> str:
    if not fit:
        return ""
    sentence = f"Losses of single choices add up through {link_words(fit['model'])}"
    if fit.get("table"):
        listed = ", ".join(f"{row['link']} {plain(row['error'])}" for row in fit["table"])
        sentence += f" (cross-validated error in nats/token: {listed})"
    sentence += f", fitted to {fit['plans']} measured plans"
    if fit.get("synergy") is not None:
        sentence += f"; all choices together lose {fit['synergy']:.2f} times what they lose one at a time"
    return sentence + "."


def _sensing(fit: Mapping[str, Any] | None) -> str:
    tau = (fit or {}).get("split_half_tau")
    if tau is None:
        return ""
    return (
        "Within a bit width, scores from the two halves of the text rank the decisions alike with "
        f"Kendall τ {_number(tau)}."
    )


def _solver(summary: Summary) -> str:
    solution = summary.solution
    if solution is None or solution.gap is None or solution.loss_predicted is None:
        return ""
    loss = plain(solution.loss_predicted)
    best = "the lowest" if solution.gap <= 0 else f"within {plain(100 * solution.gap)}% of the lowest"
    return (
        f"The plan's additive loss is proven {best} that the loss model allows in this budget; "
        f"predicted loss {loss} nats/token."
    )


class Interval(NamedTuple):
    """A 95 % interval; an end is None where resampling could not bound it."""

    low: float | None
    high: float | None


def _figure(fit: Mapping[str, Any], name: str) -> str:
    interval = Interval(**fit[f"{name}_interval"])
    return f"{_number(fit[name])}{_between(interval, _number)}"


def _between(interval: Interval, write: Callable[[float], str]) -> str:
    low, high = ("unbounded" if end is None else write(end) for end in interval)
    return f" (95% interval {low} to {high})"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}".replace("-", "−")


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("-", "−")


def proposals(summary: Summary) -> str | None:
    """Say what agents proposed, how much of it was repeated, and what could not be measured."""
    found = summary.exploration
    if found is None:
        return None
    repeated = found.proposed - found.distinct
    sentence = (
        f"Agents proposed {found.proposed} plans, {found.distinct} different ones "
        f"({repeated / found.proposed:.1%} repeated); none was measured twice on the same text."
    )
    if found.failures:
        plan, reason = next(iter(found.failures.items()))
        sentence += (
            f" {len(found.failures)} could not be measured and are left out, such as {plan[:12]}: {reason}."
        )
    return sentence


def shortfalls(summary: Summary) -> Sequence[str]:
    """Name the splits of the text that got fewer tokens than asked for."""
    splits = (summary.text.splits if summary.text else None) or {}
    return [
        f"{name}: {split['used']:,} of {split['asked']:,} tokens"
        for name, split in splits.items()
        if split["used"] < split["asked"]
    ]


def duration(seconds: float) -> str:
    """Write a duration for people: ``45.2 s``, ``4 min 05 s``, ``2 h 03 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
