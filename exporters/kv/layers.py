"""The caches of a plan layer by layer, and what is left of them in a tool that has caches of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tightfit.exporters.base import Shipment
from tightfit.spaces import Attention, InputError, KvOption, Load, Space, format_size
from tightfit.spaces.kv import KvLayout

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class LayerCache:
    """The cache of one layer.

    Attributes:
        shape: its heads, and its window if it has one.
        option: how the plan stores it.
        bytes: it takes at the context and batch of the plan.
    """

    shape: Attention
    option: KvOption
    bytes: int


def load_of(space: Space) -> Load:
    """Return context and batch that the caches of a space are counted at.

    Raises:
        InputError: the space decides about weights only.
    """
    if space.load is None:
        raise InputError(
            "the plan says nothing about KV caches, so there are none to export: search with space.kv and "
            "budget.context."
        )
    return space.load


def layer_caches(shipment: Shipment) -> list[LayerCache]:
    """Return the cache of every layer, in depth order.

    Raises:
        InputError: the plan is not one of the space, or says nothing about caches.
    """
    space = shipment.space
    load, _ = load_of(space), space.levels(shipment.plan)
    options = space.kv_options(shipment.plan)
    return [
        LayerCache(shape, options[layer], load.layer_bytes(shape, options[layer]))
        for layer, shape in enumerate(space.geometry.attention)
    ]


def is_plain(option: KvOption) -> bool:
    """Whether a cache holds every token as 16-bit floats."""
    return not (option.quantized or option.keep < 1 or option.cutoff or option.shared)


def option_counts(caches: Iterable[LayerCache]) -> dict[str, int]:
    """Return how many layers have which option, by its name, the most frequent first."""
    return dict(Counter(cache.option.name for cache in caches).most_common())


def counted(caches: Sequence[LayerCache], what: Mapping[str, Callable[[KvOption], bool]]) -> list[str]:
    """Say for how many layers each of some statements is true; nothing where it is for none."""
    found = {words: sum(holds(cache.option) for cache in caches) for words, holds in what.items()}
    return [f"{_share(count, len(caches))} {words}" for words, count in found.items() if count]


def _share(count: int, layers: int) -> str:
    return f"all {layers} layers" if count == layers else f"{count} of {layers} layers"


def left_out(caches: Sequence[LayerCache], layout: KvLayout) -> list[str]:
    """Say what a tool leaves out that keeps all tokens of all layers and quantizes in one layout."""
    return counted(
        caches,
        {
            "evict tokens of the prompt": lambda o: (o.keep < 1 or o.cutoff) and not o.shared,
            "read the cache of the layer below": lambda o: o.shared,
            "spread the bits of their keys over channels": lambda o: o.spread,
            f"are quantized in another layout than {layout}": lambda o: o.quantized and o.layout != layout,
            "keep sinks or recent tokens at 16 bits": lambda o: (
                o.quantized and o.layout == layout and o.residual + o.sinks > 0
            ),
        },
    )


def fits(option: KvOption, caches: Iterable[LayerCache]) -> bool:
    """Whether the heads of all layers can be stored so."""
    try:
        for cache in caches:
            option.check(cache.shape)
    except InputError:
        return False
    return True


def widest(sizes: Mapping[Key, int], limit: int) -> Key:
    """Return what takes most bytes within a limit, or least where nothing is within; the first of equals."""
    fitting = [key for key, size in sizes.items() if size <= limit]
    return max(fitting, key=lambda key: sizes[key]) if fitting else min(sizes, key=lambda key: sizes[key])


def recipe(
    shipment: Shipment,
    tool: str,
    settings: Mapping[str, Any],
    size: int,
    cannot_carry: Sequence[str],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the content of a recipe's file.

    Args:
        shipment: the plan.
        tool: who reads it.
        settings: what the tool is told.
        size: bytes of the caches that it makes of that, at the context and batch of the plan.
        cannot_carry: what of the plan it leaves out, in words.
        notes: what else to know.
    """
    load, planned = load_of(shipment.space), shipment.space.cache_bytes(shipment.plan)
    return {
        "kind": "recipe",
        "tool": tool,
        "model": dict(shipment.model),
        "plan": shipment.plan.digest,
        "caches": option_counts(layer_caches(shipment)),
        "context": load.context,
        "batch": load.batch,
        "shared_prefix": load.shared_prefix,
        **settings,
        "expressible": not cannot_carry,
        "cannot_carry": list(cannot_carry),
        "notes": ["the losses of the run are those of the plan's own caches: measure again", *notes],
        "bytes": {"plan": planned, "recipe": size, "difference": size - planned},
    }


def shortfall(content: Mapping[str, Any]) -> list[str]:
    """Return lines for people that say what a recipe leaves out; none where it carries everything."""
    if content["expressible"]:
        return []
    planned, made = content["bytes"]["plan"], content["bytes"]["recipe"]
    return [
        f"{content['tool']} leaves out: {'; '.join(content['cannot_carry'])}",
        f"caches take {made:,} B ({format_size(made)}) instead of {planned:,} B ({format_size(planned)})",
    ]
