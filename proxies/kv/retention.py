"""How much of a layer's attention the best n tokens hold, and one threshold that sets n in every layer.

Layers differ in how many tokens hold, say, 90 % of their attention. ZigZagKV (Zhong et al., COLING 2025,
arXiv:2412.09036) measures that number per layer and allots a budget in proportion; Ada-KV (Feng et al.,
2024, arXiv:2407.11550) pools the scores of a layer's heads, and DynamicKV (Zhou et al., 2024,
arXiv:2412.14838) those of layers, so that a budget goes where mass is. Here the retained share itself is
solved for: one threshold over all layers, the highest that the budget pays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightfit.spaces import InputError

if TYPE_CHECKING:  # nothing but methods of tensors is used, and allocating needs no torch
    from torch import Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Retention:
    """Share of a layer's attention mass that a number of tokens retains.

    Attributes:
        least: fewest tokens, those that always stay.
        shares: retained with least, least + 1, … and finally all tokens; rises to exactly 1.
    """

    least: int
    shares: Floats

    @property
    def tokens(self) -> int:
        """Tokens in the cache."""
        return self.least + len(self.shares) - 1

    def retained(self, count: int) -> float:
        """Share that ``count`` tokens retain; fewer than always stay count as those.

        Raises:
            InputError: there are not so many tokens.
        """
        if count > self.tokens:
            raise InputError(f"{count} tokens cannot be kept of {self.tokens}.")
        return float(self.shares[max(0, count - self.least)])

    def needed(self, threshold: float) -> int:
        """Fewest tokens that retain at least ``threshold``, which is at most 1."""
        return self.least + int(np.searchsorted(self.shares, threshold, side="left"))


def retention_curve(mass: Tensor, sinks: int = 0, residual: int = 0) -> Retention:
    """Retained share by number of tokens, when every head keeps its own best ones.

    Every head keeps equally many: the first ``sinks``, the last ``residual``, and then those with most
    mass. Mass of tokens that are no longer in the cache has to be cut off before.

    Args:
        mass: (batch, kv_heads, tokens), not negative, of the tokens in the cache.
        sinks: first tokens, which always stay.
        residual: last tokens, which always stay.

    Returns:
        The mean over sequences and KV heads, each head's mass taken as 1.
    """
    heads = mass.double().reshape(-1, mass.shape[-1])
    tokens = heads.shape[1]
    first = min(sinks, tokens)
    last = max(first, tokens - residual)
    best = heads[:, first:last].sort(dim=-1, descending=True).values.cumsum(-1).cpu().numpy()
    kept = (heads[:, :first].sum(-1) + heads[:, last:].sum(-1)).cpu().numpy()[:, None]
    held = np.concatenate([kept, kept + best], axis=1)
    shares = (held / held[:, -1:]).mean(axis=0)
    always = tokens - (last - first)
    # A cache is never empty, so without tokens that always stay the curve begins at one.
    return Retention(always, shares) if always else Retention(1, shares[1:])


def allocate_tokens(curves: Sequence[Retention], total: int) -> tuple[float, list[int]]:
    """Give every layer its tokens by the highest threshold that ``total`` tokens can pay.

    Args:
        curves: of every layer.
        total: most tokens over all layers.

    Returns:
        The threshold, and the tokens of every layer; see :func:`highest_threshold`.

    Raises:
        InputError: what always stays is more than that.
    """
    values = [curve.shares for curve in curves]
    prices = [np.arange(curve.least, curve.tokens + 1) for curve in curves]
    floor = sum(curve.least for curve in curves)
    if floor > total:
        raise InputError(f"{floor} tokens always stay over all layers, but only {total} are allowed.")
    threshold, steps = highest_threshold(values, prices, total)
    return threshold, [curve.least + step for curve, step in zip(curves, steps, strict=True)]


def highest_threshold(
    values: Sequence[Floats], prices: Sequence[Ints], budget: int
) -> tuple[float, list[int]]:
    """Find the highest threshold that every layer can be lifted to, each by its cheapest step.

    What is left then goes to the next threshold in layer order, to those layers that it can still pay:
    where layers tie, the lower ones come first.

    Args:
        values: of every layer, by step, never falling; a layer that cannot reach a threshold takes its last
            step.
        prices: of the same steps, never falling; the first ones together cost no more than the budget.
        budget: most that all may cost.

    Returns:
        The threshold, minus infinity where not even the lowest value can be paid for, and a step per layer.
    """
    levels = np.unique(np.concatenate(values))

    def steps(level: float) -> list[int]:
        found = zip(values, (np.searchsorted(value, level, side="left") for value in values), strict=True)
        return [min(len(value) - 1, int(step)) for value, step in found]

    def cost(plan: Sequence[int]) -> int:
        return sum(int(price[step]) for price, step in zip(prices, plan, strict=True))

    low, high = 0, len(levels)  # levels below low can be paid for, levels from high on cannot
    while low < high:
        middle = (low + high) // 2
        if cost(steps(levels[middle])) <= budget:
            low = middle + 1
        else:
            high = middle
    threshold = float(levels[low - 1]) if low else -math.inf
    plan = steps(threshold)
    if low < len(levels):
        left = budget - cost(plan)
        for layer, step in enumerate(steps(levels[low])):
            extra = int(prices[layer][step]) - int(prices[layer][plan[layer]])
            if extra <= left:
                plan[layer], left = step, left - extra
    return threshold, plan
