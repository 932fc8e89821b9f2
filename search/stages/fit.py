"""Fit: make a loss model of the scores, and say out of sample how far to trust it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.additive import synergy
from tightfit.proxies.certificate import FEWEST, band_certificate, paired_ses, unexplained_variance
from tightfit.proxies.fitting import Fit
from tightfit.proxies.marginals import width_of
from tightfit.proxies.pool_fitting import PoolFit, choose_model
from tightfit.proxies.sampling import distribution_text, sample, sample_band, tilted
from tightfit.proxies.score_fitting import Group
from tightfit.search.archive import SENSING, successes
from tightfit.search.loss_models import LossModel
from tightfit.search.stages.prepare import Bench
from tightfit.search.stages.sense import Sensed, kind, rows_of
from tightfit.workers.measurement import Failure, Measurement

Levels = NDArray[np.integer[Any]]

_PURPOSE_FIT, _PURPOSE_VARIANCE, _PURPOSE_BAND = 11, 12, 13
BAND = 0.01
"""Half width of the certificate's band around the budget, as a share of its bytes."""


@dataclass(frozen=True)
class Measured:
    """Plans drawn at random and what they measured.

    Attributes:
        levels: shape (P, D).
    """

    levels: Levels
    measurements: list[Measurement]

    @property
    def losses(self) -> NDArray[np.float64]:
        """Losses in nats per token, shape (P,)."""
        return np.array([m.kl for m in self.measurements])

    @property
    def ses(self) -> NDArray[np.float64]:
        """Standard errors of the losses over documents, shape (P,)."""
        return np.array([m.kl_se for m in self.measurements])

    @property
    def paired_ses(self) -> NDArray[np.float64]:
        """Standard errors of all differences of two plans on the same documents, shape (P, P)."""
        losses = np.array([[d.kl for d in m.documents] for m in self.measurements])
        return paired_ses(losses, np.array([d.tokens for d in self.measurements[0].documents]))

    @property
    def certifiable(self) -> bool:
        """Whether there are enough plans and documents for a certificate to rest on."""
        return len(self.measurements) >= FEWEST and self.documents > 1

    @property
    def documents(self) -> int:
        """Number of documents that every plan was measured on."""
        return len(self.measurements[0].documents) if self.measurements else 0


@dataclass(frozen=True)
class Fitted:
    """The fitted loss model, and the plans that it has seen."""

    fit: Fit | PoolFit
    levels: Levels


def fit(bench: Bench, sensed: Sensed) -> Fitted:
    """Measure random plans near the budget and fit the loss model to them."""
    settings = bench.settings
    drawn = _near_budget(bench, sensed, settings.sense.fit_plans, _PURPOSE_FIT)
    what = "measuring plans for the loss model"
    seen = _measure(bench, drawn, "fit", what, settings.sense.fit_tokens)
    decisions = bench.space.decisions
    groups = [
        [(kind(bench.space, decision), width_of(option)) for option in decision.options]
        for decision in decisions
    ]
    fitted = _fit(bench, sensed, groups, seen)
    bench.store.add_scores("loss_model", rows_of(decisions, list(fitted.model.weights)))
    bench.store.add_fit(
        "link",
        {
            **fitted.to_dict(),
            "fit_tokens": settings.sense.fit_tokens,
            "asked_plans": settings.sense.fit_plans,
            "synergy": _synergy(sensed, seen),
        },
    )
    return Fitted(fitted, seen.levels)


def _fit(bench: Bench, sensed: Sensed, groups: Sequence[Sequence[Group]], seen: Measured) -> Fit | PoolFit:
    """Fit one link for all decisions, with what blocks lose jointly, or one for each kind of decision."""
    matrices = len(bench.space.matrix_decisions)
    everything = range(len(bench.space.decisions))
    pools = [("weights", tuple(everything[:matrices])), ("kv", tuple(everything[matrices:]))]
    return choose_model(
        sensed.calibrated,
        groups,
        seen.levels,
        seen.losses,
        seen.ses,
        bench.settings.seed,
        [pool for pool in pools if pool[1]],
        sensed.couplings,
    ).fit


def _synergy(sensed: Sensed, measured: Measured) -> float | None:
    """Measured loss of whole plans over the sum of what their choices lose one at a time, on average."""
    if not len(measured.levels):
        return None
    alone = [
        [row[level] for row, level in zip(sensed.calibrated, plan, strict=True)] for plan in measured.levels
    ]
    ratios = [synergy(loss, row) for loss, row in zip(measured.losses, alone, strict=True) if sum(row) > 0]
    return float(np.mean(ratios)) if ratios else None


def certify(bench: Bench, sensed: Sensed, fitted: Fitted) -> list[str]:
    """Measure plans that no fit has seen, and write both certificates into the store.

    Returns:
        Why a certificate is missing, if one is: a small space or very small settings may leave too
        few plans or documents for it.
    """
    sense, model = bench.settings.sense, fitted.fit.model
    half = sense.certificate_plans // 2
    mean = _mean_bytes(bench)
    everywhere = sample(tilted(_costs(bench), mean), half, _generator(bench, _PURPOSE_VARIANCE))
    near = _near_budget(bench, sensed, sense.certificate_plans - half, _PURPOSE_BAND)
    what = "measuring plans for certificate"
    tokens = sense.fit_tokens
    first = _measure(bench, _unseen(everywhere, fitted.levels), "certificate", f"{what} 1", tokens)
    second = _measure(bench, _unseen(near, fitted.levels), "certificate", f"{what} 2", tokens)
    bench.store.forget((), ("certificate_variance", "certificate_band"))  # of an earlier loss model
    if first.certifiable:
        variance = unexplained_variance(
            model.predict(first.levels),
            first.losses,
            first.paired_ses,
            _generator(bench, _PURPOSE_VARIANCE, 1),
            distribution_text(mean),
        )
        bench.store.add_fit("certificate_variance", {**variance.to_dict(), "points": _points(model, first)})
    if second.certifiable:
        close = band_certificate(
            model.predict(second.levels),
            second.losses,
            second.paired_ses,
            _generator(bench, _PURPOSE_BAND, 2),
        )
        points = _points(model, second)
        bench.store.add_fit("certificate_band", {**close.to_dict(), "band": BAND, "points": points})
    return [
        f"certificate {number}: left out, {len(seen.levels)} plans that no fit has seen on "
        f"{seen.documents} documents are too few (at least {FEWEST} plans and 2 documents)"
        for number, seen in ((1, first), (2, second))
        if not seen.certifiable
    ]


def _unseen(levels: Levels, seen: Levels) -> Levels:
    """Leave out plans that a fit has seen."""
    known = {tuple(row) for row in seen.tolist()}
    return np.array([row for row in levels.tolist() if tuple(row) not in known], dtype=np.int64).reshape(
        -1, levels.shape[1]
    )


def _mean_bytes(bench: Bench) -> float:
    """Bytes that the decisions of a plan at the budget take."""
    space = bench.space
    return float(min(bench.limit, space.ceiling) - space.fixed_bytes)


def _near_budget(bench: Bench, sensed: Sensed, count: int, purpose: int) -> Levels:
    """Draw plans within the band around the budget, most of them about as good as one would choose.

    Half the plans are drawn evenly and half tilted to low predicted loss, at a temperature that
    makes the tilt visible but keeps every option in play.
    """
    costs, mean = _costs(bench), _mean_bytes(bench)
    low, high = mean * (1 - BAND), mean * (1 + BAND)
    losses = sensed.calibrated
    spread = np.concatenate([row - row.min() for row in losses])
    temperature = float(np.mean(spread[spread > 0])) if (spread > 0).any() else 1.0
    parts = [
        sample_band(costs, tilted(costs, mean), low, high, count // 2, _generator(bench, purpose, 0)),
        sample_band(
            costs,
            tilted(costs, mean, losses, temperature),
            low,
            high,
            count - count // 2,
            _generator(bench, purpose, 1),
        ),
    ]
    return np.unique(np.concatenate(parts), axis=0)


def _measure(bench: Bench, levels: Levels, source: str, what: str, tokens: int) -> Measured:
    """Measure plans; those whose loss cannot be measured are left out."""
    plans = [(bench.space.plan(row.tolist()), source) for row in levels]
    with bench.progress.stage("fit" if source == "fit" else "certify", what) as tick:
        outcomes = bench.archive.measure_all(plans, SENSING, tokens, tick)
    kept = [not isinstance(outcome, Failure) for outcome in outcomes]
    return Measured(levels[kept], successes(outcomes))


def _points(model: LossModel, measured: Measured) -> list[dict[str, object]]:
    predicted = model.predict(measured.levels)
    return [
        {"digest": m.plan, "predicted": float(p), "measured": m.kl, "se": m.kl_se}
        for m, p in zip(measured.measurements, predicted, strict=True)
    ]


def _costs(bench: Bench) -> Sequence[NDArray[np.int64]]:
    return [np.array(decision.costs, dtype=np.int64) for decision in bench.space.decisions]


def _generator(bench: Bench, *purpose: int) -> np.random.Generator:
    return np.random.default_rng([bench.settings.seed, *purpose])
