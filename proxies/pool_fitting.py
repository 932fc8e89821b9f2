"""Fitting pools with a link each, and choosing between them and one link for all.

Pools are fitted in turn, each to what the others leave of the measured losses, until nothing moves
(backfitting: Buja, Hastie & Tibshirani, *Linear smoothers and additive models*, Annals of Statistics
1989). Scores keep their prior, so pools that measured plans cannot tell apart stay near it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tightfit.proxies.additive import LinkAdditive
from tightfit.proxies.coupling import Coupling
from tightfit.proxies.fitting import (
    Fit,
    LinkScore,
    Rows,
    chosen,
    compare,
    cross_validate,
    fit_link_additive,
    fit_of,
    predict_unseen,
)
from tightfit.proxies.links import LINKS, Floats
from tightfit.proxies.pools import PooledModel, Pools, check_pools, within_pools
from tightfit.proxies.score_fitting import (
    FEWEST_PLANS,
    FittedScores,
    Group,
    Levels,
    PlanData,
    Ridge,
    assemble,
    fit_scores,
)
from tightfit.spaces import InputError

_ROUNDS = 6
_STILL = 1e-3  # relative change of the predictions at which fitting in turn ends

Links = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class PoolFit:
    """A fitted model of pools and how its links were chosen; see :class:`Fit`.

    Attributes:
        model: the loss model.
        ridges: strengths chosen for every pool.
        scales: fitted s(type, bits) of every pool.
        table: one row per choice that was compared, simplest first.
        held_out: cross-validated predictions of the measured plans, in nats, shape ``(P,)``.
        plans: number of measured plans.
    """

    model: PooledModel
    ridges: tuple[Ridge, ...]
    scales: tuple[dict[Group, float], ...]
    table: tuple[LinkScore, ...]
    held_out: Floats
    plans: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as plain data."""
        return {
            "model": self.model.to_dict(),
            "ridges": [asdict(ridge) for ridge in self.ridges],
            "scales": [[[kind, bits, scale] for (kind, bits), scale in row.items()] for row in self.scales],
            "table": [asdict(row) for row in self.table],
            "held_out": self.held_out.tolist(),
            "plans": self.plans,
        }


@dataclass(frozen=True, eq=False)
class Choice:
    """The loss model that predicts unseen plans best, up to one standard error, simplest first.

    Attributes:
        fit: of the chosen model.
    """

    fit: Fit | PoolFit

    @property
    def model(self) -> LinkAdditive | PooledModel:
        """The chosen model."""
        return self.fit.model

    @property
    def table(self) -> tuple[LinkScore, ...]:
        """One row per model that was compared: one link first, then pools."""
        return self.fit.table

    @property
    def held_out(self) -> Floats:
        """Predictions of the measured plans by fits that have not seen them, shape ``(P,)``."""
        return self.fit.held_out


def fit_pools(
    scores: Sequence[Floats],
    groups: Sequence[Sequence[Group]],
    levels: Levels,
    losses: Floats,
    ses: Floats,
    pools: Pools,
    seed: int,
    couplings: Sequence[Coupling] = (),
) -> PoolFit:
    """Fit scores and a link per pool to measured plans.

    Links are chosen for one pool after the other, by the cross-validated error of the whole model; of
    all choices that were tried the first within one standard error of the best is kept.

    Args:
        scores: per decision the single-site losses of its options, in nats.
        groups: per decision and option its (type, bits).
        levels: measured plans, shape ``(P, D)``, at least :data:`FEWEST_PLANS`.
        losses: their losses in nats per token, shape ``(P,)``.
        ses: standard errors of the losses, shape ``(P,)``.
        pools: name and decisions of every pool.
        seed: of the folds, the same as in :func:`fit_link_additive`.
        couplings: decisions that interact, each within one pool; their excess is taken as it is.

    Raises:
        ValueError: a loss is not finite, or a shape does not fit.
        InputError: pools do not partition the decisions, a coupling crosses pools, or there are too few
            plans to choose links.
    """
    fitting = _Pooled.of(scores, groups, levels, losses, ses, pools, couplings)
    predictions = fitting.predict_unseen(seed)
    rows = {fitting.name(links): row for links, row in predictions.items()}
    table = compare(rows, fitting.data[0])
    name = chosen(table)
    links = next(links for links in predictions if fitting.name(links) == name)
    return fitting.fit(links, table, rows[name])


def choose_model(
    scores: Sequence[Floats],
    groups: Sequence[Sequence[Group]],
    levels: Levels,
    losses: Floats,
    ses: Floats,
    seed: int,
    pools: Pools,
    couplings: Sequence[Coupling] = (),
) -> Choice:
    """Fit one link for all decisions and a link per pool, and keep the simplest model that is good enough.

    One link comes before pools. With a single pool or too few plans to compare, one link it is:
    :func:`fit_link_additive`. A coupling that crosses pools counts under one link only. Arguments and
    errors are otherwise those of :func:`fit_pools`.
    """
    check_pools(pools, len(scores))
    if len(losses) < FEWEST_PLANS or len(pools) == 1:
        return Choice(fit_link_additive(scores, groups, levels, losses, ses, seed, couplings))
    data, names = assemble(scores, groups, levels, losses, ses, couplings)
    single = predict_unseen(data, seed)
    inside = [coupling for coupling in couplings if not _crosses(coupling, pools)]
    fitting = _Pooled.of(scores, groups, levels, losses, ses, pools, inside)
    pooled = fitting.predict_unseen(seed)
    predictions = {**single, **{fitting.name(links): row for links, row in pooled.items()}}
    table = compare(predictions, data)
    name = chosen(table)
    if name in single:
        return Choice(fit_of(name, data, names, scores, couplings, table, predictions[name]))
    links = next(links for links in pooled if fitting.name(links) == name)
    return Choice(fitting.fit(links, table, predictions[name]))


def _crosses(coupling: Coupling, pools: Pools) -> bool:
    return not any(set(coupling.decisions) <= set(members) for _, members in pools)


@dataclass(frozen=True, eq=False)
class _Pooled:
    """Measured plans, seen by every pool.

    Attributes:
        pools: name and decisions of every pool.
        couplings: decisions that interact.
        data: per pool the plans' choices in it; losses and variances are those of whole plans.
        names: per pool the groups' names.
    """

    pools: Pools
    couplings: tuple[Coupling, ...]
    data: list[PlanData]
    names: list[list[Group]]
    sizes: list[int]

    @classmethod
    def of(
        cls,
        scores: Sequence[Floats],
        groups: Sequence[Sequence[Group]],
        levels: Levels,
        losses: Floats,
        ses: Floats,
        pools: Pools,
        couplings: Sequence[Coupling],
    ) -> _Pooled:
        check_pools(pools, len(scores))
        if len(losses) < FEWEST_PLANS:
            raise InputError(f"{len(losses)} plans are too few to fit pools; at least {FEWEST_PLANS} do.")
        data, names = [], []
        for (_, members), own in zip(pools, within_pools(couplings, pools), strict=True):
            inside = [scores[member] for member in members]
            labels = [groups[member] for member in members]
            plans, groups_of = assemble(inside, labels, np.asarray(levels)[:, members], losses, ses, own)
            data.append(plans)
            names.append(groups_of)
        return cls(pools, tuple(couplings), data, names, [len(row) for row in scores])

    def name(self, links: Links) -> str:
        """Name a choice of links in tables."""
        return " + ".join(f"{pool} {link}" for (pool, _), link in zip(self.pools, links, strict=True))

    def predict_unseen(self, seed: int) -> dict[Links, Floats]:
        """Try links for one pool after the other; return cross-validated predictions of every try."""
        best: Links = ("identity",) * len(self.pools)
        tried: dict[Links, Floats] = {}
        for pool in range(len(self.pools)):
            options = {link: (*best[:pool], link, *best[pool + 1 :]) for link in LINKS}
            for links in options.values():
                if links not in tried:
                    tried[links] = self._cross_validate(links, seed)
            rows = {link: tried[links] for link, links in options.items()}
            best = options[chosen(compare(rows, self.data[pool]))]
        return tried

    def fit(self, links: Links, table: tuple[LinkScore, ...], held_out: Floats) -> PoolFit:
        """Fit to all plans."""
        fitted = _backfit(links, self.data)
        weights: list[Floats] = [np.zeros(0)] * len(self.sizes)
        for (_, members), own in zip(self.pools, fitted, strict=True):
            ends = np.cumsum([self.sizes[member] for member in members])[:-1]
            for member, row in zip(members, np.split(own.weights, ends), strict=True):
                weights[member] = row
        pools = tuple((name, tuple(members)) for name, members in self.pools)
        model = PooledModel(tuple(weights), pools, tuple(own.link for own in fitted), self.couplings)
        scales = [
            dict(zip(names, own.factors.tolist(), strict=True))
            for names, own in zip(self.names, fitted, strict=True)
        ]
        ridges = tuple(own.ridge for own in fitted)
        return PoolFit(model, ridges, tuple(scales), table, held_out, len(held_out))

    def _cross_validate(self, links: Links, seed: int) -> Floats:
        def held_out(held: Rows) -> Floats:
            fitted = _backfit(links, [plans.take(~held) for plans in self.data])
            parts = [own.predict(plans.take(held)) for own, plans in zip(fitted, self.data, strict=True)]
            return np.asarray(np.sum(parts, axis=0))

        return cross_validate(held_out, len(self.data[0].losses), seed)


def _backfit(links: Links, data: Sequence[PlanData]) -> list[FittedScores]:
    """Fit every pool in turn to what the others leave of the losses."""
    losses = data[0].losses
    parts = np.array([plans.additive(plans.scores) for plans in data])
    for _ in range(_ROUNDS):
        before, fitted = parts.copy(), []
        for pool, (link, plans) in enumerate(zip(links, data, strict=True)):
            left = losses - (parts.sum(axis=0) - parts[pool])
            fitted.append(fit_scores(LINKS[link], replace(plans, losses=left)))
            parts[pool] = fitted[-1].predict(plans)
        if np.abs(parts - before).max() <= _STILL * np.abs(losses).max():
            break
    return fitted
