"""Certificates: how far a loss model's predictions may be trusted, always out of sample.

Both compare predictions with measurements of plans that the model was not fitted on, as they are:
nothing is recalibrated. Intervals are percentile bootstraps over plans (Efron & Tibshirani, *An
Introduction to the Bootstrap*, 1993, §13.3).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.links import Floats
from tightfit.proxies.resampling import Interval, bootstrap, mean, pair_sum, ratio, variance

FEWEST = 4
"""Fewest plans that a certificate can rest on."""

_CLEARLY = 2.0  # standard errors between two plans that count as different


@dataclass(frozen=True)
class VarianceCertificate:
    """Certificate (i): the share of the variance of losses that the predictions leave unexplained.

    Attributes:
        unexplained: that share, measurement noise subtracted from both variances, not below 0; None
            where the noise is as large as the whole spread.
        interval: its 95 % bootstrap interval.
        bias: mean prediction minus mean measurement, in nats; it is no variance, so it is told apart.
        noise: share of the measured variance that is measurement noise.
        distribution: in words, what the plans were drawn from.
        plans: how many.
    """

    unexplained: float | None
    interval: Interval
    bias: float
    noise: float
    distribution: str
    plans: int

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain data; infinite ends become None."""
        return _finite(asdict(self))


@dataclass(frozen=True)
class BandCertificate:
    """Certificate (ii): how well predictions order plans of about the same bytes.

    An interval of misordered pairs from 0 to 0 says that no resample held one, not that none exists.

    Attributes:
        r2: 1 − Σ(measured − predicted)²/Σ(measured − mean)²; below 0 where the mean would do better.
        tau: Kendall's τ-b of predictions and measurements.
        misordered: share of the clearly different pairs that the predictions order wrongly (a tie is
            half wrong); None without such pairs.
        pairs: number of pairs whose measurements differ by more than two standard errors.
        r2_interval, tau_interval, misordered_interval: 95 % bootstrap intervals.
        bias: mean prediction minus mean measurement, in nats.
        noise: share of the measured variance that is measurement noise: no R² can exceed 1 − noise
            by more than chance.
        plans: how many.
    """

    r2: float
    r2_interval: Interval
    tau: float
    tau_interval: Interval
    misordered: float | None
    misordered_interval: Interval
    pairs: int
    bias: float
    noise: float
    plans: int

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain data; infinite ends become None."""
        return _finite(asdict(self))


def paired_ses(losses: Floats, tokens: NDArray[np.integer[Any]]) -> Floats:
    """Return the standard error of every difference of two plans' losses per token.

    The linearized ratio estimator over documents (Cochran, *Sampling Techniques*, 1977, §6.4), for all
    pairs at once: what documents have in common for two plans cancels.

    Args:
        losses: summed loss of every plan on every document, in nats, shape ``(P, documents)``.
        tokens: scored tokens of every document, shape ``(documents,)``.

    Returns:
        Shape ``(P, P)``, 0 on the diagonal.

    Raises:
        ValueError: fewer than two documents.
    """
    losses, tokens = np.asarray(losses, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    documents, total = len(tokens), tokens.sum()
    if documents < 2:
        raise ValueError(f"standard errors need at least two documents, got {documents}")
    residual = losses - np.outer(losses.sum(axis=1) / total, tokens)
    squares = ((residual[:, None, :] - residual[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(np.sqrt(documents / (documents - 1) * squares) / total)


def unexplained_variance(
    predicted: Floats, measured: Floats, ses: Floats, rng: np.random.Generator, distribution: str
) -> VarianceCertificate:
    """Certify predictions over a stated distribution of plans.

    Args:
        predicted: predicted losses in nats, shape ``(P,)``.
        measured: measured losses of the same plans, shape ``(P,)``.
        ses: standard errors of the measurements ``(P,)`` where these are independent, or of all paired
            differences ``(P, P)`` where plans share documents (:func:`paired_ses`): noise that all
            plans share spreads them no further, so only its paired part is subtracted.
        rng: generator of the bootstrap.
        distribution: in words, what the plans were drawn from.

    Raises:
        ValueError: fewer than :data:`FEWEST` plans, shapes that differ, or values that are not finite.
    """
    predicted, measured, paired = _checked(predicted, measured, ses)
    noise = _noise(paired)
    residual = measured - predicted

    def share(counts: Floats) -> Floats:
        total = variance(measured, counts) - mean(noise, counts)
        left = np.maximum(variance(residual, counts) - mean(noise, counts), 0.0)
        return np.nan_to_num(ratio(left, total), nan=np.inf)

    once = np.ones((1, len(measured)))
    value = float(share(once)[0])
    return VarianceCertificate(
        unexplained=value if np.isfinite(value) else None,
        interval=bootstrap(share, len(measured), rng),
        bias=float(np.mean(predicted - measured)),
        noise=_noise_share(noise, measured),
        distribution=distribution,
        plans=len(measured),
    )


def band_certificate(
    predicted: Floats, measured: Floats, ses: Floats, rng: np.random.Generator
) -> BandCertificate:
    """Certify predictions among plans of about the same bytes.

    Args:
        predicted: predicted losses in nats, shape ``(P,)``.
        measured: measured losses of the same plans, shape ``(P,)``.
        ses: as in :func:`unexplained_variance`; paired ones find more pairs that clearly differ.
        rng: generator of the bootstrap.

    Raises:
        ValueError: fewer than :data:`FEWEST` plans, shapes that differ, or values that are not finite.
    """
    predicted, measured, paired = _checked(predicted, measured, ses)
    gaps = measured[:, None] - measured[None, :]
    agreement = np.sign(gaps) * np.sign(predicted[:, None] - predicted[None, :])
    measured_apart = (gaps != 0).astype(np.float64)
    predicted_apart = (predicted[:, None] != predicted[None, :]).astype(np.float64)
    clear = (np.abs(gaps) > _CLEARLY * paired).astype(np.float64)
    wrong = clear * (1.0 - agreement) / 2
    squared = (measured - predicted) ** 2

    def r2(counts: Floats) -> Floats:
        spread = variance(measured, counts) * (1 - 1 / len(measured))
        return 1.0 - ratio(mean(squared, counts), spread)

    def tau(counts: Floats) -> Floats:
        apart = pair_sum(measured_apart, counts) * pair_sum(predicted_apart, counts)
        return ratio(pair_sum(agreement, counts), np.sqrt(apart))

    def misordered(counts: Floats) -> Floats:
        return ratio(pair_sum(wrong, counts), pair_sum(clear, counts))

    n, once = len(measured), np.ones((1, len(measured)))
    pairs = round(float(clear.sum()) / 2)
    return BandCertificate(
        r2=float(r2(once)[0]),
        r2_interval=bootstrap(r2, n, rng),
        tau=float(tau(once)[0]),
        tau_interval=bootstrap(tau, n, rng),
        misordered=float(misordered(once)[0]) if pairs else None,
        misordered_interval=bootstrap(misordered, n, rng),
        pairs=pairs,
        bias=float(np.mean(predicted - measured)),
        noise=_noise_share(_noise(paired), measured),
        plans=n,
    )


def _checked(predicted: Floats, measured: Floats, ses: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the inputs as arrays, standard errors as a matrix of paired differences."""
    predicted, measured, ses = (np.asarray(x, dtype=np.float64) for x in (predicted, measured, ses))
    n = len(measured)
    if n < FEWEST:
        raise ValueError(f"a certificate needs at least {FEWEST} plans, got {n}")
    if predicted.shape != (n,) or ses.shape not in ((n,), (n, n)):
        raise ValueError(f"{n} measurements need {n} predictions and ({n},) or ({n}, {n}) standard errors")
    if not all(np.isfinite(x).all() for x in (predicted, measured, ses)):
        raise ValueError("predictions, measurements and standard errors must be finite")
    if ses.ndim == 2:
        return predicted, measured, ses
    paired = np.sqrt(ses[:, None] ** 2 + ses[None, :] ** 2)
    np.fill_diagonal(paired, 0.0)
    return predicted, measured, paired


def _noise(paired: Floats) -> Floats:
    """Every plan's part in the variance that noise alone would cause between plans: ``(P,)``."""
    return np.asarray((paired**2).sum(axis=1) / (2 * (len(paired) - 1)))


def _noise_share(noise: Floats, measured: Floats) -> float:
    spread = float(np.var(measured, ddof=1))
    return float(noise.mean()) / spread if spread > 0 else 1.0


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    """Replace numbers that JSON cannot hold by None."""
    return {
        key: _finite(value)
        if isinstance(value, dict)
        else (None if isinstance(value, float) and not np.isfinite(value) else value)
        for key, value in data.items()
    }
