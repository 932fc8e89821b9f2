"""The link-additive loss model: a plan's loss is g(sum of one score per choice)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.coupling import Coupling, total_excess
from tightfit.proxies.links import Floats, Link


@dataclass(frozen=True, eq=False)
class LinkAdditive:
    """L̂(plan) = g(Σ w + Σ excess), one score w per decision and option.

    Attributes:
        weights: per decision the scores of its options, in nats; an exact solver minimizes their
            sum. They may be negative: away from the reference, an option can undo another's error.
        link: g.
        couplings: decisions of one block that interact; their excess adds to the scores.
    """

    weights: tuple[Floats, ...]
    link: Link
    couplings: tuple[Coupling, ...] = ()

    def additive_score(self, levels: NDArray[np.integer[Any]]) -> Floats:
        """Return Σ w + Σ excess of each plan.

        Args:
            levels: option positions, shape ``(P, D)``.

        Returns:
            Scores in nats, shape ``(P,)``.
        """
        levels = np.asarray(levels)
        total = np.zeros(len(levels))
        for column, weights in zip(levels.T, self.weights, strict=True):
            total += weights[column]
        return total + total_excess(self.couplings, levels) if self.couplings else total

    def predict(self, levels: NDArray[np.integer[Any]]) -> Floats:
        """Return the predicted loss of each plan: levels ``(P, D)`` to nats per token ``(P,)``."""
        return self.link(self.additive_score(levels))

    def to_dict(self) -> dict[str, Any]:
        """Return the model as plain data."""
        data = {"weights": [w.tolist() for w in self.weights], "link": self.link.to_dict()}
        if self.couplings:
            data["couplings"] = [coupling.to_dict() for coupling in self.couplings]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LinkAdditive:
        """Read a model from plain data."""
        weights = tuple(np.array(row, dtype=np.float64) for row in data["weights"])
        couplings = tuple(Coupling.from_dict(row) for row in data.get("couplings", ()))
        return cls(weights, Link.from_dict(data["link"]), couplings)


def synergy(joint_loss: float, single_losses: Sequence[float] | Floats) -> float:
    """Return f(all)/Σ f({i}): the loss of choices made together over the sum of each made alone.

    Above 1 the choices amplify one another, below 1 they overlap. NaN if the single losses add to 0.
    """
    total = float(np.sum(single_losses))
    return joint_loss / total if total else float("nan")
