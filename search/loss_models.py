"""Loss models as solvers and agents use them: solved exactly, and as additive tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.additive import LinkAdditive
from tightfit.proxies.coupling import Coupling
from tightfit.proxies.pools import PooledModel
from tightfit.search.sides import Side, keeps_all
from tightfit.search.solvers import Front, PoolFront, Solution, pool_front, solve, solve_front, solve_pools

LossModel = LinkAdditive | PooledModel
"""A fitted loss model: one link for all decisions, or one for matrices and one for caches."""

_TURNS = 3  # of replacing links by tangents; plans hardly move any more then

Costs = Sequence[NDArray[np.int64]]


def solve_model(
    costs: Costs,
    model: LossModel,
    limit: int,
    sides: Sequence[Side] = (),
    front: Front | PoolFront | None = None,
) -> Solution:
    """Find the plan of least predicted loss within a limit.

    A link is monotone, so with one of them the sum of scores is what is minimized, and the solution's loss
    is that sum. Pools with a link each are solved as such; where their best plan misses a side, their links
    are replaced by their tangents at that plan.

    Args:
        costs: per decision the bytes of its options.
        model: fitted.
        limit: most bytes of the decisions.
        sides: further bounds.
        front: of the same model, where there is one already.

    Raises:
        InfeasibleError: the limit is below the floor, or no plan within it keeps every side.
    """
    if isinstance(model, LinkAdditive):
        return solve(costs, model.weights, limit, sides=sides, couplings=model.couplings)
    found = solve_pools(costs, model, limit, front=front if isinstance(front, PoolFront) else None)
    if keeps_all(sides, found.levels):
        return found
    kept = found
    for _ in range(_TURNS):
        table, couplings = additive_table(model, kept.levels)
        again = solve(costs, table, limit, sides=sides, couplings=couplings)
        if again.levels == kept.levels:
            break
        kept = again
    # No plan that keeps the sides is better than the best one without them.
    loss = float(model.predict(np.array([kept.levels]))[0])
    gap = max(0.0, loss - found.bound) / max(abs(loss), np.finfo(np.float64).tiny)
    return Solution(kept.levels, kept.cost, loss, min(loss, found.bound), gap)


def front_of(costs: Costs, model: LossModel) -> Front | PoolFront:
    """Return non-dominated plans of a model for every limit."""
    if isinstance(model, PooledModel):
        return pool_front(costs, model)
    return solve_front(costs, model.weights, couplings=model.couplings)


def additive_table(
    model: LossModel, levels: Sequence[int]
) -> tuple[list[NDArray[np.float64]], tuple[Coupling, ...]]:
    """Return losses per option that add up near a plan, and what joint choices add to them.

    With one link these are the scores themselves, whatever the plan. With pools every link is replaced by
    its tangent at the plan.
    """
    if isinstance(model, LinkAdditive):
        return list(model.weights), model.couplings
    scores = model.additive_scores(np.array([levels]))[0]
    slopes = np.zeros(len(model.weights))
    for (_, members), link, score in zip(model.pools, model.links, scores, strict=True):
        slopes[list(members)] = float(link.slope(np.array([score]))[0])
    couplings = tuple(
        Coupling(coupling.decisions, slopes[coupling.decisions[0]] * coupling.excess)
        for coupling in model.couplings
    )
    return [slope * row for slope, row in zip(slopes, model.weights, strict=True)], couplings


def link_words(model: Mapping[str, Any]) -> str:
    """Name the links of a stored model: ``the amplifying link``, ``the links identity (kv) and …``."""
    if "pools" not in model:
        return f"the {model['link']['link']} link"
    named = [f"{link['link']} ({pool[0]})" for pool, link in zip(model["pools"], model["links"], strict=True)]
    return f"a link per kind of decision, {' and '.join(named)}"
