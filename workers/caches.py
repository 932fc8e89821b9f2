"""Counting the bytes of a KV cache from a cache that really holds so many tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tightfit.compress.kvcache import CacheFormat, PlanCache, Prefilled
from tightfit.spaces import PLAIN, Geometry, KvOption, Load


def count_cache(geometry: Geometry, options: Mapping[int, KvOption], load: Load) -> int:
    """Count the bytes of a cache with a load, layer by layer, from its tensors.

    Nothing here comes from the memory formula, but for what sequences have in common: a cache of one
    sequence is made and counted. Layers without an option are plain.

    Args:
        geometry: of the model.
        options: by layer.
        load: context and batch.
    """
    counted: dict[object, int] = {}
    total = 0
    for layer, shape in enumerate(geometry.attention):
        option = options.get(layer, PLAIN)
        if option.shared:
            continue
        kind = shape, option
        if kind not in counted:
            held = load.context if shape.window is None else min(load.context, shape.window)
            states = torch.zeros(1, shape.kv_heads, held, shape.head_dim)
            queries = torch.zeros(1, shape.kv_heads, min(32, load.context), shape.head_dim)
            read = Prefilled(
                [states], [states], [queries], [shape.window], [1.0], load.context, torch.zeros(1, 1)
            )
            counted[kind] = PlanCache.from_prefill(read, [CacheFormat(**option.to_dict())]).nbytes
        common = load.batch * option.cache_bytes(shape, load.context) - load.layer_bytes(shape, option)
        total += load.batch * counted[kind] - common
    return total
