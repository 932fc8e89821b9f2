"""Scores of single choices corrected by a few measured plans, seen through one link.

Tens of plans cannot determine hundreds of scores, so the calibrated single-site losses are a prior
that the plans correct: every score is its prior times (1 + a common factor + a factor of its type and
width + a factor of its own), all Gaussian around 0. The posterior mean is exact and needs only a
plans × plans system (kernel form of Bayesian ridge regression; Rasmussen & Williams, *Gaussian
Processes for Machine Learning*, 2006, §2.1). The excess of coupled choices was measured jointly and
stays as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.coupling import Coupling, check_couplings, total_excess
from tightfit.proxies.links import Floats, Identity, Link

Group = tuple[str, float]
Levels = NDArray[np.integer[Any]]

FEWEST_PLANS = 6
"""With fewer plans than this only the common factor is fitted."""

_ROUNDS = 2  # of fitting the link to the scores and the scores through the link; a third moves nothing
_COMMON_SD = 0.5
_RELATIVE_SDS = (0.0, 0.1, 0.2, 0.4)
_MISFIT = 0.03  # no plan's loss is additive to better than about 3 %, however well it was measured
_ROUNDING = 1e-6  # nats
_STEEPEST = 1e6
_EXACT = 1e-4  # share of a score; far less than what is left of any misfit


@dataclass(frozen=True)
class Ridge:
    """How far scores may move from their prior, as relative standard deviations.

    Attributes:
        group: of the factor that one type and width share; s(type, bits) in w = s·prior + δ.
        site: of each score's own factor; δ in units of the prior.
    """

    group: float
    site: float


@dataclass(frozen=True, eq=False)
class PlanData:
    """Plans as linear algebra: N options of all decisions in one row, G groups, P plans."""

    scores: Floats  # (N,)
    membership: Floats  # (N, G), one 1 per row
    choices: Floats  # (P, N), one 1 per decision
    losses: Floats  # (P,)
    variances: Floats  # (P,)
    excess: Floats  # (P,), summed over couplings

    def take(self, rows: NDArray[np.bool_]) -> PlanData:
        """Return some of the plans."""
        return replace(
            self,
            choices=self.choices[rows],
            losses=self.losses[rows],
            variances=self.variances[rows],
            excess=self.excess[rows],
        )

    def additive(self, weights: Floats) -> Floats:
        """Return Σ w + Σ excess of every plan, shape (P,)."""
        total: Floats = self.choices @ weights + self.excess
        return total


@dataclass(frozen=True, eq=False)
class FittedScores:
    """Scores fitted through one link."""

    link: Link
    weights: Floats  # (N,)
    factors: Floats  # (G,)
    ridge: Ridge

    def predict(self, data: PlanData) -> Floats:
        """Return the predicted loss of every plan, shape (P,)."""
        return self.link(data.additive(self.weights))


def assemble(
    scores: Sequence[Floats],
    groups: Sequence[Sequence[Group]],
    levels: Levels,
    losses: Floats,
    ses: Floats,
    couplings: Sequence[Coupling] = (),
) -> tuple[PlanData, list[Group]]:
    """Write plans as linear algebra; see :func:`fit_link_additive <tightfit.proxies.fit_link_additive>`.

    Returns:
        The plans, and the groups' names in the order of their factors.
    """
    losses, ses = np.asarray(losses, dtype=np.float64), np.asarray(ses, dtype=np.float64)
    if not np.isfinite(losses).all():
        raise ValueError("losses must be finite")
    if [len(row) for row in scores] != [len(row) for row in groups]:
        raise ValueError("scores and groups must have one entry per decision and option")
    check_couplings(couplings, [len(row) for row in scores])
    labels = [group for row in groups for group in row]
    names = list(dict.fromkeys(labels))
    membership = np.eye(len(names))[[names.index(label) for label in labels]]
    choices = np.zeros((len(losses), len(labels)))
    if len(losses):
        starts = np.cumsum([0, *(len(row) for row in scores)])[:-1]
        np.put_along_axis(choices, np.asarray(levels) + starts, 1.0, axis=1)
    variances = np.where(np.isfinite(ses), ses, 0.0) ** 2 + (_MISFIT * losses) ** 2 + _ROUNDING**2
    excess = total_excess(couplings, levels) if len(losses) else np.zeros(0)
    return PlanData(np.concatenate(scores), membership, choices, losses, variances, excess), names


def fit_scores(kind: type[Link], data: PlanData) -> FittedScores:
    """Fit a link and scores; without plans the prior comes back."""
    if not len(data.losses):
        factors = np.ones(data.membership.shape[1])
        return FittedScores(Identity(), data.scores, factors, Ridge(0.0, 0.0))
    additive = data.additive(data.scores)
    for _ in range(_ROUNDS):
        link = kind.fit(additive, data.losses, 1.0 / data.variances)
        fitted = _posterior(link, data)
        additive = data.additive(fitted.weights)
    return fitted


def _posterior(link: Link, data: PlanData) -> FittedScores:
    """Posterior mean of the scores given the link, with the ridge of least leave-one-out error.

    Losses are compared as additive scores u = g⁻¹(loss), their variances divided by g'(u)².
    Leave-one-out predictions come from the one inverse (Rasmussen & Williams, 2006, eq. 5.12).
    """
    prior = link.inverse(data.scores)
    target = link.inverse(data.losses)
    chosen = data.choices * prior
    mean, by_group = chosen.sum(axis=1), chosen @ data.membership
    # Where what a pool is left with is below 0, its link bends out of all proportion: plans must neither
    # count for nothing at all nor be believed to the last digit.
    slope = np.clip(link.slope(target), 1 / _STEEPEST, _STEEPEST)
    noise = np.diag(np.maximum(data.variances / slope**2, (_EXACT * mean) ** 2))
    common = noise + _COMMON_SD**2 * np.outer(mean, mean)
    kernels = by_group @ by_group.T, chosen @ chosen.T
    candidates = []
    for ridge in _ridges(len(target)):
        covariance = common + ridge.group**2 * kernels[0] + ridge.site**2 * kernels[1]
        inverse = np.linalg.inv(covariance)
        alpha = inverse @ (target - data.excess - mean)
        left_out = link(target - alpha / np.diag(inverse))
        error = float(np.mean((left_out - data.losses) ** 2 / data.variances))
        candidates.append((error, ridge, alpha))
    _, ridge, alpha = min(candidates, key=lambda candidate: candidate[0])
    factors = 1.0 + _COMMON_SD**2 * (mean @ alpha) + ridge.group**2 * (by_group.T @ alpha)
    own = ridge.site**2 * (chosen.T @ alpha)
    return FittedScores(link, prior * (data.membership @ factors + own), factors, ridge)


def _ridges(plans: int) -> list[Ridge]:
    """Strengths to try, strongest first, so that ties keep the prior."""
    if plans < FEWEST_PLANS:
        return [Ridge(0.0, 0.0)]
    return [Ridge(group, site) for site, group in itertools.product(_RELATIVE_SDS, repeat=2)]
