"""What allocators choose from: options of every layer, their bytes, and the steps between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.spaces import InputError
from tightfit.spaces.kv import KvOption

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Precision = tuple[int, int]
"""Bits of keys and of values."""

_ROUNDING = 1e-9
_HALVINGS = 60  # of the interval [0, 1]: more than a float64 resolves


@dataclass(frozen=True, eq=False)
class Menu:
    """Options of every layer with their bytes.

    Attributes:
        costs: bytes of every option of every layer, whole numbers.
        options: the same options.

    Raises:
        InputError: there are no layers, a layer has no options, or bytes and options do not match.
    """

    costs: Sequence[Ints]
    options: Sequence[Sequence[KvOption]]

    def __post_init__(self) -> None:
        if not self.options or len(self.costs) != len(self.options):
            raise InputError(
                f"a KV budget needs options and bytes of the same layers, at least one; "
                f"{len(self.options)} and {len(self.costs)} are given."
            )
        for layer, (costs, options) in enumerate(zip(self.costs, self.options, strict=True)):
            if not options or len(costs) != len(options):
                raise InputError(
                    f"layer {layer}: every layer needs at least one KV option, and bytes for each; "
                    f"{len(options)} options and {len(costs)} sizes are given."
                )

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.options)

    def size(self, plan: Sequence[int]) -> int:
        """Bytes of a plan, which has one option index per layer."""
        return sum(int(costs[option]) for costs, option in zip(self.costs, plan, strict=True))

    @cached_property
    def plain(self) -> list[list[int]]:
        """Options of every layer that keep a cache of their own, which is all that published rules know.

        A layer with nothing else has its whole list.
        """
        own = [[i for i, x in enumerate(options) if not (x.shared or x.cutoff)] for options in self.options]
        return [found or list(range(len(self.options[layer]))) for layer, found in enumerate(own)]

    def require(self, budget: int, plan: Sequence[int]) -> None:
        """Refuse a budget that even the smallest plan exceeds.

        Raises:
            InputError: naming both byte counts.
        """
        if (floor := self.size(plan)) > budget:
            raise InputError(_too_small(floor, budget))

    def precisions(self) -> list[Precision]:
        """Pairs of bits that every layer with a choice offers, widest first, keys before values."""
        pairs = [
            {(options[i].k_bits, options[i].v_bits) for i in found}
            for options, found in zip(self.options, self.plain, strict=True)
            if len(found) > 1
        ]
        common = set.intersection(*pairs) if pairs else set()
        return sorted(common, key=lambda pair: (pair[0] + pair[1], pair[0]), reverse=True)

    def ladders(self, budget: int, precision: Precision | None) -> list[Ladder]:
        """Steps of every layer at one pair of bits.

        Args:
            budget: bytes that the lowest steps together must not exceed.
            precision: bits of keys and values; None means the widest that the budget allows.

        Raises:
            InputError: a layer does not offer that pair, or its lowest steps exceed the budget.
        """
        offered = self.precisions()
        if precision is not None and precision not in offered:
            raise InputError(
                f"k{precision[0]}v{precision[1]} is not offered in every layer ({_names(offered)})."
            )
        if not offered and any(len(found) > 1 for found in self.plain):
            raise InputError("no pair of key and value bits is offered in every layer that has a choice.")
        # Where no layer has a choice there is no pair to look for.
        candidates: list[Precision | None] = [precision] if precision is not None else [*offered] or [None]
        floors = []
        for candidate in candidates:
            ladders = [self._ladder(layer, candidate) for layer in range(self.layers)]
            floors.append(sum(int(ladder.costs[0]) for ladder in ladders))
            if floors[-1] <= budget:
                return ladders
        raise InputError(_too_small(min(floors), budget))

    def _ladder(self, layer: int, precision: Precision | None) -> Ladder:
        options, costs = self.options[layer], self.costs[layer]
        found = self.plain[layer]
        if len(found) > 1:
            found = [i for i in found if (options[i].k_bits, options[i].v_bits) == precision]
        # From everything kept downwards, only what is cheaper than all above it; of equals the first.
        steps: list[int] = []
        for i in sorted(found, key=lambda i: (-options[i].keep, int(costs[i]), i)):
            if not steps or costs[i] < costs[steps[-1]]:
                steps.append(i)
        steps.reverse()
        return Ladder(
            steps, np.array([options[i].keep for i in steps]), np.array([int(costs[i]) for i in steps])
        )


@dataclass(frozen=True, eq=False)
class Ladder:
    """One layer's options at one pair of bits, by rising keep share; bytes rise strictly.

    Attributes:
        options: their indices in the layer's list.
        keeps: share of tokens kept.
        costs: bytes.
    """

    options: list[int]
    keeps: Floats
    costs: Ints

    def price(self, keep: float) -> float:
        """Bytes of a share between the steps, on a straight line; never below the lowest step."""
        return float(np.interp(keep, self.keeps, self.costs))

    def below(self, keep: float) -> int:
        """Highest step that keeps no more than a share, at least the lowest."""
        return max(0, int(np.searchsorted(self.keeps, keep + _ROUNDING, side="right")) - 1)


def share_out(
    ladders: Sequence[Ladder], shares: Callable[[float], Floats], budget: int, order: Iterable[int]
) -> list[int]:
    """Turn shares of tokens into options: the largest scale that fits, rounded down, the rest spent in order.

    Args:
        ladders: of every layer.
        shares: keep share of every layer at a scale in [0, 1], never falling with the scale.
        budget: most bytes; the lowest steps fit.
        order: layers, the most important first.

    Returns:
        One option index per layer.
    """

    def fits(scale: float) -> bool:
        parts = zip(ladders, shares(scale).tolist(), strict=True)
        return sum(ladder.price(keep) for ladder, keep in parts) <= budget

    low, high = (1.0, 1.0) if fits(1.0) else (0.0, 1.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    steps = [ladder.below(keep) for ladder, keep in zip(ladders, shares(low).tolist(), strict=True)]
    return spend(ladders, steps, budget, order)


def spend(ladders: Sequence[Ladder], steps: Sequence[int], budget: int, order: Iterable[int]) -> list[int]:
    """Raise layers one step each, in order and round after round, as long as the budget pays for any.

    Returns:
        One option index per layer.
    """
    steps, order = list(steps), list(order)
    left = budget - sum(int(ladder.costs[step]) for ladder, step in zip(ladders, steps, strict=True))
    raised = True
    while raised:
        raised = False
        for layer in order:
            costs, step = ladders[layer].costs, steps[layer]
            if step + 1 < len(costs) and (extra := int(costs[step + 1] - costs[step])) <= left:
                steps[layer], left, raised = step + 1, left - extra, True
    return [ladder.options[step] for ladder, step in zip(ladders, steps, strict=True)]


def _too_small(floor: int, budget: int) -> str:
    return f"the smallest KV options take {floor} bytes, more than the budget of {budget} bytes."


def _names(precisions: Sequence[Precision]) -> str:
    return ", ".join(f"k{k}v{v}" for k, v in precisions) or "none are"
