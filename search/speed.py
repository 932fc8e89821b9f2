"""Bounds on speed: from what users ask for to sums that solvers and agents keep.

A table of times (:mod:`tightfit.proxies.latency`) makes seconds of every option. They add up like bytes do,
so a bound on speed is a *side* of the knapsack: at least 30 tokens/s are at most 1/30 s per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tightfit.proxies.latency import LatencyTable, Phase
from tightfit.search.solvers import Side, Solution, keeps_all, least_violating
from tightfit.spaces import Budget, InputError, Space, format_size

_LOOSER = 0.01  # above what the nearest plan reaches, so that more plans than one are left


def sides_of(
    budget: Budget, space: Space, tables: Mapping[Phase, LatencyTable], margin: float = 0.0
) -> tuple[Side, ...]:
    """Return the bounds on speed as sides, none where none was asked for.

    Args:
        budget: what was asked for.
        space: the decisions.
        tables: of times, by what was timed; one for every bound that was asked for.
        margin: how much faster than asked a plan must be predicted, relative; a table's ``error`` is a
            measure of how far predictions are off.

    Raises:
        InputError: a bound was asked for and nothing was timed for it.
    """
    sides = []
    if budget.tokens_per_second is not None:
        name, most = "budget.tokens_per_second", 1 / budget.tokens_per_second
        sides.append(_side(name, most, "tokens/s", space, tables.get("generate"), margin))
    if budget.latency is not None:
        sides.append(_side("budget.latency", budget.latency, "s", space, tables.get("prompt"), margin))
    return tuple(sides)


def _side(name: str, most: float, unit: str, space: Space, table: LatencyTable | None, margin: float) -> Side:
    if table is None:
        raise InputError(f"{name} can only be kept where plans are timed, and none was.")
    values = tuple(table.seconds_of(space.geometry, space.decisions))
    return Side(name, values, most / (1 + margin), table.fixed, unit, per=unit == "tokens/s")


@dataclass(frozen=True)
class Reach:
    """What speed a byte limit allows.

    Attributes:
        kept: whether some plan keeps all sides.
        nearest: the plan whose largest excess is least; where the sides can be kept, the one with the
            most to spare.
        text: both in words.
    """

    kept: bool
    nearest: Solution
    text: str


def reach(space: Space, limit: int, losses: Sequence[np.ndarray], sides: Sequence[Side]) -> Reach:
    """Find out whether sides can be kept, and by how much they are missed.

    Args:
        space: the decisions.
        limit: most weight bytes of a plan.
        losses: by decision and option; they choose among plans that are equally fast.
        sides: at least one.

    Raises:
        InfeasibleError: the limit is below the floor of the space.
    """
    costs = [np.array(decision.costs, dtype=np.int64) for decision in space.decisions]
    nearest = least_violating(costs, losses, min(limit, space.ceiling) - space.fixed_bytes, sides)
    kept = keeps_all(sides, nearest.levels)
    asked = " and ".join(f"{side.name} ({side.asked()})" for side in sides)
    reached = " and ".join(side.text(side.total(nearest.levels)) for side in sides)
    size = space.bytes_of(nearest.levels)
    verb = "can be kept" if kept else "cannot be kept"
    return Reach(
        kept,
        nearest,
        f"within {format_size(limit)} of weights {asked} {verb}: the plan that comes "
        f"{'furthest' if kept else 'nearest'} is predicted to reach {reached} and takes {format_size(size)}.",
    )


def loosened(sides: Sequence[Side], levels: Sequence[int]) -> tuple[Side, ...]:
    """Return sides that a plan keeps with a little to spare, for a search among the least-violating plans."""
    least = [side.total(levels) + _LOOSER * abs(side.total(levels)) for side in sides]
    return tuple(replace(side, limit=max(side.limit, most)) for side, most in zip(sides, least, strict=True))
