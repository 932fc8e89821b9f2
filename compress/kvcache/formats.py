"""How one layer's cache is stored: bits, layout, and how many tokens of each kind there are."""

from __future__ import annotations

import math
from dataclasses import dataclass

BITS = {"channel": (2, 3, 4, 5, 6, 8, 16), "block": (4, 5, 8, 16), "token": (4, 8, 16)}
GROUPS = (32, 64, 128)
FLOAT_BITS = 16
BLOCK = 32
"""Channels of one block of llama.cpp."""


@dataclass(frozen=True)
class CacheFormat:
    """One way to store the cache of a layer.

    In the order of their positions the kept tokens are: ``sinks`` tokens of 16-bit floats, quantized tokens
    in whole steps, and the most recent tokens as 16-bit floats again, ``residual`` or a few more.

    Attributes:
        k_bits, v_bits: bits of keys and values; 16 means plain floats.
        keep: share of the prompt's tokens that is kept, in (0, 1].
        layout: ``channel``, ``block`` or ``token``; see the module ``codecs``.
        group: tokens that share the scale of a channel of keys (layout ``channel``).
        residual: most recent tokens that stay 16-bit floats.
        sinks: first tokens that stay 16-bit floats and are never evicted.
        spread: bits of keys differ between rotary pairs of channels; their mean is ``k_bits``.
        shared: the layer stores nothing and reads the cache of the layer below.
        cutoff: of the prompt only the sinks are kept.

    Raises:
        ValueError: a value, or a combination, that no cache can have.
    """

    k_bits: int = FLOAT_BITS
    v_bits: int = FLOAT_BITS
    keep: float = 1.0
    layout: str = "channel"
    group: int = 32
    residual: int = 32
    sinks: int = 4
    spread: bool = False
    shared: bool = False
    cutoff: bool = False

    def __post_init__(self) -> None:
        if self.layout not in BITS:
            raise ValueError(f"layout must be one of {', '.join(BITS)}, but is {self.layout!r}.")
        for name in ("k_bits", "v_bits"):
            if (bits := getattr(self, name)) not in BITS[self.layout]:
                allowed = ", ".join(map(str, BITS[self.layout]))
                raise ValueError(f"{name} must be one of {allowed} in layout {self.layout}, but is {bits}.")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep must be greater than 0 and at most 1, but is {self.keep}.")
        if self.group not in GROUPS:
            raise ValueError(f"group must be one of {', '.join(map(str, GROUPS))}, but is {self.group}.")
        if self.residual < 0 or self.sinks < 0:
            raise ValueError(f"residual ({self.residual}) and sinks ({self.sinks}) cannot be negative.")
        if self.spread and (self.layout != "channel" or self.k_bits == FLOAT_BITS):
            raise ValueError("spread needs quantized keys (k_bits below 16) in layout channel.")

    @property
    def step(self) -> int:
        """Tokens that are quantized together."""
        return self.group if self.layout == "channel" else 1

    @property
    def is_quantized(self) -> bool:
        """Whether keys or values become integers."""
        return min(self.k_bits, self.v_bits) < FLOAT_BITS

    @property
    def evicts(self) -> bool:
        """Whether tokens of the prompt are left out."""
        return self.keep < 1 or self.cutoff

    def kept(self, tokens: int) -> int:
        """Tokens that are kept of a prompt of ``tokens`` (of what a sliding window reaches of it)."""
        if self.shared:
            return 0
        if self.cutoff:
            return min(tokens, max(1, self.sinks))
        if self.keep == 1:
            return tokens
        # Rounded first: 0.1 · 30 is a little more than 3 in binary.
        share = math.ceil(round(self.keep * tokens, 6))
        return min(tokens, max(1, self.sinks + self.residual, share))

    def quantized(self, kept: int) -> int:
        """Tokens that are quantized of ``kept`` ones: whole steps between the sinks and the residual."""
        if not self.is_quantized:
            return 0
        return max(0, kept - self.sinks - self.residual) // self.step * self.step

    def check(self, width: int) -> None:
        """Refuse a head width that the layout cannot pack.

        Raises:
            ValueError: naming the width and what it must be.
        """
        if self.is_quantized and self.layout == "block" and width % BLOCK:
            raise ValueError(f"layout block needs heads of a multiple of {BLOCK} channels, not {width}.")
        if self.layout == "token" and width * min(self.k_bits, self.v_bits) % 8:
            raise ValueError(f"layout token cannot fill whole bytes with {width} channels.")
        if self.spread and width % 2:
            raise ValueError(f"spread pairs channels, but a head has {width} of them.")
