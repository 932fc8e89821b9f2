"""The loss model of pools: decisions of one kind share a link, and what the pools lose adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.additive import LinkAdditive
from tightfit.proxies.coupling import Coupling, total_excess
from tightfit.proxies.links import Floats, Link
from tightfit.spaces import InputError

Pools = Sequence[tuple[str, tuple[int, ...]]]
"""Name and positions of every pool's decisions; every decision of the space is in exactly one pool."""


@dataclass(frozen=True, eq=False)
class PooledModel:
    """L̂(plan) = Σ_p g_p(Σ w + Σ excess of pool p): weights, caches and depth bend each in its own way.

    Attributes:
        weights: per decision the scores of its options, in nats.
        pools: name and decisions of every pool; they partition the decisions.
        links: g of every pool.
        couplings: decisions that interact, each within one pool.
    """

    weights: tuple[Floats, ...]
    pools: tuple[tuple[str, tuple[int, ...]], ...]
    links: tuple[Link, ...]
    couplings: tuple[Coupling, ...] = ()

    def __post_init__(self) -> None:
        check_pools(self.pools, len(self.weights))
        if len(self.links) != len(self.pools):
            raise InputError(f"{len(self.pools)} pools need as many links, not {len(self.links)}.")
        within_pools(self.couplings, self.pools)

    def additive_scores(self, levels: NDArray[np.integer[Any]]) -> Floats:
        """Return Σ w + Σ excess of each plan in each pool: levels ``(P, D)`` to nats ``(P, pools)``."""
        levels = np.asarray(levels)
        if levels.shape[1] != len(self.weights):
            raise ValueError(f"plans have {levels.shape[1]} decisions, the model has {len(self.weights)}")
        scores = np.zeros((len(levels), len(self.pools)))
        for pool, ((_, decisions), couplings) in enumerate(
            zip(self.pools, within_pools(self.couplings, self.pools), strict=True)
        ):
            own = levels[:, list(decisions)]
            for column, decision in zip(own.T, decisions, strict=True):
                scores[:, pool] += self.weights[decision][column]
            scores[:, pool] += total_excess(couplings, own)
        return scores

    def predict(self, levels: NDArray[np.integer[Any]]) -> Floats:
        """Return the predicted loss of each plan: levels ``(P, D)`` to nats per token ``(P,)``."""
        scores = self.additive_scores(levels)
        losses: Floats = np.sum(
            [link(column) for link, column in zip(self.links, scores.T, strict=True)], axis=0
        )
        return losses

    def to_dict(self) -> dict[str, Any]:
        """Return the model as plain data."""
        data: dict[str, Any] = {
            "weights": [w.tolist() for w in self.weights],
            "pools": [[name, list(decisions)] for name, decisions in self.pools],
            "links": [link.to_dict() for link in self.links],
        }
        if self.couplings:
            data["couplings"] = [coupling.to_dict() for coupling in self.couplings]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PooledModel:
        """Read a model from plain data."""
        return cls(
            tuple(np.array(row, dtype=np.float64) for row in data["weights"]),
            tuple((name, tuple(decisions)) for name, decisions in data["pools"]),
            tuple(Link.from_dict(link) for link in data["links"]),
            tuple(Coupling.from_dict(row) for row in data.get("couplings", ())),
        )


def read_model(data: Mapping[str, Any]) -> LinkAdditive | PooledModel:
    """Read either loss model from plain data."""
    return PooledModel.from_dict(data) if "pools" in data else LinkAdditive.from_dict(data)


def check_pools(pools: Pools, decisions: int) -> None:
    """Check that pools partition the decisions 0…D−1.

    Raises:
        InputError: they do not, or a pool is empty or named twice.
    """
    names = [name for name, _ in pools]
    if len(set(names)) < len(names) or not all(members for _, members in pools):
        raise InputError(f"the pools {', '.join(names)} must have different names and decisions each.")
    if sorted(member for _, members in pools for member in members) != list(range(decisions)):
        raise InputError(
            f"the pools {', '.join(names)} must hold each of the {decisions} decisions exactly once."
        )


def within_pools(couplings: Sequence[Coupling], pools: Pools) -> list[list[Coupling]]:
    """Return the couplings of every pool, with decisions counted within the pool.

    Raises:
        InputError: a coupling crosses pools.
    """
    own: list[list[Coupling]] = [[] for _ in pools]
    for coupling in couplings:
        for pool, (_, members) in enumerate(pools):
            if set(coupling.decisions) <= set(members):
                inside = tuple(members.index(decision) for decision in coupling.decisions)
                own[pool].append(replace(coupling, decisions=inside))
                break
        else:
            raise InputError(
                f"the coupling of decisions {coupling.decisions} must lie within one pool; what crosses "
                "pools with a link each does not add up."
            )
    return own
