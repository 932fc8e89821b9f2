"""Published rules that give every layer its share of a KV budget, as baselines for a search.

Each takes a :class:`~tightfit.proxies.kv.menu.Menu`, a byte budget for the whole cache, and what it needs to
know about the layers, and returns one option index per layer, never above the budget. The rules that share
out tokens (``pyramid``, ``retention``, ``squeeze``) do so at one pair of key and value bits, 16 where the
budget allows, since that is what they were published for; :meth:`Menu.precisions` lists the others.

To add a rule, write its function and name it in :data:`ALLOCATORS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tightfit.proxies.kv.menu import Floats, Ints, Menu, Precision, share_out, spend
from tightfit.proxies.kv.retention import Retention, highest_threshold
from tightfit.proxies.kv.uniform import ends, uniform
from tightfit.spaces import InputError

PYRAMID_BETA = 20.0
"""Mean share over the last layer's, as in the code that PyramidKV's authors published."""

SQUEEZE_FACTOR = 0.38
"""What the least important layers keep of an equal share: 0.08 of 0.21 in the authors' script for Mistral."""

_GROUPS = 3


def pyramid(
    menu: Menu, budget: int, precision: Precision | None = None, beta: float = PYRAMID_BETA
) -> list[int]:
    """Let the share of tokens fall linearly with depth, from nearly twice the mean to 1/beta of it.

    Cai et al., *PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling*, 2024,
    arXiv:2406.02069. Where the first layer would keep more than everything, it keeps everything, and the
    last one so much more that the mean is unchanged.

    Args:
        menu: options of every layer.
        budget: most bytes of the whole cache.
        precision: bits of keys and values; None means the widest that fits.
        beta: mean share over the last layer's, at least 1; 1 is flat.
    """
    if beta < 1:
        raise InputError(f"beta of a pyramid must be at least 1, but is {beta:g}.")
    ladders = menu.ladders(budget, precision)

    def shares(mean: float) -> Floats:
        first = min(1.0, 2 * mean - mean / beta)
        return np.linspace(first, 2 * mean - first, menu.layers) if menu.layers > 1 else np.array([mean])

    return share_out(ladders, shares, budget, range(menu.layers))


def squeeze(
    menu: Menu,
    budget: int,
    cosines: Sequence[float],
    precision: Precision | None = None,
    factor: float = SQUEEZE_FACTOR,
) -> list[int]:
    """Take tokens from the layers whose attention changes hidden states least, and give them to the others.

    Wang et al., *SqueezeAttention*, ICLR 2025, arXiv:2404.04793: k-means puts the layers into three groups by
    cosine; with an equal share s, the group of highest cosines (n of L layers) keeps p·s, every other layer
    s·(L − n·p) / (L − n).

    Args:
        menu: options of every layer.
        budget: most bytes of the whole cache.
        cosines: of every layer (:class:`~tightfit.proxies.kv.similarity.Similarity`).
        precision: bits of keys and values; None means the widest that fits.
        factor: p, in (0, 1].
    """
    _match(menu, cosines, "cosines")
    if not 0 < factor <= 1:
        raise InputError(
            f"the factor of unimportant layers must be above 0 and at most 1, but is {factor:g}."
        )
    ladders = menu.ladders(budget, precision)
    unimportant = least_important(cosines)
    n, layers = int(unimportant.sum()), menu.layers
    raised = (layers - n * factor) / (layers - n)

    def shares(equal: float) -> Floats:
        return np.minimum(np.where(unimportant, factor, raised) * equal, 1.0)

    return share_out(ladders, shares, budget, np.argsort(cosines, kind="stable").tolist())


def least_important(cosines: Sequence[float]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Mark the layers in the group of highest cosines; none where all are equal.

    Groups are found by k-means, three of them, or as many as there are different values.
    """
    from sklearn.cluster import KMeans  # takes 2 s to import, and no other rule needs it

    values = np.asarray(cosines, dtype=np.float64)
    groups = min(_GROUPS, len(np.unique(values)))
    if groups == 1:
        return np.zeros(len(values), dtype=np.bool_)
    fit = KMeans(n_clusters=groups, n_init=10, random_state=0).fit(values[:, None])
    marked: np.ndarray[Any, np.dtype[np.bool_]] = fit.labels_ == int(np.argmax(fit.cluster_centers_[:, 0]))
    return marked


def retention(
    menu: Menu, budget: int, curves: Sequence[Retention], precision: Precision | None = None
) -> list[int]:
    """Keep the same share of attention mass in every layer, the highest that fits.

    See :mod:`tightfit.proxies.kv.retention`. Every layer takes the fewest tokens offered that reach the
    threshold. What is left goes first to the layers that retain least.

    Args:
        menu: options of every layer.
        budget: most bytes of the whole cache.
        curves: of every layer; an option keeps of a curve's tokens as many as it would in a cache of that
            length.
        precision: bits of keys and values; None means the widest that fits.
    """
    _match(menu, curves, "retention curves")
    ladders = menu.ladders(budget, precision)
    retained = [
        np.array([curve.retained(options[i].kept(curve.tokens)) for i in ladder.options])
        for ladder, options, curve in zip(ladders, menu.options, curves, strict=True)
    ]
    _, steps = highest_threshold(retained, [ladder.costs for ladder in ladders], budget)
    order = np.argsort([values[step] for values, step in zip(retained, steps, strict=True)], kind="stable")
    return spend(ladders, steps, budget, order.tolist())


def error(menu: Menu, budget: int, errors: Sequence[Floats]) -> list[int]:
    """Spend every byte where it lowers the error of attention's output most.

    The sensitivity is KVTuner's (Li et al., 2025, arXiv:2502.04420), which searches over precision pairs by
    it; here it is simply added over layers and lowered greedily, by marginal gain per byte.

    Args:
        menu: options of every layer.
        budget: most bytes of the whole cache.
        errors: of every option of every layer, such as
            :attr:`~tightfit.proxies.kv.errors.CacheError.output`; options with infinite errors are not used.

    Raises:
        InputError: a layer has no option with a finite error, or the cheapest are above the budget.
    """
    _match(menu, errors, "errors")
    plan = []
    for layer, (costs, losses) in enumerate(zip(menu.costs, errors, strict=True)):
        _match_options(layer, costs, losses)
        finite = [i for i in range(len(losses)) if math.isfinite(losses[i])]
        plan.append(min(finite, key=lambda i, c=costs, e=losses: (int(c[i]), e[i])))  # type: ignore[misc]
    menu.require(budget, plan)
    while (move := _best_move(menu, errors, plan, budget - menu.size(plan))) is not None:
        plan[move[0]] = move[1]
    return plan


class Allocator(NamedTuple):
    """One rule.

    Attributes:
        allocate: the function; menu and budget first, then what it needs.
        citation: where it comes from.
        needs: its third argument, one entry per layer; empty where there is none.
    """

    allocate: Callable[..., list[int]]
    citation: str
    needs: str = ""


ALLOCATORS: dict[str, Allocator] = {
    "uniform": Allocator(uniform, "the same option in every layer"),
    "ends": Allocator(ends, "rule of thumb: the first and last layers are stored wider"),
    "pyramid": Allocator(pyramid, "PyramidKV: Cai et al., 2024, arXiv:2406.02069"),
    "retention": Allocator(retention, "after ZigZagKV: Zhong et al., 2025, arXiv:2412.09036", "curves"),
    "squeeze": Allocator(squeeze, "SqueezeAttention: Wang et al., 2025, arXiv:2404.04793", "cosines"),
    "error": Allocator(error, "after KVTuner: Li et al., 2025, arXiv:2502.04420", "errors"),
}
"""Every rule by its name."""


def _best_move(
    menu: Menu, errors: Sequence[Floats], plan: Sequence[int], left: int
) -> tuple[int, int] | None:
    """Layer and option of the largest gain per byte that is left; ties go to the lower ones."""
    best, most = None, 0.0
    for layer, now in enumerate(plan):
        extra = np.asarray(menu.costs[layer]) - menu.costs[layer][now]
        gain = errors[layer][now] - np.asarray(errors[layer], dtype=np.float64)
        ratio = np.where(extra > 0, gain / np.maximum(extra, 1), np.inf)
        ratio[(gain <= 0) | (extra > left)] = 0.0
        option = int(np.argmax(ratio))
        if ratio[option] > most:
            best, most = (layer, option), float(ratio[option])
    return best


def _match(menu: Menu, values: Sequence[Any], name: str) -> None:
    if len(values) != menu.layers:
        raise InputError(f"{name} are given for {len(values)} layers, but there are {menu.layers}.")


def _match_options(layer: int, costs: Ints, losses: Floats) -> None:
    if len(losses) != len(costs) or not any(math.isfinite(x) for x in losses):
        raise InputError(
            f"layer {layer}: {len(losses)} errors are given for {len(costs)} options; "
            "each needs one, and at least one must be finite."
        )
