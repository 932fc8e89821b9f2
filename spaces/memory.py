"""Memory at inference: the KV cache beside the weights."""

from __future__ import annotations

from tightfit.spaces.errors import InputError
from tightfit.spaces.geometry import Geometry

KV_BITS = 16


def kv_bytes(geometry: Geometry, context: int, batch: int = 1) -> int:
    """Bytes of an uncompressed 16-bit KV cache once ``context`` tokens are in it.

    Σ over layers of 2 · kv_heads · head_dim · min(context, window) · batch · 16 / 8: keys and
    values, each layer with its own head width, sliding-window layers capped at their window.

    Raises:
        InputError: context or batch is below 1.
    """
    if context < 1 or batch < 1:
        raise InputError(f"context ({context}) and batch ({batch}) must be at least 1.")
    values = 0
    for layer in geometry.attention:
        kept = context if layer.window is None else min(context, layer.window)
        values += 2 * layer.kv_heads * layer.head_dim * kept * batch
    return values * KV_BITS // 8
