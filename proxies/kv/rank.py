"""Fewer numbers instead of fewer bits: keys and values in the coordinates of their leading directions.

A cache of rank r keeps r 16-bit coefficients per token and KV head in a fixed basis, which belongs to the
model and not to the tokens. Eigen Attention (Saxena et al., *Eigen Attention: Attention in Low-Rank Space
for KV Cache Compression*, Findings of EMNLP 2024, arXiv:2408.05646) finds the basis from the activations of
calibration text, as here; Palu (Chang et al., *Palu: KV-Cache Compression with Low-Rank Projection*, ICLR
2025, arXiv:2407.21118) from the projection weights. Both hold keys as they are before rotary positions are
put on, where they need fewer directions; here they are taken as the cache has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tightfit.spaces import InputError

_COEFFICIENT = 2  # bytes of a 16-bit float


def principal_directions(states: Sequence[Tensor]) -> Tensor:
    """Directions of every KV head, those that hold most of ‖X‖² first.

    They are the right singular vectors of the head's calibration tokens, not centred.

    Args:
        states: keys or values of one layer for calibration prompts, each (batch, kv_heads, tokens, width).

    Returns:
        float32 (kv_heads, width, width), directions in the columns, which are orthonormal.

    Raises:
        InputError: there are no calibration tokens.
    """
    if not any(x.numel() for x in states):
        raise InputError("principal directions need at least one calibration token.")
    grams = [torch.einsum("bhtd,bhte->hde", x.double(), x.double()) for x in states]
    # Eigenvectors of XᵀX are the right singular vectors of X, and X may be long.
    directions: Tensor = torch.linalg.eigh(torch.stack(grams).sum(0)).eigenvectors.flip(-1)
    return directions.float()


def project(states: Tensor, directions: Tensor, rank: int, sinks: int = 0, residual: int = 0) -> Tensor:
    """Read back what a cache of rank r holds.

    Args:
        states: (batch, kv_heads, tokens, width).
        directions: (kv_heads, width, width), see :func:`principal_directions`.
        rank: coefficients per token, 1 to width.
        sinks: first tokens, which are kept whole, as 16-bit floats.
        residual: last tokens, kept in the same way.

    Returns:
        float32 of the same shape.

    Raises:
        InputError: the rank is not between 1 and the width.
    """
    width, tokens = states.shape[-1], states.shape[2]
    if not 1 <= rank <= width:
        raise InputError(f"a rank of {rank} is not between 1 and the head width, {width}.")
    basis = directions[:, :, :rank].to(states.device)
    coefficients = (states.float() @ basis).half().float()
    read = coefficients @ basis.transpose(-1, -2)
    first, last = _ends(tokens, sinks, residual)
    read[:, :, :first] = states[:, :, :first].half().float()
    read[:, :, last:] = states[:, :, last:].half().float()
    return read


def rank_bytes(tokens: int, kv_heads: int, width: int, rank: int, sinks: int = 0, residual: int = 0) -> int:
    """Bytes of the keys, or of the values, of one layer and sequence at a rank; the basis does not count."""
    first, last = _ends(tokens, sinks, residual)
    return kv_heads * _COEFFICIENT * ((last - first) * rank + (tokens - last + first) * width)


def rank_within(
    size: int, tokens: int, kv_heads: int, width: int, sinks: int = 0, residual: int = 0
) -> int | None:
    """Highest rank whose keys, or values, take at most ``size`` bytes; None where not even one does."""
    ranks = range(width, 0, -1)
    return next((r for r in ranks if rank_bytes(tokens, kv_heads, width, r, sinks, residual) <= size), None)


def low_rank_cache(
    keys: Tensor,
    values: Tensor,
    directions: tuple[Tensor, Tensor],
    ranks: tuple[int, int],
    sinks: int = 0,
    residual: int = 0,
) -> tuple[Tensor, Tensor, int]:
    """Keys and values of a layer as a cache of these ranks returns them, and its bytes.

    Args:
        keys: (batch, kv_heads, tokens, width).
        values: the same.
        directions: of keys and of values.
        ranks: of keys and of values.
        sinks: first tokens, which are kept whole.
        residual: last tokens, kept in the same way.

    Returns:
        Keys and values read back, float32, and bytes over the batch.
    """
    batch, kv_heads, tokens, width = keys.shape
    read = [
        project(states, basis, rank, sinks, residual)
        for states, basis, rank in zip((keys, values), directions, ranks, strict=True)
    ]
    size = sum(rank_bytes(tokens, kv_heads, width, rank, sinks, residual) for rank in ranks)
    return read[0], read[1], batch * size


def _ends(tokens: int, sinks: int, residual: int) -> tuple[int, int]:
    """Where the tokens begin and end that are not kept whole."""
    first = min(sinks, tokens)
    return first, max(first, tokens - residual)
