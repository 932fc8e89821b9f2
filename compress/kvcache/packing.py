"""Integer codes packed at their real width into bytes."""

from __future__ import annotations

import torch
from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes of ``bits`` bits along the last dimension.

    A width is cut into parts of 4, 2 and 1 bits (5 = 4 + 1), which are stored one after the other. Within a
    part, byte j holds the codes j, j + n, j + 2n, …, n being the bytes of the part: so every shift works on
    contiguous bytes.

    Args:
        codes: uint8 (..., count), each below 2^bits; ``count`` must be such that every part fills its bytes.
        bits: 1 to 8.

    Returns:
        uint8 (..., count · bits / 8).
    """
    pieces = []
    for width, shift in _parts(bits):
        part = (codes >> shift) & (2**width - 1)
        lanes = torch.unflatten(part, -1, (8 // width, -1))
        packed = lanes[..., 0, :].clone()
        for lane in range(1, 8 // width):
            packed |= lanes[..., lane, :] << (lane * width)
        pieces.append(packed)
    return torch.cat(pieces, -1)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Read the codes back that :func:`pack` packed: uint8 (..., count)."""
    codes = torch.zeros(*packed.shape[:-1], count, dtype=torch.uint8, device=packed.device)
    start = 0
    for width, shift in _parts(bits):
        size = count * width // 8
        part = packed[..., start : start + size]
        lanes = torch.unflatten(codes, -1, (8 // width, -1))
        for lane in range(8 // width):
            lanes[..., lane, :] |= ((part >> (lane * width)) & (2**width - 1)) << shift
        start += size
    return codes


def _parts(bits: int) -> list[tuple[int, int]]:
    """Powers of two that add up to ``bits``, largest first, each with the bits that are below it."""
    parts, below = [], bits
    for width in (8, 4, 2, 1):
        if bits & width:
            below -= width
            parts.append((width, below))
    return parts


def pack_planes(codes: Tensor, widths: Tensor) -> Tensor:
    """Pack codes whose width differs between channels, one plane of bits after the other.

    Args:
        codes: uint8 (batch, heads, groups, channels, tokens).
        widths: bits of each channel (batch, heads, channels), 1 to 8, with one sum for all heads.

    Returns:
        uint8 (batch, heads, groups, sum of widths, tokens / 8).
    """
    planes = torch.stack([(codes >> bit) & 1 for bit in range(8)], 4)
    planes = pack(planes, 1).permute(0, 1, 3, 4, 2, 5)  # batch, heads, channels, bits, groups, bytes
    chosen = planes[_used(widths)]
    return chosen.view(*widths.shape[:2], -1, *planes.shape[-2:]).transpose(2, 3).contiguous()


def unpack_planes(packed: Tensor, widths: Tensor, tokens: int) -> Tensor:
    """Read the codes back that :func:`pack_planes` packed: (batch, heads, groups, channels, tokens)."""
    batch, heads, groups = packed.shape[:3]
    shape = (batch, heads, widths.shape[-1], 8, groups, packed.shape[-1])
    planes = torch.zeros(shape, dtype=torch.uint8, device=packed.device)
    planes[_used(widths)] = packed.transpose(2, 3).flatten(0, 2)
    bits = unpack(planes.permute(0, 1, 4, 2, 3, 5), 1, tokens)
    codes = torch.zeros_like(bits[..., 0, :])
    for bit in range(8):
        codes |= bits[..., bit, :] << bit
    return codes


def _used(widths: Tensor) -> Tensor:
    """Which of the eight bits of every channel are stored: bool (batch, heads, channels, 8)."""
    return torch.arange(8, device=widths.device) < widths.unsqueeze(-1)
