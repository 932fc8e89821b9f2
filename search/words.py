"""What a run found, in sentences: for the terminal, the report and the app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    if not fit or "explained" not in fit:
        return ""
    where = fit.get("distribution", "plans drawn around the budget's mean bytes")
    sentence = (
        f"Over {where}, the loss model explains {fit['explained']:.1%} of the variance of the measured loss"
    )
    if "low" in fit and "high" in fit:
        sentence += f" (90% interval {fit['low']:.1%} to {fit['high']:.1%})"
    return sentence + _plans(fit) + ", measurement noise subtracted."


def _band(fit: Mapping[str, Any] | None) -> str:
    if not fit:
        return ""
    width = f"±{100 * fit['width']:g}% of" if "width" in fit else "a narrow band around"
    parts = []
    if fit.get("r2") is not None:
        parts.append(f"R² {fit['r2']:.2f}")
    if fit.get("tau") is not None:
        parts.append(f"Kendall τ {fit['tau']:.2f}")
    if fit.get("pairs") is not None and fit.get("misordered") is not None:
        parts.append(
            f"{fit['misordered']} of the {fit['pairs']} pairs that differ by more than two standard errors "
            "are predicted in the wrong order"
        )
    return f"Within {width} the budget's bytes{_plans(fit)}: {', '.join(parts)}." if parts else ""


def _link(fit: Mapping[str, Any] | None) -> str:
    if not fit or "chosen" not in fit:
        return ""
    sentence = f"Single losses add up through the {fit['chosen']} link"
    errors = fit.get("cv") or {}
    if errors:
        listed = ", ".join(f"{name} {plain(error)}" for name, error in errors.items())
        sentence += f" (cross-validated error in nats/token: {listed})"
    if fit.get("synergy") is not None:
        sentence += f"; all choices together lose {fit['synergy']:.2f} times what they lose one at a time"
    return sentence + "."


def _sensing(fit: Mapping[str, Any] | None) -> str:
    if not fit or fit.get("split_half_tau") is None:
        return ""
    return (
        f"Sensitivities from one half of the text rank the options like those from the other half: "
        f"Kendall τ {fit['split_half_tau']:.2f}."
    )


def _solver(summary: Summary) -> str:
    solution = summary.solution
    if solution is None or solution.gap is None or solution.loss_predicted is None:
        return ""
    loss = plain(solution.loss_predicted)
    best = "the best" if solution.gap <= 0 else f"within {plain(100 * solution.gap)}% of the best"
    return f"Under the loss model, the plan is proven {best} for this budget: {loss} nats/token predicted."


def _plans(fit: Mapping[str, Any]) -> str:
    return f", {fit['plans']} plans that no fit has seen" if fit.get("plans") else ""


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
