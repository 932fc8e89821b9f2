"""Calibrating a cheap pre-screen with a few measured single-site losses.

A pre-screen orders the options of one width well, but its level is off by a factor that depends on
the width, since it knows only the second-order part of the loss. A robust regression of log loss on
log score learns these factors from the options that were measured alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from tightfit.proxies.links import Floats

_INTERCEPT_SD = 10.0  # no prior knowledge of the overall level
_SLOPE_SD = 0.25  # around 1: a score that is twice as large means about twice the loss
_TREND_SD = 0.5  # per bit; carries the correction to widths that were not measured
_WIDTH_SD = 0.5
_TYPE_SD = 0.3
_SCATTER = 0.4  # prior scatter of log loss around the line, worth _SCATTER_COUNT measurements
_SCATTER_COUNT = 4
_LEAST_NOISE = 0.05  # relative; a standard error from two or three documents can be small by luck
_UNKNOWN_NOISE = 0.3  # relative, where one document gives no standard error
_ROUNDING = 1e-9  # nats
_HUBER = 1.345  # 95 % efficient at the Gaussian (Huber, Robust Statistics, 1981)
_MAD_TO_SD = 1.4826
_PASSES = 20


def calibrate_prescreen(
    prescreen: Sequence[Floats],
    bits: Sequence[NDArray[np.floating] | NDArray[np.integer]],
    types: Sequence[str],
    measured: Sequence[tuple[int, int, float, float]],
) -> list[Floats]:
    """Turn pre-screen scores into estimates of single-site losses.

    Model: log loss = intercept of the width + slope · log score + offset of the type + scatter, with
    one slope for all, offsets shrunk towards 0, and outliers held back by Huber weights. An option
    that was measured itself gets the posterior mean of its loss: log-normal around the regression a
    priori, its measurement Gaussian. A score of 0 stays 0: an option that changes nothing costs nothing.

    Args:
        prescreen: per decision the scores of its options, in nats, not negative.
        bits: per decision the bits per weight of its options.
        types: per decision the type of its sites, such as ``down_proj``.
        measured: (decision, option, loss, standard error) of options measured alone, in nats.
            Without any, the scores come back as they are. Losses that are not positive cannot enter
            the regression, but are used at their own place. An infinite standard error is unknown.

    Returns:
        Losses in nats per token, of the shapes of ``prescreen``.
    """
    table = _Table.build(prescreen, bits, types)
    rows = [(table.starts[d] + o, loss, se) for d, o, loss, se in measured if prescreen[d][o] > 0]
    if not rows:
        return [np.array(row, dtype=np.float64) for row in prescreen]
    at = np.array([row[0] for row in rows])
    losses, ses = np.array([row[1:] for row in rows], dtype=np.float64).T
    ses = np.where(np.isfinite(ses), ses, _UNKNOWN_NOISE * np.abs(losses))
    ses = np.maximum(ses, np.maximum(_LEAST_NOISE * np.abs(losses), _ROUNDING))
    usable = losses > 0
    fitted, scatter = _regress(table, at[usable], losses[usable], ses[usable])
    # The mean of a log-normal, not its median: these losses are going to be added up.
    estimate = np.exp(fitted + scatter**2 / 2)
    estimate[at] = _posterior_mean(fitted[at], scatter, losses, ses)
    flat = np.zeros(table.size)
    flat[table.positive] = estimate[table.positive]
    return np.split(flat, table.starts[1:])


def split_half_tau(a: Floats, b: Floats) -> float:
    """Kendall's τ between two estimates of the same scores from disjoint halves of the text.

    It bounds how well any scores from one half can order what is measured on other text. NaN where
    one half gives all options the same score.
    """
    return float(scipy.stats.kendalltau(np.ravel(a), np.ravel(b)).statistic)


@dataclass(frozen=True, eq=False)
class _Table:
    """All options of all decisions as rows of one regression."""

    starts: list[int]  # first row of every decision
    size: int
    positive: NDArray[np.bool_]  # (N,)
    features: Floats  # (N, F); log score at column 1
    sds: Floats  # (F,) prior standard deviations of the coefficients

    @classmethod
    def build(
        cls,
        prescreen: Sequence[Floats],
        bits: Sequence[NDArray[np.floating] | NDArray[np.integer]],
        types: Sequence[str],
    ) -> _Table:
        lengths = [len(row) for row in prescreen]
        scores = np.concatenate(prescreen).astype(np.float64)
        width = np.concatenate(bits).astype(np.float64)
        kind = np.repeat(np.array(types), lengths)
        positive = scores > 0
        log_score = np.log(np.where(positive, scores, 1.0))
        widths, kinds = np.unique(width), np.unique(kind)
        features = np.column_stack(
            [
                np.ones(len(scores)),
                log_score,
                width - width.mean(),
                width[:, None] == widths,
                kind[:, None] == kinds,
            ]
        )
        sds = np.array(
            [_INTERCEPT_SD, _SLOPE_SD, _TREND_SD, *[_WIDTH_SD] * len(widths), *[_TYPE_SD] * len(kinds)]
        )
        starts = np.cumsum([0, *lengths])[:-1].tolist()
        return cls(starts, len(scores), positive, features.astype(np.float64), sds)


def _regress(table: _Table, at: NDArray[np.integer], losses: Floats, ses: Floats) -> tuple[Floats, float]:
    """Return the fitted log loss of every option ``(N,)`` and the scatter around it."""
    x = table.features[at]
    target = np.log(losses) - x[:, 1]  # the prior slope is 1, so its excess is what shrinks to 0
    noise = (ses / losses) ** 2
    scatter, weight = _SCATTER, np.ones(len(at))
    coefficients = np.zeros(len(table.sds))
    for _ in range(_PASSES):
        precision = weight / (noise + scatter**2)
        normal = (x.T * precision) @ x + np.diag(1.0 / table.sds**2)
        coefficients = np.linalg.solve(normal, x.T @ (precision * target))
        residual = target - x @ coefficients
        scatter = _robust_scatter(residual, noise)
        standardized = np.abs(residual) / np.sqrt(noise + scatter**2)
        weight = np.minimum(1.0, _HUBER / np.maximum(standardized, _HUBER))
    return table.features[:, 1] + table.features @ coefficients, scatter


def _posterior_mean(location: Floats, scatter: float, losses: Floats, ses: Floats) -> Floats:
    """Mean loss given a log-normal prior and a Gaussian measurement, by quadrature: ``(M,)``."""
    seen = np.log(np.maximum(losses, np.exp(location - 8 * scatter)))
    low = np.minimum(location - 8 * scatter, seen - 1)
    high = np.maximum(location + 8 * scatter, seen + 1)
    grid = np.linspace(low, high, 4001)
    loss = np.exp(grid)
    log_density = -0.5 * ((grid - location) / scatter) ** 2 - 0.5 * ((loss - losses) / ses) ** 2
    density = np.exp(log_density - log_density.max(axis=0))
    return np.asarray((density * loss).sum(axis=0) / density.sum(axis=0))


def _robust_scatter(residual: Floats, noise: Floats) -> float:
    """Scatter beyond measurement noise, from the median absolute residual, shrunk to its prior."""
    spread = (_MAD_TO_SD * np.median(np.abs(residual))) ** 2 if len(residual) else 0.0
    excess = max(spread - float(np.median(noise)) if len(residual) else 0.0, 0.05**2)
    count = len(residual)
    return float(np.sqrt((count * excess + _SCATTER_COUNT * _SCATTER**2) / (count + _SCATTER_COUNT)))
