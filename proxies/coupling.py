"""What decisions of one block lose together beyond the sum of what each loses alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.links import Floats
from tightfit.spaces import InputError


@dataclass(frozen=True, eq=False)
class Coupling:
    """An interaction of a few decisions, such as a block's key and value projections and its cache.

    Attributes:
        decisions: positions of the decisions in the space, at least two, all different.
        excess: what every joint choice loses beyond the sum of its parts, in nats of additive score;
            negative where errors cancel, 0 where nothing was measured. One axis per decision, indexed
            by its options.
    """

    decisions: tuple[int, ...]
    excess: Floats

    def __post_init__(self) -> None:
        if len(self.decisions) < 2 or len(set(self.decisions)) < len(self.decisions):
            raise InputError(f"a coupling needs two or more different decisions, not {self.decisions}.")
        if min(self.decisions) < 0 or self.excess.ndim != len(self.decisions) or not self.excess.size:
            raise InputError(
                f"the coupling of decisions {self.decisions} has an excess of shape {self.excess.shape}; "
                "decisions are counted from 0, and each needs an axis with at least one option."
            )
        if not np.isfinite(self.excess).all():
            raise InputError(f"the coupling of decisions {self.decisions} has an excess that is not finite.")

    def value(self, levels: Sequence[int]) -> float:
        """Return the excess of one plan, in nats."""
        return float(self.excess[tuple(levels[decision] for decision in self.decisions)])

    def values(self, levels: NDArray[np.integer[Any]]) -> Floats:
        """Return the excess of each plan: levels ``(P, D)`` to nats ``(P,)``."""
        chosen = np.asarray(levels)[:, list(self.decisions)]
        values: Floats = self.excess[tuple(chosen.T)]
        return values

    def to_dict(self) -> dict[str, Any]:
        """Return the coupling as plain data."""
        return {"decisions": list(self.decisions), "excess": self.excess.tolist()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Coupling:
        """Read a coupling from plain data."""
        return cls(tuple(data["decisions"]), np.array(data["excess"], dtype=np.float64))


def total_excess(couplings: Sequence[Coupling], levels: NDArray[np.integer[Any]]) -> Floats:
    """Return the summed excess of each plan: levels ``(P, D)`` to nats ``(P,)``."""
    total = np.zeros(len(levels))
    for coupling in couplings:
        total += coupling.values(levels)
    return total


def measured_excess(joint_loss: float, single_losses: Sequence[float] | Floats) -> float:
    """Return f(all) − Σ f({i}): what choices lose together beyond the sum of each alone, in nats."""
    return joint_loss - float(np.sum(single_losses))


def check_couplings(couplings: Sequence[Coupling], counts: Sequence[int]) -> None:
    """Check that couplings are about the options of a space.

    Args:
        couplings: to check.
        counts: number of options of every decision.

    Raises:
        InputError: a coupling names a decision that is not there, or has another number of options.
    """
    for coupling in couplings:
        if max(coupling.decisions) >= len(counts):
            raise InputError(
                f"a coupling names decision {max(coupling.decisions)}, but there are {len(counts)} decisions."
            )
        options = tuple(counts[decision] for decision in coupling.decisions)
        if coupling.excess.shape != options:
            raise InputError(
                f"the coupling of decisions {coupling.decisions} has an excess of shape "
                f"{coupling.excess.shape}, but these decisions have {options} options."
            )
