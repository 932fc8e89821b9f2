"""The keys or the values of one layer, as they are stored."""

from __future__ import annotations

import torch
from torch import Tensor

from .codecs import Codec, SpreadKeys, codec_of
from .formats import FLOAT_BITS, CacheFormat


def to_float16(states: Tensor) -> Tensor:
    """Round to 16 bits: bfloat16 stays, everything else becomes float16, its largest value at most."""
    if states.dtype == torch.bfloat16:
        return states
    most = torch.finfo(torch.float16).max
    return states.clamp(-most, most).to(torch.float16)


class Store:
    """Tokens in 16 bits, then quantized ones, then tokens in 16 bits.

    Where nothing is quantized, all tokens are in the tail.
    """

    def __init__(self, form: CacheFormat, is_keys: bool, states: Tensor, sinks: int, coded: int) -> None:
        """Store states (batch, heads, tokens, width), given in the dtype of those that stay floats."""
        self._form, self._is_keys = form, is_keys
        self._bits = form.k_bits if is_keys else form.v_bits
        self._codec: Codec | None = None
        self._parts: tuple[Tensor, ...] = ()
        if self._bits == FLOAT_BITS:
            sinks = coded = 0
        # Copies: nothing is shared with the prefill, which more caches are made of.
        self._sinks, self._tail = states[:, :, :sinks].clone(), states[:, :, sinks:].clone()
        if coded:
            self._encode(coded, coded)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self._tail.device

    @property
    def batch(self) -> int:
        """Sequences."""
        return self._tail.shape[0]

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored: floats of 16 bits, codes and their scales, widths of spread bits."""
        named = {"sinks": self._sinks, "tail": self._tail}
        named |= dict(zip(("codes", "scales", "minima"), self._parts, strict=False))
        if isinstance(self._codec, SpreadKeys):
            named["widths"] = self._codec.widths
        return named

    def append(self, states: Tensor, front: int, flushed: int) -> Tensor:
        """Add tokens and return all that they attend to, in their dtype.

        Args:
            states: the new tokens (batch, heads, tokens, width).
            front: tokens of the layer before its tail.
            flushed: oldest tokens of the tail, the new ones included, that become integers.

        Returns:
            (batch, heads, tokens, width): the front, then ``flushed`` tokens as they are stored from now on,
            then the whole tail as it was.
        """
        dtype = states.dtype
        # Rounded before anyone reads them, so that a token reads the same now and later.
        rounded = to_float16(states) if self._tail.dtype != dtype else states
        self._tail = torch.cat([self._tail, rounded], 2)
        tail = self._tail
        if self._bits == FLOAT_BITS:
            if flushed:
                tail = torch.cat([tail[:, :, : front + flushed], tail[:, :, front:]], 2)
            return tail.to(dtype)
        self.flush(flushed)
        pieces = [self._sinks.to(dtype), tail.to(dtype)]
        if self._codec is not None:
            pieces.insert(1, self._codec.decode(self._parts).to(dtype))
        return torch.cat(pieces, 2)

    def flush(self, tokens: int) -> None:
        """Quantize the oldest tokens of the tail, whole steps, if this store quantizes at all."""
        if tokens and self._bits != FLOAT_BITS:
            # Spread bits follow the first step alone, so that they do not depend on how many come at once.
            self._encode(tokens, self._form.step)

    def _encode(self, tokens: int, first: int) -> None:
        oldest = self._tail[:, :, :tokens]
        if self._codec is None:
            self._codec = codec_of(self._form, self._bits, self._is_keys, oldest[:, :, :first])
        if self._codec is None:
            return
        parts = self._codec.encode(oldest)
        if self._parts:
            parts = tuple(torch.cat(both, 2) for both in zip(self._parts, parts, strict=True))
        self._parts = parts
        self._tail = self._tail[:, :, tokens:].clone()

    def drop(self, sinks: int, coded: int, tail: int) -> None:
        """Drop the oldest of each kind of token."""
        if self._bits == FLOAT_BITS:
            sinks, coded, tail = 0, 0, sinks + coded + tail
        self._sinks, self._tail = self._sinks[:, :, sinks:].clone(), self._tail[:, :, tail:].clone()
        if coded:
            steps = coded // self._form.step
            self._parts = tuple(part[:, :, steps:].clone() for part in self._parts)
            if not self._parts[0].shape[2]:
                self._parts, self._codec = (), None

    def select(self, sequences: Tensor) -> None:
        """Choose sequences of the batch."""
        at = sequences.to(self.device)
        self._sinks, self._tail = self._sinks.index_select(0, at), self._tail.index_select(0, at)
        self._parts = tuple(part.index_select(0, at) for part in self._parts)
        if isinstance(self._codec, SpreadKeys):
            self._codec = SpreadKeys(self._codec.widths.index_select(0, at), self._form.group)
