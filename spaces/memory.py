"""Memory at inference beside the weights: the KV cache, and what one forward needs for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.spaces.errors import InputError
from tightfit.spaces.geometry import Attention, Geometry
from tightfit.spaces.kv import FLOAT_BYTES, KvOption
from tightfit.spaces.targets import Target

PLAIN = KvOption()
"""An uncompressed cache: 16-bit floats, everything kept."""


@dataclass(frozen=True)
class Load:
    """What a cache has to hold.

    Attributes:
        context: tokens of every sequence.
        batch: sequences.
        shared_prefix: first tokens that all sequences of the batch have in common; they are stored once.
    """

    context: int
    batch: int = 1
    shared_prefix: int = 0

    def __post_init__(self) -> None:
        if self.context < 1 or self.batch < 1:
            raise InputError(f"context ({self.context}) and batch ({self.batch}) must be at least 1.")
        if not 0 <= self.shared_prefix <= self.context:
            raise InputError(
                f"the shared prefix ({self.shared_prefix}) must be from 0 to the context ({self.context})."
            )

    def layer_bytes(self, layer: Attention, option: KvOption) -> int:
        """Bytes of one layer's cache.

        A prefix is stored once where all of it stays for everybody: nothing is evicted and no window slides
        past it. Of it the sinks and whole quantized groups are shared, and with plain floats every token.
        """
        one = option.cache_bytes(layer, self.context)
        return self.batch * one - (self.batch - 1) * self._common_bytes(layer, option)

    def _common_bytes(self, layer: Attention, option: KvOption) -> int:
        """Bytes of one sequence's cache that all sequences have in common."""
        slides = layer.window is not None and layer.window < self.context
        if slides or option.shared or option.cutoff or option.keep < 1:
            return 0
        prefix, sinks = self.shared_prefix, option.sinks
        quantized = option.quantized_tokens(self.context)
        coded = min(max(0, prefix - sinks) // option.step * option.step, quantized)
        floats = min(prefix, sinks) + max(0, prefix - sinks - quantized)
        # Spread bits follow the first group of keys, so whoever shares that one shares their widths.
        return option.coded_bytes(layer, coded) + floats * 2 * layer.kv_heads * layer.head_dim * FLOAT_BYTES


def kv_bytes(geometry: Geometry, load: Load, options: Sequence[KvOption] | None = None) -> int:
    """Bytes of the KV cache.

    Σ over layers of :meth:`Load.layer_bytes`; uncompressed and without a shared prefix that is
    2 · kv_heads · head_dim · min(context, window) · batch · 16 / 8, each layer with its own head width.

    Args:
        geometry: of the model.
        load: context and batch.
        options: one per layer; uncompressed unless given.

    Raises:
        InputError: an option does not fit a head.
    """
    each = options or [PLAIN] * geometry.layers
    return sum(
        load.layer_bytes(layer, option) for layer, option in zip(geometry.attention, each, strict=True)
    )


def longest_context(
    geometry: Geometry,
    size: int,
    batch: int = 1,
    shared_prefix: int = 0,
    options: Sequence[KvOption] | None = None,
) -> int:
    """Longest context up to which a cache always fits into a number of bytes; 0 where not one token does.

    Args:
        geometry: of the model; no context is longer than it was made for.
        size: bytes for the cache.
        batch: sequences.
        shared_prefix: first tokens that they have in common, as far as a context is that long.
        options: one per layer; uncompressed unless given.
    """
    each = options or [PLAIN] * geometry.layers
    kinds = Counter(zip(geometry.attention, each, strict=True))

    def most(low: int, high: int) -> int:
        """Bound on the bytes at every context from ``low`` to ``high``, exact where both are the same."""
        total = 0
        for (layer, option), count in kinds.items():
            # Between two steps of quantizing a cache only grows, and so do the peaks right before them.
            peak = option.last_peak(high if layer.window is None else min(high, layer.window))
            total += count * max(
                Load(context, batch, min(shared_prefix, context)).layer_bytes(layer, option)
                for context in {high, max(low, peak)}
            )
        return total

    def fitting(low: int, high: int) -> int:
        """Last context before the first one from ``low`` to ``high`` that does not fit, or ``high``."""
        if most(low, high) <= size:
            return high
        if low == high:
            return low - 1
        middle = (low + high) // 2
        found = fitting(low, middle)
        return found if found < middle else fitting(middle + 1, high)

    return fitting(1, geometry.max_context)


def prefill_bytes(geometry: Geometry, load: Load) -> int:
    """Bytes of the cache at its peak: after the prompt, in the model's own numbers, nothing evicted yet."""
    values = sum(2 * layer.kv_heads * layer.head_dim for layer in geometry.attention)
    tokens = load.batch * load.context - (load.batch - 1) * load.shared_prefix
    return values * tokens * geometry.dtype_bytes


def overhead_bytes(geometry: Geometry, load: Load, target: Target) -> int:
    """Bytes that generating needs beside weights and cache.

    With n tokens run at once (``target.chunk`` of the prompt, or one of every sequence), in 32-bit floats:
    the residual stream and the outputs of all matrices of the widest block, n · (2 · hidden + Σ rows) · 4;
    logits of the last token of every sequence, batch · vocabulary · 4; attention scores of one layer,
    n · heads · context · 4, unless the target fuses them. Where the target reads stored numbers back before
    it multiplies: the largest matrix of a block and the largest cache of a layer at its precision.
    """
    tokens = max(load.batch, min(target.chunk, load.context))
    rows: dict[int, int] = {}
    matrices = [linear for linear in geometry.linears if linear.layer is not None]
    for linear in matrices:
        rows[linear.layer or 0] = rows.get(linear.layer or 0, 0) + linear.rows
    size = 4 * tokens * (2 * geometry.hidden + max(rows.values(), default=0))
    size += 4 * load.batch * geometry.vocab
    if not target.fused_kernels:
        heads = max(geometry.query_heads(layer) for layer in range(geometry.layers))
        size += 4 * tokens * heads * load.context
        size += max((linear.weights for linear in matrices), default=0) * geometry.dtype_bytes
        caches = [
            2 * x.kv_heads * x.head_dim * min(load.context, x.window or load.context)
            for x in geometry.attention
        ]
        size += load.batch * max(caches, default=0) * geometry.dtype_bytes
    return size
