"""What a run found, in sentences: for the terminal, the report and the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tightfit.search.palette import plain
from tightfit.search.summary import Summary

CLEAR = 2.0
"""Standard errors beyond which a difference counts as one."""


def comparison(summary: Summary) -> str | None:
    """Compare the chosen plan with the best baseline, paired; None before both are measured."""
    front = summary.front
    baseline = front.find(summary.result.best_baseline) if front and summary.result else None
    chosen = front.find(summary.result.chosen) if front and summary.result else None
    if front is None or chosen is None or baseline is None or baseline.versus_chosen is None:
        return None
    gain, se = baseline.versus_chosen.difference, baseline.versus_chosen.se
    ratio = f"; KL ratio {chosen.measured.kl / baseline.measured.kl:.3f}" if baseline.measured.kl > 0 else ""
    if front.documents < 2:
        return (
            f"On {front.split}, the chosen plan loses {abs(gain):.4f} nats/token {_less(gain)} than the best "
            f"baseline, {baseline.label}{ratio}; a single document cannot say how sure that is."
        )
    clear = abs(gain) >= CLEAR * se
    sure = f"{abs(gain) / se:.1f} standard errors" if se > 0 else "the same difference in every document"
    verdict = "" if clear else ", which is within the noise of this text"
    paired = f"{sure}, paired over {front.documents} documents{ratio}"
    return (
        f"On {front.split}, the chosen plan loses {abs(gain):.4f} ± {se:.4f} nats/token {_less(gain)} than "
        f"the best baseline, {baseline.label} ({paired}){verdict}."
    )


def _less(gain: float) -> str:
    return "less" if gain >= 0 else "more"


def trust(summary: Summary) -> list[tuple[str, str]]:
    """Say how far the loss model can be trusted: (topic, sentence) pairs, as far as the run has come."""
    topics = [
        ("Variance explained", _variance(summary.variance)),
        ("Near the budget", _band(summary.band)),
        ("Interaction", _link(summary.link)),
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
        f"{abs(fit['bias']):.4f} nats/token too {'much' if fit['bias'] > 0 else 'little'}."
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
    sentence = f"Losses of single choices add up through the {fit['model']['link']['link']} link"
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
