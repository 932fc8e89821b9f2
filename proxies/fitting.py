"""Fitting the link-additive model to a few measured plans near the budget.

:mod:`~tightfit.proxies.score_fitting` fits scores through one link; here the link is chosen, by how well
it predicts plans that its fit has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.additive import LinkAdditive
from tightfit.proxies.coupling import Coupling
from tightfit.proxies.links import LINKS, Floats
from tightfit.proxies.score_fitting import (
    FEWEST_PLANS,
    Group,
    Levels,
    PlanData,
    Ridge,
    assemble,
    fit_scores,
)

Rows = NDArray[np.bool_]

FOLDS = 10


@dataclass(frozen=True)
class LinkScore:
    """How well one link predicts plans that its fit has not seen.

    Attributes:
        link: its name; of a model of pools, the links of all pools.
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


def fit_link_additive(
    scores: Sequence[Floats],
    groups: Sequence[Sequence[Group]],
    levels: Levels,
    losses: Floats,
    ses: Floats,
    seed: int,
    couplings: Sequence[Coupling] = (),
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
        couplings: decisions that interact. Their excess is taken as it is: no factor scales it.

    Raises:
        ValueError: a loss is not finite, or a shape does not fit.
        InputError: a coupling is about other decisions or options.
    """
    data, names = assemble(scores, groups, levels, losses, ses, couplings)
    if len(data.losses) < FEWEST_PLANS:
        return fit_of("identity", data, names, scores, couplings)
    predictions = predict_unseen(data, seed)
    table = compare(predictions, data)
    name = chosen(table)
    return fit_of(name, data, names, scores, couplings, table, predictions[name])


def fit_of(
    link: str,
    data: PlanData,
    names: Sequence[Group],
    scores: Sequence[Floats],
    couplings: Sequence[Coupling],
    table: tuple[LinkScore, ...] = (),
    held_out: Floats | None = None,
) -> Fit:
    """Fit one link to all plans; ``table`` and ``held_out`` say how it was chosen."""
    fitted = fit_scores(LINKS[link], data)
    ends = np.cumsum([len(row) for row in scores])[:-1]
    model = LinkAdditive(tuple(np.split(fitted.weights, ends)), fitted.link, tuple(couplings))
    scales = dict(zip(names, fitted.factors.tolist(), strict=True))
    held = np.zeros(0) if held_out is None else held_out
    return Fit(model, fitted.ridge, scales, table, held, len(data.losses))


def predict_unseen(data: PlanData, seed: int) -> dict[str, Floats]:
    """Return, for every link, predictions of all plans by fits that have not seen them, ``(P,)``."""

    def held_out(name: str) -> Callable[[Rows], Floats]:
        return lambda held: fit_scores(LINKS[name], data.take(~held)).predict(data.take(held))

    return {name: cross_validate(held_out(name), len(data.losses), seed) for name in LINKS}


def cross_validate(held_out: Callable[[Rows], Floats], plans: int, seed: int) -> Floats:
    """Predict every plan by a fit that has not seen its fold.

    Args:
        held_out: fits to all plans but these, shape ``(P,)`` of booleans, and predicts these.
        plans: P.
        seed: of the folds; the same seed gives the same folds.

    Returns:
        Predictions in nats, shape ``(P,)``.
    """
    folds = np.random.default_rng([seed, 1]).permutation(plans) % min(FOLDS, plans)
    predicted = np.zeros(plans)
    for fold in np.unique(folds):
        predicted[folds == fold] = held_out(folds == fold)
    return predicted


def compare(predictions: Mapping[str, Floats], data: PlanData) -> tuple[LinkScore, ...]:
    """Compare models by their predictions of plans that they have not seen, one row each."""
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


def chosen(table: Sequence[LinkScore]) -> str:
    """Return the first model that is as good as the best, up to one standard error."""
    return next(row.link for row in table if row.excess <= 1.0)
