"""Sense: score every option of every site, cheaply, and calibrate the scores by measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tightfit.proxies.calibration import calibrate_prescreen, split_half_tau
from tightfit.proxies.coupling import Coupling
from tightfit.proxies.kv.prescreen import KV_PRESCREEN_VERSION, kv_cost_tokens, kv_prescreen
from tightfit.proxies.marginals import Marginal, choose_marginals, measure_marginals, width_of
from tightfit.proxies.prescreen import LABELS, PRESCREEN_VERSION, prescreen
from tightfit.search.archive import SENSING
from tightfit.search.records import Score
from tightfit.search.stages.kept import kept_scores
from tightfit.search.stages.pairs import measure_pairs
from tightfit.search.stages.prepare import Bench
from tightfit.spaces import Decision, Plan, Space
from tightfit.workers.measurement import Failure
from tightfit.workers.text import Window, digest_windows

Table = list[NDArray[np.float64]]


@dataclass(frozen=True)
class Sensed:
    """Scores of every option, in nats per token.

    Attributes:
        prescreen: from the backward pass, before any measurement.
        calibrated: brought to the scale of the measured marginals.
        marginals: the measurements.
        couplings: what matrices and the cache of a block lose together beyond the sum of each alone.
    """

    prescreen: Table
    calibrated: Table
    marginals: list[Marginal]
    couplings: tuple[Coupling, ...] = ()


def sense(bench: Bench) -> Sensed:
    """Run the pre-screens, measure marginals, calibrate; measure pairs where caches are decided about."""
    decisions, settings = bench.space.decisions, bench.settings.sense
    matrices, caches = bench.space.matrix_decisions, bench.space.kv_decisions
    per_window = _prescreen(bench)
    parts = [_calibrate(bench, matrices, [rows.mean(0) for rows in per_window], settings.marginals, 0)]
    if caches:
        cached = [rows.mean(0) for rows in _kv_prescreen(bench)]
        parts.append(_calibrate(bench, caches, cached, settings.kv_marginals, len(matrices)))
    scores = [row for part in parts for row in part[0]]
    calibrated = [row for part in parts for row in part[1]]
    marginals = [found for part in parts for found in part[2]]
    couplings = measure_pairs(bench, calibrated, settings.pairs)
    bench.store.add_scores("prescreen", rows_of(decisions, scores))
    bench.store.add_scores("calibrated", rows_of(decisions, calibrated))
    bench.store.add_scores(
        "marginal",
        [
            Score(
                decisions[m.decision].name,
                decisions[m.decision].options[m.option].name,
                m.loss,
                m.se if np.isfinite(m.se) else None,
            )
            for m in marginals
        ],
    )
    bench.store.add_fit(
        "sensing",
        {
            "split_half_tau": _split_half(matrices, per_window),
            "prescreen_tokens": sum(window.scored for window in _prescreen_windows(bench)),
            "marginals": len(marginals),
            "marginal_tokens": settings.marginal_tokens,
        },
    )
    return Sensed(scores, calibrated, marginals, couplings)


def kind(space: Space, decision: Decision) -> str:
    """Kind of matrix that a decision governs, the same in every layer, or ``kv``."""
    return "kv" if decision.is_kv else space.geometry.linear(decision.sites[0]).module


def rows_of(decisions: tuple[Decision, ...], table: Table) -> list[Score]:
    """Return a table as rows of the store."""
    return [
        Score(decision.name, option.name, float(value))
        for decision, values in zip(decisions, table, strict=True)
        for option, value in zip(decision.options, values, strict=True)
    ]


def _calibrate(
    bench: Bench, decisions: Sequence[Decision], scores: Table, count: int, first: int
) -> tuple[Table, Table, list[Marginal]]:
    """Measure marginals of some decisions, the first of which has this position, and calibrate by them.

    Matrices and caches are apart: the two pre-screens are off by factors of their own.
    """
    pairs = choose_marginals(decisions, scores, count)
    found = measure_marginals(decisions, pairs, lambda plans: _measure(bench, plans))
    calibrated = calibrate_prescreen(
        scores,
        [np.array([width_of(option) for option in decision.options]) for decision in decisions],
        [kind(bench.space, decision) for decision in decisions],
        [(m.decision, m.option, m.loss, m.se) for m in found],
    )
    placed = [Marginal(m.decision + first, m.option, m.loss, m.se) for m in found]
    return scores, calibrated, placed


def _prescreen_windows(bench: Bench) -> Sequence[Window]:
    return bench.archive.plain_windows(SENSING, bench.settings.sense.prescreen_tokens)


def _prescreen(bench: Bench) -> list[NDArray[np.float64]]:
    """Return the scores of every matrix' options by window, from the run's folder if made before."""
    windows, decisions = _prescreen_windows(bench), bench.space.matrix_decisions
    what = {
        "prescreen": digest_windows(windows),
        "version": str(PRESCREEN_VERSION),
        "labels": str(LABELS),
    }

    def make() -> list[torch.Tensor]:
        bench.evaluator.clear()
        with bench.progress.stage("sense", "pre-screening every option") as tick:
            return prescreen(
                bench.evaluator.replica,
                decisions,
                bench.evaluator.matrix,
                [torch.from_numpy(window.tokens) for window in windows],
                bench.settings.seed,
                tick,
            )

    cost = sum(len(window.tokens) for window in windows) * (1 + LABELS)
    return [rows.numpy() for rows in kept_scores(bench, "prescreen", what, make, cost, len(decisions))]


def _kv_prescreen(bench: Bench) -> list[NDArray[np.float64]]:
    """Return the scores of every cache's options by window, from the run's folder if made before."""
    windows = bench.archive.windows(SENSING, bench.settings.sense.prescreen_tokens)
    decisions = bench.space.kv_decisions
    given = [(torch.from_numpy(window.tokens), window.prefix) for window in windows]
    what = {"kv prescreen": digest_windows(windows), "version": str(KV_PRESCREEN_VERSION)}

    def make() -> list[torch.Tensor]:
        bench.evaluator.clear()
        with bench.progress.stage("sense", "pre-screening every cache") as tick:
            return kv_prescreen(bench.evaluator.replica, decisions, given, bench.settings.seed, tick)

    cost = kv_cost_tokens(given)
    return [rows.numpy() for rows in kept_scores(bench, "prescreen", what, make, cost, len(decisions))]


def _measure(bench: Bench, plans: Sequence[Plan]) -> list[tuple[float, float] | None]:
    tokens = bench.settings.sense.marginal_tokens
    with bench.progress.stage("sense", "measuring single sites") as tick:
        found = bench.archive.measure_all([(plan, "marginal") for plan in plans], SENSING, tokens, tick)
    return [None if isinstance(outcome, Failure) else (outcome.kl, outcome.kl_se) for outcome in found]


def _split_half(decisions: Sequence[Decision], per_window: Sequence[NDArray[np.float64]]) -> float | None:
    """Kendall τ between the scores from even and from odd windows, averaged over bit widths.

    Within a width only, since every score agrees that fewer bits lose more. None for one window.
    """
    if len(per_window[0]) < 2:
        return None
    halves: dict[float, tuple[list[float], list[float]]] = {}
    for decision, rows in zip(decisions, per_window, strict=True):
        even, odd = rows[::2].mean(0), rows[1::2].mean(0)
        for position, option in enumerate(decision.options):
            first, second = halves.setdefault(width_of(option), ([], []))
            first.append(float(even[position]))
            second.append(float(odd[position]))
    taus = [split_half_tau(np.array(a), np.array(b)) for a, b in halves.values() if len(a) > 1]
    known = [tau for tau in taus if np.isfinite(tau)]  # a width that loses nothing orders nothing
    return float(np.mean(known)) if known else None
