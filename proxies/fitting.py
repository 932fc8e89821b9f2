"""Fitting the link-additive model to a few measured plans near the budget.

Tens of plans cannot determine hundreds of scores, so the calibrated single-site losses are a prior
that the plans correct: every score is its prior times (1 + a common factor + a factor of its type and
width + a factor of its own), all Gaussian around 0. The posterior mean is exact and needs only a
plans × plans system (kernel form of Bayesian ridge regression; Rasmussen & Williams, *Gaussian
Processes for Machine Learning*, 2006, §2.1).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.additive import LinkAdditive
from tightfit.proxies.links import LINKS, Floats, Identity, Link

Group = tuple[str, int]
Levels = NDArray[np.integer[Any]]

FEWEST_PLANS = 6
"""With fewer plans than this only the common factor is fitted."""

FOLDS = 10
_ROUNDS = 2  # of fitting the link to the scores and the scores through the link; a third moves nothing
_COMMON_SD = 0.5
_RELATIVE_SDS = (0.0, 0.1, 0.2, 0.4)
_MISFIT = 0.03  # no plan's loss is additive to better than about 3 %, however well it was measured
_ROUNDING = 1e-6  # nats


@dataclass(frozen=True)
class Ridge:
    """How far scores may move from their prior, as relative standard deviations.

    Attributes:
        group: of the factor that one type and width share; s(type, bits) in w = s·prior + δ.
        site: of each score's own factor; δ in units of the prior.
    """

    group: float
    site: float


@dataclass(frozen=True)
class LinkScore:
    """How well one link predicts plans that its fit has not seen.

    Attributes:
        link: its name.
        error: cross-validated root mean squared error in nats, plans weighted by inverse variance.
        excess: mean squared error above the best link's, in standard errors of the best link's over
            plans; at most 1 means as good as the best.
    """

    link: str
    error: float
    excess: float


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted loss model and how it was chosen.

    Attributes:
        model: the loss model.
        ridge: strengths chosen by leave-one-out error.
        scales: fitted s(type, bits), the factor on the prior.
        table: one row per link that was compared; empty with too few plans to compare.
        held_out: cross-validated predictions of the measured plans under the chosen link, in nats,
            shape ``(P,)``; empty with too few plans.
        plans: number of measured plans.
    """

    model: LinkAdditive
    ridge: Ridge
    scales: dict[Group, float]
    table: tuple[LinkScore, ...]
    held_out: Floats
    plans: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as plain data."""
        return {
            "model": self.model.to_dict(),
            "ridge": asdict(self.ridge),
            "scales": [[kind, bits, scale] for (kind, bits), scale in self.scales.items()],
            "table": [asdict(row) for row in self.table],
            "held_out": self.held_out.tolist(),
            "plans": self.plans,
        }


@dataclass(frozen=True, eq=False)
class _Data:
    """Plans as linear algebra: N options of all decisions in one row, G groups, P plans."""

    scores: Floats  # (N,)
    membership: Floats  # (N, G), one 1 per row
    choices: Floats  # (P, N), one 1 per decision
    losses: Floats  # (P,)
    variances: Floats  # (P,)

    def take(self, rows: NDArray[np.bool_]) -> _Data:
        return replace(
            self, choices=self.choices[rows], losses=self.losses[rows], variances=self.variances[rows]
        )


@dataclass(frozen=True, eq=False)
class _Scores:
    """Scores fitted through one link."""

    link: Link
    weights: Floats  # (N,)
    factors: Floats  # (G,)
    ridge: Ridge


def fit_link_additive(
    scores: Sequence[Floats],
    groups: Sequence[Sequence[Group]],
    levels: Levels,
    losses: Floats,
    ses: Floats,
    seed: int,
) -> Fit:
    """Fit scores and link to measured plans.

    Ridge strengths minimize the leave-one-out error; the link is the simplest one whose K-fold error
    is within one standard error of the best link's (Breiman et al., *Classification and Regression
    Trees*, 1984, §3.4.3).

    Args:
        scores: per decision the single-site losses of its options, in nats: the prior. A score of 0
            stays 0.
        groups: per decision and option its (type, bits).
        levels: measured plans, shape ``(P, D)``. Without plans the prior comes back; with fewer than
            :data:`FEWEST_PLANS` only its common factor is fitted.
        losses: their losses in nats per token, shape ``(P,)``.
        ses: standard errors of the losses, shape ``(P,)``; one that is not finite is unknown, and the
            loss is trusted as far as any additive model can be.
        seed: of the folds.

    Raises:
        ValueError: a loss is not finite, or a shape does not fit.
    """
    data, names = _assemble(scores, groups, levels, losses, ses)
    plans = len(data.losses)
    table: tuple[LinkScore, ...] = ()
    held_out = np.zeros(0)
    link: type[Link] = Identity
    if plans >= FEWEST_PLANS:
        folds = np.random.default_rng([seed, 1]).permutation(plans) % min(FOLDS, plans)
        predictions = {name: _cross_validate(kind, data, folds) for name, kind in LINKS.items()}
        table = _compare(predictions, data)
        name = next(row.link for row in table if row.excess <= 1.0)
        link, held_out = LINKS[name], predictions[name]
    fitted = _fit(link, data)
    ends = np.cumsum([len(row) for row in scores])[:-1]
    model = LinkAdditive(tuple(np.split(fitted.weights, ends)), fitted.link)
    scales = dict(zip(names, fitted.factors.tolist(), strict=True))
    return Fit(model, fitted.ridge, scales, table, held_out, plans)


def _assemble(
    scores: Sequence[Floats],
    groups: Sequence[Sequence[Group]],
    levels: Levels,
    losses: Floats,
    ses: Floats,
) -> tuple[_Data, list[Group]]:
    losses, ses = np.asarray(losses, dtype=np.float64), np.asarray(ses, dtype=np.float64)
    if not np.isfinite(losses).all():
        raise ValueError("losses must be finite")
    if [len(row) for row in scores] != [len(row) for row in groups]:
        raise ValueError("scores and groups must have one entry per decision and option")
    labels = [group for row in groups for group in row]
    names = list(dict.fromkeys(labels))
    membership = np.eye(len(names))[[names.index(label) for label in labels]]
    choices = np.zeros((len(losses), len(labels)))
    if len(losses):
        starts = np.cumsum([0, *(len(row) for row in scores)])[:-1]
        np.put_along_axis(choices, np.asarray(levels) + starts, 1.0, axis=1)
    variances = np.where(np.isfinite(ses), ses, 0.0) ** 2 + (_MISFIT * losses) ** 2 + _ROUNDING**2
    return _Data(np.concatenate(scores), membership, choices, losses, variances), names


def _cross_validate(kind: type[Link], data: _Data, folds: NDArray[np.integer[Any]]) -> Floats:
    """Predict every plan by a fit that has not seen its fold: shape ``(P,)``."""
    predicted = np.zeros(len(folds))
    for fold in np.unique(folds):
        held = folds == fold
        fitted = _fit(kind, data.take(~held))
        predicted[held] = fitted.link(data.choices[held] @ fitted.weights)
    return predicted


def _compare(predictions: dict[str, Floats], data: _Data) -> tuple[LinkScore, ...]:
    weight = 1.0 / data.variances
    weight /= weight.mean()
    squared = {name: weight * (p - data.losses) ** 2 for name, p in predictions.items()}
    best = min(squared.values(), key=lambda row: float(row.mean()))
    least, se = float(best.mean()), float(best.std(ddof=1) / np.sqrt(len(best)))
    rows = {name: float(row.mean()) for name, row in squared.items()}
    return tuple(
        LinkScore(name, float(np.sqrt(mean)), (mean - least) / se if se else 0.0)
        for name, mean in rows.items()
    )


def _fit(kind: type[Link], data: _Data) -> _Scores:
    if not len(data.losses):
        factors = np.ones(data.membership.shape[1])
        return _Scores(Identity(), data.scores, factors, Ridge(0.0, 0.0))
    additive = data.choices @ data.scores
    for _ in range(_ROUNDS):
        link = kind.fit(additive, data.losses, 1.0 / data.variances)
        fitted = _fit_scores(link, data)
        additive = data.choices @ fitted.weights
    return fitted


def _fit_scores(link: Link, data: _Data) -> _Scores:
    """Posterior mean of the scores given the link, with the ridge of least leave-one-out error.

    Losses are compared as additive scores u = g⁻¹(loss), their variances divided by g'(u)².
    Leave-one-out predictions come from the one inverse (Rasmussen & Williams, 2006, eq. 5.12).
    """
    prior = link.inverse(data.scores)
    target = link.inverse(data.losses)
    chosen = data.choices * prior
    mean, by_group = chosen.sum(axis=1), chosen @ data.membership
    noise = np.diag(data.variances / link.slope(target) ** 2)
    common = noise + _COMMON_SD**2 * np.outer(mean, mean)
    kernels = by_group @ by_group.T, chosen @ chosen.T
    candidates = []
    for ridge in _ridges(len(target)):
        covariance = common + ridge.group**2 * kernels[0] + ridge.site**2 * kernels[1]
        inverse = np.linalg.inv(covariance)
        alpha = inverse @ (target - mean)
        left_out = link(target - alpha / np.diag(inverse))
        error = float(np.mean((left_out - data.losses) ** 2 / data.variances))
        candidates.append((error, ridge, alpha))
    _, ridge, alpha = min(candidates, key=lambda candidate: candidate[0])
    factors = 1.0 + _COMMON_SD**2 * (mean @ alpha) + ridge.group**2 * (by_group.T @ alpha)
    own = ridge.site**2 * (chosen.T @ alpha)
    return _Scores(link, prior * (data.membership @ factors + own), factors, ridge)


def _ridges(plans: int) -> list[Ridge]:
    """Strengths to try, strongest first, so that ties keep the prior."""
    if plans < FEWEST_PLANS:
        return [Ridge(0.0, 0.0)]
    return [Ridge(group, site) for site, group in itertools.product(_RELATIVE_SDS, repeat=2)]
