"""The caches of a plan as compression ratios of kvpress' ``PerLayerCompressionPress``, which only evicts.

The press that comes nearest to how tokens were chosen is ``SnapKVPress`` without its pooling. kvpress keeps
``int(T · (1 − ratio))`` of T tokens in 16 bits. It is never imported: its releases pin a Transformers that is
older than ours.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tightfit.exporters.base import Shipment, write_whole
from tightfit.exporters.kv.layers import LayerCache, counted, layer_caches, load_of, recipe, shortfall
from tightfit.spaces import PLAIN, KvOption, Load

OBSERVED_QUERIES = 32
"""Last queries of a prompt by which tokens are judged: those of ``kvcache``, without loading torch."""

_DIGITS = 1e6


def export(shipment: Shipment, out: Path) -> Path:
    """Write the recipe and return the path written.

    Raises:
        InputError: the file cannot be written, or the plan is not one of the space or has no caches.
    """
    return write_whole(out, json.dumps(describe(shipment), indent=2) + "\n")


def describe(shipment: Shipment) -> dict[str, Any]:
    """Return the content of the file: one ratio per layer, the share of tokens that is removed."""
    caches, load = layer_caches(shipment), load_of(shipment.space)
    ratios = [compression_ratio(cache, load.context) for cache in caches]
    settings = {
        "press": "PerLayerCompressionPress",
        "scorer": {"press": "SnapKVPress", "window_size": OBSERVED_QUERIES, "kernel_size": 1},
        "compression_ratios": ratios,
    }
    size = sum(_bytes(cache, ratio, load) for cache, ratio in zip(caches, ratios, strict=True))
    notes = [
        "kvpress marks ratios per layer as experimental: load the model with flash attention",
        "kvpress 0.5 needs an environment of its own, since it pins an older Transformers",
    ]
    return recipe(shipment, "kvpress", settings, size, _cannot_carry(caches, load), notes)


def summary(shipment: Shipment, out: Path) -> list[str]:
    """Return lines for people: how the press is made of the file, and what it leaves of the plan."""
    content = describe(shipment)
    scorer = content["scorer"]
    made = f"{scorer['press']}(window_size={scorer['window_size']}, kernel_size={scorer['kernel_size']})"
    line = f"press = {content['press']}({made}, json.load(open({str(out)!r}))['compression_ratios'])"
    return [line, *shortfall(content)]


def compression_ratio(cache: LayerCache, context: int) -> float:
    """Return the share of tokens that kvpress is to remove.

    1 − keep, or where sinks and recent tokens alone are more than that, or only the sinks are kept, what is
    removed of a whole context. Layers with a sliding window and shared ones are left as they are.
    """
    option = cache.option
    if cache.shape.window is not None or option.shared or not _evicts(option):
        return 0.0
    kept = option.kept(context)
    if not option.cutoff and kept == math.ceil(round(option.keep * context, 6)):
        return round(1 - option.keep, 6)
    return math.floor((1 - kept / context) * _DIGITS) / _DIGITS


def _evicts(option: KvOption) -> bool:
    return option.keep < 1 or option.cutoff


def _bytes(cache: LayerCache, ratio: float, load: Load) -> int:
    """Bytes of a layer in 16 bits, every sequence on its own."""
    if not ratio:
        return Load(load.context, load.batch).layer_bytes(cache.shape, PLAIN)
    kept = int(load.context * (1 - ratio))
    return load.batch * PLAIN.cache_bytes(cache.shape, kept)


def _cannot_carry(caches: list[LayerCache], load: Load) -> list[str]:
    words = counted(
        caches,
        {
            "are quantized": lambda o: o.quantized and not o.shared,
            "read the cache of the layer below": lambda o: o.shared,
            "never evict their first tokens": lambda o: _evicts(o) and o.sinks > 0,
        },
    )
    if any(cache.shape.window is not None and _evicts(cache.option) for cache in caches):
        words.append("layers with a sliding window evict tokens")
    if load.shared_prefix and load.batch > 1:
        words.append("sequences store the prefix that they have in common once")
    return words
