"""Which dimension of a space spends what: bytes and predicted loss of plans by kind of decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightfit.proxies.coupling import total_excess
from tightfit.proxies.pools import read_model
from tightfit.search.fronts import Front, PlanRow
from tightfit.search.maps import FIXED, kind_name
from tightfit.search.records import StoredPlan
from tightfit.spaces import Decision, Plan

JOINTLY = "k and v with their cache, jointly"
"""Name of what a block's key and value projections lose together with its cache, beyond the sum of both."""


@dataclass(frozen=True)
class Spending:
    """What plans spend on one kind of decision.

    Attributes:
        name: ``attn.q_proj``, ``embed = head``, ``KV cache``.
        bytes: one number per plan; None for what is about losses only.
        terms: per plan, what its choices add inside the loss model, in nats; None where nothing is scored.
    """

    name: str
    bytes: tuple[int, ...] | None
    terms: tuple[float, ...] | None


@dataclass(frozen=True)
class Spent:
    """What a plan spends on what, beside the best uniform plan.

    Attributes:
        rival: that plan; None where none was measured, and then every part is about one plan only.
        parts: by kind of decision; all of them add up.
    """

    rival: PlanRow | None
    parts: tuple[Spending, ...]


def spend(
    decisions: Sequence[Decision],
    fixed: int,
    link: Mapping[str, Any] | None,
    plan: Plan,
    fronts: Sequence[Front],
    limit: int | None,
    stored: Mapping[str, StoredPlan],
) -> Spent:
    """Return what a plan spends on what, beside the best uniform plan.

    Args:
        decisions: of the space, in its order.
        fixed: bytes that no decision changes.
        link: the fit of the loss model; None before there is one.
        plan: a whole plan of the space.
        fronts: measured plans, the most trustworthy front first.
        limit: most bytes that the budget allows.
        stored: plans by digest.
    """
    rival = rival_of(fronts, limit, plan.digest)
    plans = [plan, stored[rival.digest].plan] if rival else [plan]
    return Spent(rival, spendings(decisions, fixed, link["model"] if link else None, plans))


def spendings(
    decisions: Sequence[Decision],
    fixed: int,
    model: Mapping[str, Any] | None,
    plans: Sequence[Plan],
) -> tuple[Spending, ...]:
    """Sum bytes and terms of the loss model by kind of decision, in order of depth; all adds up.

    Args:
        decisions: of the space, in its order.
        fixed: bytes that no decision changes.
        model: the fitted loss model as stored; None before there is one.
        plans: whole plans of the space.
    """
    chosen = [dict(plan.choices) for plan in plans]
    levels = np.array([[d.index(choices[d.name]) for d in decisions] for choices in chosen], dtype=np.int64)
    fitted = read_model(model) if model else None
    kinds: dict[str, list[int]] = {}
    for position, decision in enumerate(decisions):
        kinds.setdefault(kind_name(decision), []).append(position)
    found = []
    for name, members in kinds.items():
        sizes = [sum(decisions[i].costs[row[i]] for i in members) for row in levels]
        terms = [sum(float(fitted.weights[i][row[i]]) for i in members) for row in levels] if fitted else None
        found.append(Spending(name, tuple(sizes), tuple(terms) if terms is not None else None))
    found.append(Spending(FIXED, (fixed,) * len(plans), None))
    if fitted and fitted.couplings:
        found.append(Spending(JOINTLY, None, tuple(total_excess(fitted.couplings, levels).tolist())))
    return tuple(found)


def total_spending(parts: Sequence[Spending]) -> Spending:
    """Return the sum of all parts."""
    sizes = [part.bytes for part in parts if part.bytes is not None]
    terms = [part.terms for part in parts if part.terms is not None]
    summed = tuple(map(sum, zip(*terms, strict=True))) if terms else None
    return Spending("total", tuple(map(sum, zip(*sizes, strict=True))), summed)


def rival_of(fronts: Sequence[Front], limit: int | None, digest: str) -> PlanRow | None:
    """Return the uniform plan to hold against another plan; None where none was measured.

    It is the one of least loss within the budget, on the most trustworthy text that has one.

    Args:
        fronts: the most trustworthy first.
        limit: most bytes that the budget allows.
        digest: of the other plan.
    """
    for front in fronts:
        rows = [row for row in front.rows if row.kind == "uniform" and row.digest != digest]
        rows = [row for row in rows if limit is None or row.bytes <= limit]
        if rows:
            return min(rows, key=lambda row: (row.measured.kl, row.bytes))
    return None
