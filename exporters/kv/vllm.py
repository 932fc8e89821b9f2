"""The caches of a plan as arguments of ``vllm serve``: each layer 16 bits, or one other width.

Names are those of vLLM's ``CacheConfig``. Layers named by ``--kv-cache-dtype-skip-layers`` stay at 16 bits;
the others have one 32-bit scale per token and head.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tightfit.exporters.base import Shipment, write_whole
from tightfit.exporters.kv.layers import (
    LayerCache,
    counted,
    fits,
    is_plain,
    layer_caches,
    left_out,
    load_of,
    recipe,
    shortfall,
    widest,
)
from tightfit.spaces import PLAIN, KvOption, Load

TYPES = {8: "int8_per_token_head", 4: "int4_per_token_head"}
"""Bits → ``--kv-cache-dtype``."""


def export(shipment: Shipment, out: Path) -> Path:
    """Write the recipe and return the path written.

    Raises:
        InputError: the file cannot be written, or the plan is not one of the space or has no caches.
    """
    return write_whole(out, json.dumps(describe(shipment), indent=2) + "\n")


def describe(shipment: Shipment) -> dict[str, Any]:
    """Return the content of the file.

    Where vLLM cannot store the plan, layers stay at 16 bits as far as that takes no more bytes than the plan
    gives them, and the others have the widest type with which the whole stays within the plan's bytes, or
    the narrowest where none does.
    """
    caches, load = layer_caches(shipment), load_of(shipment.space)
    cannot_carry = left_out(caches, "token")
    cannot_carry += counted(
        caches, {"have other bits for keys than for values": lambda o: not o.shared and o.k_bits != o.v_bits}
    )
    widths = {(c.option.k_bits, c.option.v_bits) for c in caches if c.option.quantized}
    if len(widths) > 1:
        cannot_carry.append(f"quantized layers have {len(widths)} widths, and vLLM takes one")
    options = [cache.option for cache in caches] if not cannot_carry else _nearest(caches, load)
    notes = [
        "vLLM quantizes with kernels of its own, which for int4 are more than plain rounding",
        "a common prefix of sequences is shared in whole blocks of tokens",
    ]
    settings = {"arguments": _arguments(options, load)}
    return recipe(shipment, "vLLM", settings, _bytes(caches, options, load), cannot_carry, notes)


def summary(shipment: Shipment, out: Path) -> list[str]:
    """Return lines for people: the command, and what it leaves of the plan."""
    content = describe(shipment)
    command = ["vllm", "serve", str(shipment.model["name"]), *content["arguments"]]
    return [shlex.join(command), *shortfall(content)]


def _nearest(caches: Sequence[LayerCache], load: Load) -> list[KvOption]:
    packed = [KvOption(bits, bits, layout="token", residual=0, sinks=0) for bits in TYPES]
    possible = [PLAIN, *(option for option in packed if fits(option, caches))]
    candidates = {
        option: [PLAIN if load.layer_bytes(c.shape, PLAIN) <= c.bytes else option for c in caches]
        for option in possible
    }
    sizes = {option: _bytes(caches, options, load) for option, options in candidates.items()}
    return candidates[widest(sizes, sum(cache.bytes for cache in caches))]


def _bytes(caches: Sequence[LayerCache], options: Sequence[KvOption], load: Load) -> int:
    return sum(load.layer_bytes(c.shape, option) for c, option in zip(caches, options, strict=True))


def _arguments(options: Sequence[KvOption], load: Load) -> list[str]:
    kept = [str(layer) for layer, option in enumerate(options) if is_plain(option)]
    widths = [option.k_bits for option in options if not is_plain(option)]
    words = ["--kv-cache-dtype", TYPES[widths[0]] if widths else "auto"]
    if widths and kept:
        words += ["--kv-cache-dtype-skip-layers", *kept]
    return [*words, "--max-model-len", str(load.context), "--max-num-seqs", str(load.batch)]
