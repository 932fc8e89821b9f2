"""Marginals: the measured loss of one site's option while everything else stays uncompressed.

They are what pre-screen scores are calibrated against. A few are enough, so they are spread: over
bit widths, over kinds of matrix, and over the whole range of pre-screen scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightfit.spaces import Choice, Decision, KvOption, Plan

MeasureLosses = Callable[[Sequence[Plan]], Sequence[tuple[float, float] | None]]
"""Measures partial plans: (loss in nats per token, its standard error) each, None where that failed."""


@dataclass(frozen=True)
class Marginal:
    """The loss of one option alone.

    Attributes:
        decision, option: positions in the space.
        loss: mean KL divergence in nats per token, and ``se`` its standard error.
    """

    decision: int
    option: int
    loss: float
    se: float


def choose_marginals(
    decisions: Sequence[Decision], scores: Sequence[NDArray[np.float64]], count: int
) -> list[tuple[int, int]]:
    """Choose which (decision, option) pairs to measure.

    Pairs of equal width are ranked by pre-screen score, and every width gets an equal share of
    the measurements at evenly spaced ranks, so that the calibration of a width sees its whole range.

    Args:
        decisions: D decisions.
        scores: pre-screen scores, one array per decision.
        count: how many pairs; fewer are returned where fewer have a choice.
    """
    by_width: dict[float, list[tuple[float, int, int]]] = {}
    for d, decision in enumerate(decisions):
        if len(decision.options) < 2:
            continue
        for o, option in enumerate(decision.options):
            by_width.setdefault(width_of(option), []).append((float(scores[d][o]), d, o))
    chosen: list[tuple[int, int]] = []
    remaining = count
    for left, (_, pairs) in enumerate(sorted(by_width.items(), key=lambda item: len(item[1]))):
        share = min(len(pairs), remaining // (len(by_width) - left))
        remaining -= share
        ranked = sorted(pairs)
        ranks: list[int] = np.linspace(0, len(ranked) - 1, share).round().astype(int).tolist()
        chosen += [(ranked[rank][1], ranked[rank][2]) for rank in ranks]
    return sorted(chosen)


def width_of(option: Choice) -> float:
    """Return what options are grouped by: bits. Caches that differ otherwise have groups of their own.

    Their numbers are a hair off the bits, so that they stay in order.
    """
    if not isinstance(option, KvOption):
        return float(option.bits)
    uneven, evicted = (option.k_bits - option.v_bits) / 16, 1 - option.keep
    return option.bits + 1e-3 * uneven + 2e-3 * evicted + 1e-4 * option.spread + 1e-2 * option.shared


def measure_marginals(
    decisions: Sequence[Decision], pairs: Sequence[tuple[int, int]], measure: MeasureLosses
) -> list[Marginal]:
    """Measure the chosen pairs, in depth order; what cannot be measured is left out."""
    plans = [Plan(((decisions[d].name, decisions[d].options[o].name),)) for d, o in pairs]
    return [
        Marginal(d, o, *loss) for (d, o), loss in zip(pairs, measure(plans), strict=True) if loss is not None
    ]
