"""The caches of a plan as arguments of ``llama-server`` and its kin, which store all layers alike.

Names are those of llama.cpp's ``common/arg.cpp``. A quantized cache of values asks for flash attention. The
context given is that of all sequences together: each has its share, rounded up to 256 tokens.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from tightfit.exporters.base import Shipment, write_whole
from tightfit.exporters.kv.layers import (
    LayerCache,
    fits,
    layer_caches,
    left_out,
    load_of,
    recipe,
    shortfall,
    widest,
)
from tightfit.spaces import KvOption, Load

TYPES = {16: "f16", 8: "q8_0", 5: "q5_0", 4: "q4_0"}
"""Bits → type of ``--cache-type-k`` and ``--cache-type-v``."""

_PADDING = 256  # tokens


def export(shipment: Shipment, out: Path) -> Path:
    """Write the recipe and return the path written.

    Raises:
        InputError: the file cannot be written, or the plan is not one of the space or has no caches.
    """
    return write_whole(out, json.dumps(describe(shipment), indent=2) + "\n")


def describe(shipment: Shipment) -> dict[str, Any]:
    """Return the content of the file.

    Where layers differ or are stored as llama.cpp cannot, it holds the widest setting whose bytes stay within
    those of the plan, or the narrowest where none does.
    """
    caches, load = layer_caches(shipment), load_of(shipment.space)
    cannot_carry = left_out(caches, "block")
    if (kinds := len({cache.option.name for cache in caches})) > 1:
        cannot_carry.append(f"layers have {kinds} different caches, and llama.cpp stores all alike")
    option = caches[0].option if not cannot_carry else _nearest(caches, load)
    if load.shared_prefix and load.batch > 1:
        cannot_carry.append("sequences store the prefix that they have in common once")
    notes = ["--ctx-size is the context of all sequences together"]
    if load.context % _PADDING:
        notes.append(f"llama.cpp rounds the context of each sequence up to a multiple of {_PADDING} tokens")
    if any(cache.shape.window is not None for cache in caches):
        notes.append("a sliding window takes some hundred tokens more, those that are run at once")
    settings = {"arguments": _arguments(option, load)}
    return recipe(shipment, "llama.cpp", settings, _bytes(caches, option, load), cannot_carry, notes)


def summary(shipment: Shipment, out: Path) -> list[str]:
    """Return lines for people: the command, and what it leaves of the plan."""
    content = describe(shipment)
    command = ["llama-server", "-m", "model.gguf", *content["arguments"]]
    return [shlex.join(command), *shortfall(content)]


def _nearest(caches: list[LayerCache], load: Load) -> KvOption:
    # Wide keys first: at equal bytes they are worth more than wide values (Liu et al., KIVI, ICML 2024).
    options = [KvOption(k, v, layout="block", residual=0, sinks=0) for k in TYPES for v in TYPES]
    sizes = {option: _bytes(caches, option, load) for option in options if fits(option, caches)}
    return widest(sizes, sum(cache.bytes for cache in caches))


def _bytes(caches: list[LayerCache], option: KvOption, load: Load) -> int:
    """Bytes with every sequence on its own."""
    apart = Load(load.context, load.batch)
    return sum(apart.layer_bytes(cache.shape, option) for cache in caches)


def _arguments(option: KvOption, load: Load) -> list[str]:
    words = ["--cache-type-k", TYPES[option.k_bits], "--cache-type-v", TYPES[option.v_bits]]
    if option.v_bits < max(TYPES):
        words += ["--flash-attn", "on"]
    return [*words, "--ctx-size", str(load.context * load.batch), "--parallel", str(load.batch)]
