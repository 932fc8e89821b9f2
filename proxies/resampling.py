"""Bootstrap over plans, with resamples written as counts: how often each plan was drawn.

With counts ``(R, P)`` a statistic of all resamples is a few matrix products, and statistics over pairs
of plans leave out a plan paired with its own copy, which carries no information.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tightfit.proxies.links import Floats

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A 95 % interval; an end is infinite where resampling could not bound it."""

    low: float
    high: float


def bootstrap(statistic: Callable[[Floats], Floats], plans: int, rng: np.random.Generator) -> Interval:
    """Return the percentile interval of a statistic (Efron & Tibshirani, 1993, §13.3).

    Args:
        statistic: from counts ``(R, P)`` to values ``(R,)``, NaN where a resample does not define it.
        plans: P.
        rng: generator of the resamples.
    """
    counts = rng.multinomial(plans, np.full(plans, 1.0 / plans), size=RESAMPLES).astype(np.float64)
    values = statistic(counts)
    values = values[~np.isnan(values)]
    if not len(values):
        return Interval(-np.inf, np.inf)
    # Nearest, not interpolated: a value may be infinite.
    low, high = np.quantile(values, [0.025, 0.975], method="nearest")
    return Interval(float(low), float(high))


def mean(values: Floats, counts: Floats) -> Floats:
    """Mean of ``(P,)`` values in every resample: ``(R,)``."""
    return np.asarray(counts @ values / counts.sum(axis=1))


def variance(values: Floats, counts: Floats) -> Floats:
    """Unbiased variance of ``(P,)`` values in every resample: ``(R,)``."""
    total = counts.sum(axis=1)
    centred = values - mean(values, counts)[:, None]
    return np.asarray((counts * centred**2).sum(axis=1) / (total - 1))


def pair_sum(matrix: Floats, counts: Floats) -> Floats:
    """Sum of a ``(P, P)`` matrix with zero diagonal over ordered pairs of every resample: ``(R,)``."""
    return np.asarray(((counts @ matrix) * counts).sum(axis=1))


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Quotient, NaN where the denominator is not positive."""
    positive = denominator > 0
    return np.where(positive, numerator / np.where(positive, denominator, 1.0), np.nan)
