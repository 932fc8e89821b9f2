"""Codecs: 16-bit keys or values of some tokens into packed integers, and back.

Every codec quantizes ``step`` tokens together by rounding to nearest, and returns tensors whose third
dimension counts these steps, so that more steps can be appended and the oldest be dropped.

* :class:`ChannelKeys`, :class:`ChannelValues`: the asymmetric layout of KIVI (Liu et al., *KIVI: A
  Tuning-Free Asymmetric 2bit Quantization for KV Cache*, ICML 2024, arXiv:2402.02750): x ≈ scale · q +
  minimum, both 16-bit floats, per channel over a group of tokens for keys, per token over a group of channels
  for values. :class:`SpreadKeys` gives every channel a width of its own.
* :class:`Blocks`: llama.cpp's blocks of 32 channels of one token, with the arithmetic of its reference
  quantizers of Q8_0, Q5_0 and Q4_0.
* :class:`Tokens`: one symmetric 32-bit scale per token and head.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from .formats import BLOCK, FLOAT_BITS, CacheFormat
from .packing import pack, pack_planes, unpack, unpack_planes
from .spread import spread_bits

_HALF = torch.finfo(torch.float16).max


class Codec(Protocol):
    """Quantizes 16-bit floats of shape (batch, heads, tokens, width), whole steps of tokens."""

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the packed tensors, (batch, heads, steps, ...) each."""

    def decode(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Return the floats that they stand for, (batch, heads, tokens, width), in 32 bits."""


def codec_of(form: CacheFormat, bits: int, keys: bool, first: Tensor) -> Codec | None:
    """Return the codec of a layer's keys or values, or None for plain 16-bit floats.

    Args:
        form: the layer's format.
        bits: of the keys or values.
        keys: whether it is for keys.
        first: the first tokens it will quantize (batch, heads, tokens, width): spread bits follow them.
    """
    width = first.shape[-1]
    if bits == FLOAT_BITS:
        return None
    if form.layout == "block":
        return Blocks(bits)
    if form.layout == "token":
        return Tokens(bits, width)
    if not keys:
        return ChannelValues(bits, form.group, width)
    if form.spread:
        return SpreadKeys(spread_bits(first, bits), form.group)
    return ChannelKeys(bits, form.group, width)


class ChannelKeys:
    """A scale and a minimum per channel over ``group`` tokens."""

    def __init__(self, bits: int, group: int, width: int) -> None:
        self.bits, self.group, self.width = bits, group, width

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """Codes (.., steps, width · group · bits / 8), scales and minima (.., steps, width)."""
        codes, scales, minima = _quantize(_by_channel(x, self.group), 2**self.bits - 1)
        return pack(codes.flatten(-2), self.bits), scales, minima

    def decode(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Floats (batch, heads, tokens, width)."""
        packed, scales, minima = parts
        codes = torch.unflatten(
            unpack(packed, self.bits, self.width * self.group), -1, (self.width, self.group)
        )
        return _read(codes, scales, minima).transpose(-1, -2).flatten(2, 3)


class SpreadKeys:
    """As :class:`ChannelKeys`, but every channel has a width of its own.

    Attributes:
        widths: bits of each rotary pair, uint8 (batch, heads, width / 2).
    """

    def __init__(self, widths: Tensor, group: int) -> None:
        self.widths, self.group = widths, group

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """Planes (.., steps, width · mean bits, group / 8), scales and minima (.., steps, width)."""
        channels = self._channels()
        levels = (2.0 ** channels.float() - 1)[:, :, None, :, None]
        codes, scales, minima = _quantize(_by_channel(x, self.group), levels)
        return pack_planes(codes, channels), scales, minima

    def decode(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Floats (batch, heads, tokens, width)."""
        planes, scales, minima = parts
        codes = unpack_planes(planes, self._channels(), self.group)
        return _read(codes, scales, minima).transpose(-1, -2).flatten(2, 3)

    def _channels(self) -> Tensor:
        """Bits of each channel: those of a pair, i and i + width / 2, are equal."""
        return torch.cat([self.widths, self.widths], -1)


class ChannelValues:
    """A scale and a minimum per token over gcd(group, width) channels; a step is ``group`` tokens."""

    def __init__(self, bits: int, group: int, width: int) -> None:
        self.bits, self.group, self.width = bits, group, width
        self.channels = math.gcd(group, width)

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """Codes (.., steps, group · width · bits / 8), scales and minima (.., steps, group, groups)."""
        grouped = torch.unflatten(_by_token(x, self.channels), 2, (-1, self.group))
        codes, scales, minima = _quantize(grouped, 2**self.bits - 1)
        return pack(codes.flatten(3), self.bits), scales, minima

    def decode(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Floats (batch, heads, tokens, width)."""
        packed, scales, minima = parts
        codes = unpack(packed, self.bits, self.group * self.width)
        grouped = torch.unflatten(codes, -1, (self.group, -1, self.channels))
        return _read(grouped, scales, minima).flatten(4, 5).flatten(2, 3)


class Blocks:
    """llama.cpp's Q8_0, Q5_0 or Q4_0: 32 channels of a token with one 16-bit scale."""

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """Codes (.., tokens, blocks, 4 · bits) and scales (.., tokens, blocks)."""
        blocks = _by_token(x, BLOCK)
        middle = 2 ** (self.bits - 1)
        largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
        # Q8_0 divides the absolute maximum by 127; the others let the extreme be the lowest code.
        scales = largest.abs() / 127 if self.bits == 8 else largest / -middle
        inverse = torch.where(scales == 0, 0.0, 1 / scales)
        scaled = blocks * inverse
        if self.bits == 8:
            codes = _round_half_away(scaled) + middle
        else:
            codes = (scaled + (middle + 0.5)).trunc().clamp(max=2 * middle - 1)
        return pack(codes.to(torch.uint8), self.bits), _half(scales.squeeze(-1))

    def decode(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Floats (batch, heads, tokens, width)."""
        packed, scales = parts
        codes: Tensor = unpack(packed, self.bits, BLOCK).float() - 2 ** (self.bits - 1)
        return (scales.float().unsqueeze(-1) * codes).flatten(3)


class Tokens:
    """One symmetric 32-bit scale per token and head: the largest value is the largest code."""

    def __init__(self, bits: int, width: int) -> None:
        self.bits, self.width = bits, width

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """Codes (.., tokens, width · bits / 8) and scales (.., tokens)."""
        x = x.float()
        middle = 2 ** (self.bits - 1)
        scales = x.abs().amax(-1, keepdim=True) / (middle - 1)
        codes = torch.where(scales == 0, 0.0, x / scales).round().clamp(-middle, middle - 1) + middle
        return pack(codes.to(torch.uint8), self.bits), scales.squeeze(-1)

    def decode(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Floats (batch, heads, tokens, width)."""
        packed, scales = parts
        codes: Tensor = unpack(packed, self.bits, self.width).float() - 2 ** (self.bits - 1)
        return scales.unsqueeze(-1) * codes


def _by_channel(x: Tensor, group: int) -> Tensor:
    """Cut (batch, heads, tokens, width) into (batch, heads, groups, width, tokens of a group)."""
    return torch.unflatten(x.float(), 2, (-1, group)).transpose(-1, -2)


def _by_token(x: Tensor, channels: int) -> Tensor:
    """Cut (batch, heads, tokens, width) into (batch, heads, tokens, groups, channels of a group)."""
    return torch.unflatten(x.float(), 3, (-1, channels))


def _quantize(x: Tensor, levels: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Min-max rounding along the last dimension: uint8 codes, float16 scales and minima.

    Codes are found with the scale and the minimum as they are stored.
    """
    low, high = x.aminmax(dim=-1, keepdim=True)
    minima, scales = _half(low), _half((high - low) / levels)
    scaled = torch.where(scales == 0, 0.0, (x - minima.float()) / scales.float())
    codes = scaled.round().clamp(min=0).minimum(torch.as_tensor(levels, dtype=x.dtype, device=x.device))
    return codes.to(torch.uint8), scales.squeeze(-1), minima.squeeze(-1)


def _read(codes: Tensor, scales: Tensor, minima: Tensor) -> Tensor:
    """Return scale · code + minimum in 32 bits."""
    return codes * scales.float().unsqueeze(-1) + minima.float().unsqueeze(-1)


def _half(x: Tensor) -> Tensor:
    """Round to 16 bits; what is too large becomes the largest float16."""
    return x.clamp(-_HALF, _HALF).to(torch.float16)


def _round_half_away(x: Tensor) -> Tensor:
    """C's ``roundf``, exactly: torch rounds halves to even."""
    whole = x.trunc()
    return whole + torch.where((x - whole).abs() >= 0.5, x.sign(), 0.0)
