"""Side constraints: bounds beside the bytes that add up over decisions, such as the seconds of a token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightfit.spaces import InputError, format_size

_ROUNDING = 1e-9  # of the limit: sums in another order differ by less


@dataclass(frozen=True, eq=False)
class Side:
    """An upper bound on a sum with one term per decision. Terms need not rise or fall with bytes.

    Attributes:
        name: the bound as users know it, such as ``budget.tokens_per_second``.
        values: per decision the terms of its options.
        limit: most that a plan may come to, ``fixed`` included.
        fixed: what no decision changes.
        unit: of the sum; with ``per`` of its inverse, which is what users then bound from below.
        per: whether users think of the inverse: tokens per second rather than seconds per token.
    """

    name: str
    values: tuple[NDArray[np.float64], ...]
    limit: float
    fixed: float = 0.0
    unit: str = "s"
    per: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.limit - self.fixed):
            raise InputError(f"{self.name}: the limit {self.limit} must be finite.")
        for index, row in enumerate(self.values):
            if not len(row) or not np.isfinite(row).all():
                raise InputError(f"{self.name}: decision {index} has the values {row}; all must be finite.")

    def total(self, levels: Sequence[int]) -> float:
        """Return what a plan comes to, rounded once whatever the order of its decisions."""
        terms = (float(row[level]) for row, level in zip(self.values, levels, strict=True))
        return math.fsum((self.fixed, *terms))

    def keeps(self, levels: Sequence[int]) -> bool:
        """Whether a plan stays within the limit, up to rounding errors; sums of whole bytes have none."""
        return self.excess(levels) <= (0.0 if self.unit == "B" else _ROUNDING)

    def excess(self, levels: Sequence[int]) -> float:
        """Return how far a plan is above the limit, relative to it; negative where it is below."""
        return (self.total(levels) - self.limit) / max(abs(self.limit), 1e-300)

    def text(self, total: float) -> str:
        """Write a total as users think of it: ``31.4 tokens/s``, ``0.21 s`` or ``76.00 MiB``."""
        if self.unit == "B":
            return format_size(round(total))
        return f"{(1 / total if self.per else total):.4g} {self.unit}"

    def asked(self) -> str:
        """Write the bound as users asked for it: ``at least 30 tokens/s``."""
        return f"{'at least' if self.per else 'at most'} {self.text(self.limit)}"


def keeps_all(sides: Sequence[Side], levels: Sequence[int]) -> bool:
    """Whether a plan keeps every side constraint."""
    return all(side.keeps(levels) for side in sides)
