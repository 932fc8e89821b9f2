"""KV options: the ways to store one layer's KV cache, with their exact bytes at a context and batch."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from tightfit.spaces.errors import InputError
from tightfit.spaces.geometry import Attention

KvLayout = Literal["channel", "block", "token"]

KV_LAYOUTS: tuple[KvLayout, ...] = ("channel", "block", "token")
KV_GROUPS = (32, 64, 128)
KV_BITS: dict[KvLayout, tuple[int, ...]] = {
    "channel": (2, 3, 4, 5, 6, 8, 16),
    "block": (4, 5, 8, 16),
    "token": (4, 8, 16),
}
BLOCK_CHANNELS = 32
"""Channels of one block of llama.cpp."""

FLOAT_BITS = 16
FLOAT_BYTES = FLOAT_BITS // 8
_SCALE_AND_MINIMUM = 4  # bytes: two 16-bit floats
_SCALE = 4  # bytes: one 32-bit float
_POSITION = 4  # bytes: a 32-bit integer
_BLOCK_BYTES = {4: 18, 5: 22, 8: 34}  # Q4_0, Q5_0 and Q8_0
_NAME = re.compile(
    r"k(?P<k>\d{1,9})v(?P<v>\d{1,9})"
    r"(?:-g(?P<group>\d{1,9}))?(?:-r(?P<residual>\d{1,9}))?(?:-s(?P<sinks>\d{1,9}))?"
    r"(?:-(?P<layout>block|token))?(?:-keep(?P<keep>\d+(?:\.\d+)?(?:e-\d+)?))?"
    r"(?P<spread>-spread)?(?P<cutoff>-cutoff)?"
)
_SHARED = "shared"


@dataclass(frozen=True, order=True)
class KvOption:
    """One way to store the KV cache of a layer.

    A cache holds ``kept`` tokens of the context. The first ``sinks`` and the last ``residual`` of them, and
    what is left over from whole groups, stay 16-bit floats; the others are quantized.

    Args:
        k_bits, v_bits: bits of keys and of values; 16 means plain floats.
        keep: share of the context's tokens that is kept, chosen by attention mass.
        layout: ``channel`` has a scale and a minimum per channel of keys over ``group`` tokens, and per
            token of values over a group of channels (Liu et al., *KIVI*, ICML 2024); ``block`` has
            llama.cpp's blocks of 32 channels of one token (Q8_0, Q5_0, Q4_0); ``token`` one 32-bit scale
            per token and head, as vLLM's ``int8_per_token_head``.
        group: tokens that share a scale of a channel of keys.
        residual: most recent tokens that stay 16-bit floats.
        sinks: first tokens that stay 16-bit floats and are never evicted (Xiao et al., *Efficient
            Streaming Language Models with Attention Sinks*, ICLR 2024).
        spread: bits of keys are spread over rotary pairs by their energy; the mean stays ``k_bits``.
        shared: the layer keeps nothing and reads the cache of the layer below.
        cutoff: of the prompt only the sinks are kept.
    """

    k_bits: int = FLOAT_BITS
    v_bits: int = FLOAT_BITS
    keep: float = 1.0
    layout: KvLayout = "channel"
    group: int = 32
    residual: int = 32
    sinks: int = 4
    spread: bool = False
    shared: bool = False
    cutoff: bool = False

    def __post_init__(self) -> None:
        if self.layout not in KV_LAYOUTS:
            raise InputError(
                f"{self.layout!r} is no layout of a KV cache (layouts: {', '.join(KV_LAYOUTS)})."
            )
        for bits in (self.k_bits, self.v_bits):
            if bits not in KV_BITS[self.layout]:
                allowed = ", ".join(map(str, KV_BITS[self.layout]))
                raise InputError(f"{bits} bits are not offered for a KV cache by {self.layout} ({allowed}).")
        if not (0 < self.keep <= 1):
            raise InputError(f"keep must be greater than 0 and at most 1, but is {self.keep:g}.")
        if self.group not in KV_GROUPS:
            raise InputError(
                f"groups of {self.group} tokens are not offered ({', '.join(map(str, KV_GROUPS))})."
            )
        if self.residual < 0 or self.sinks < 0:
            raise InputError(f"residual ({self.residual}) and sinks ({self.sinks}) cannot be negative.")
        if self.spread and (self.layout != "channel" or self.k_bits == FLOAT_BITS):
            raise InputError("spread is about quantized keys by channel.")
        self._leave_out_what_changes_nothing()

    def _leave_out_what_changes_nothing(self) -> None:
        """Put what has no effect on an option at its default, so that equal caches are equal options."""
        plain = {f.name: f.default for f in fields(self)}
        idle: set[str] = set()
        if self.shared:
            idle = set(plain) - {"shared"}
        elif not self.quantized:
            idle = (
                {"layout", "group"}
                if self.keep < 1 or self.cutoff
                else {"layout", "group", "residual", "sinks"}
            )
        elif self.layout != "channel":
            idle = {"group"}
        if self.cutoff:
            idle |= {"keep"}
        for name in idle:
            object.__setattr__(self, name, plain[name])

    @property
    def name(self) -> str:
        """Short unique name: ``k4v4-g32-r32-s4-keep0.5``, ``k8v8-block``, ``k16v16``, ``shared``."""
        if self.shared:
            return _SHARED
        parts = [f"k{self.k_bits}v{self.v_bits}"]
        by_channel = self.layout == "channel"
        parts += [f"g{self.group}"] if by_channel and self.quantized else []
        # Where everything stays a float and nothing is evicted, these change nothing; blocks and tokens
        # that are quantized have none unless it is said.
        if self.quantized or self.keep < 1 or self.cutoff:
            said = by_channel or not self.quantized or self.residual or self.sinks
            parts += [f"r{self.residual}", f"s{self.sinks}"] if said else []
        parts += [self.layout] if self.quantized and not by_channel else []
        if self.keep < 1 and not self.cutoff:
            parts.append(f"keep{float(self.keep)!r}")
        return "-".join(parts) + "-spread" * self.spread + "-cutoff" * self.cutoff

    @classmethod
    def from_name(cls, name: str) -> KvOption:
        """Read an option back from its name.

        Raises:
            InputError: the name is not one that :attr:`name` writes.
        """
        match = _NAME.fullmatch(name)
        if name == _SHARED:
            return cls(shared=True)
        if match is None:
            raise InputError(
                f"{name!r} is not a KV option (examples: k4v4-g32-r32-s4-keep0.5, k8v8-block, shared)."
            )
        found = match.groupdict()
        numbers = {key: int(found[key]) for key in ("group", "residual", "sinks") if found[key] is not None}
        layout = found["layout"] or "channel"
        usual = {} if layout == "channel" else {"residual": 0, "sinks": 0}
        given: dict[str, Any] = {**usual, **numbers, "layout": layout, "keep": float(found["keep"] or 1.0)}
        given |= {"spread": bool(found["spread"]), "cutoff": bool(found["cutoff"])}
        return cls(int(found["k"]), int(found["v"]), **given)

    @property
    def quantized(self) -> bool:
        """Whether some of it is stored as integers."""
        return min(self.k_bits, self.v_bits) < FLOAT_BITS

    @property
    def bits(self) -> float:
        """Nominal bits per cached value, over keys and values and the whole context; scales not counted."""
        if self.shared or self.cutoff:
            return 0.0
        return (self.k_bits + self.v_bits) / 2 * self.keep

    @property
    def family(self) -> str:
        """Options that are steps of one another: the same way to evict."""
        return f"{self.layout} keep {self.keep:g}"

    def distance(self, other: object) -> tuple[float, ...]:
        """How unlike another option is: in how it reads prompts at all, then bits, then tokens kept."""
        if not isinstance(other, KvOption):
            return (math.inf,)
        odd = (self.shared != other.shared) + (self.cutoff != other.cutoff)
        bits = abs(self.k_bits - other.k_bits) + abs(self.v_bits - other.v_bits)
        return (odd, bits, abs(self.keep - other.keep), self.spread != other.spread)

    def to_dict(self) -> dict[str, Any]:
        """Return every field, as a cache is built from."""
        return asdict(self)

    @property
    def step(self) -> int:
        """Tokens that are quantized together."""
        return self.group if self.layout == "channel" else 1

    def kept(self, tokens: int) -> int:
        """Tokens that are kept of so many; at least one.

        min(T, max(sinks + residual, ⌈keep · T⌉)), or the sinks alone after a prefill cutoff.
        """
        if self.shared:
            return 0
        if self.cutoff:
            return min(tokens, max(1, self.sinks))
        if self.keep == 1:
            return tokens
        # Rounded first: 0.1 · 30 is a little more than 3 in binary.
        return min(tokens, max(1, self.sinks + self.residual, math.ceil(round(self.keep * tokens, 6))))

    def quantized_tokens(self, kept: int) -> int:
        """How many of the kept tokens are quantized: ⌊(n − sinks − residual) / step⌋ · step."""
        return max(0, kept - self.sinks - self.residual) // self.step * self.step if self.quantized else 0

    def cache_bytes(self, layer: Attention, tokens: int) -> int:
        """Bytes that one sequence of a layer keeps once ``tokens`` tokens are in its cache.

        Raises:
            InputError: the layout does not fit the head width.
        """
        self.check(layer)
        visible = tokens if layer.window is None else min(tokens, layer.window)
        kept = self.kept(visible)
        coded = self.quantized_tokens(kept)
        size = 2 * FLOAT_BYTES * layer.kv_heads * layer.head_dim * (kept - coded)
        size += self.coded_bytes(layer, coded)
        if layer.window is not None and (self.keep < 1 or self.cutoff):
            size += _POSITION * layer.kv_heads * kept
        return size

    def coded_bytes(self, layer: Attention, tokens: int) -> int:
        """Bytes of so many tokens of one sequence between the sinks and the residual, in whole steps.

        Scales and minima are included, and where bits are spread, the widths of the rotary pairs, one byte
        each. Of keys or values with 16 bits these tokens are plain floats.
        """
        if not tokens:
            return 0
        heads, width = layer.kv_heads, layer.head_dim
        size = heads * self._code_bytes(tokens, width, self.k_bits, keys=True)
        size += heads * self._code_bytes(tokens, width, self.v_bits, keys=False)
        return size + (heads * width // 2 if self.spread else 0)

    def last_peak(self, tokens: int) -> int:
        """Most tokens, fewer than ``tokens``, right before another step is quantized; 0 if there are none.

        Bytes fall at such a step, so that a cache of fewer tokens may be the larger one.
        """
        kept = self.kept(tokens)
        if self.step == 1 or not self.quantized_tokens(kept):
            return 0
        before = kept - (kept - self.sinks - self.residual) % self.step - 1
        found = int(before / self.keep)
        # The quotient of two floats may be off by one.
        while self.kept(found + 1) <= before:
            found += 1
        while self.kept(found) > before:
            found -= 1
        return found

    def check(self, layer: Attention) -> None:
        """Refuse a head width that the layout cannot pack.

        Raises:
            InputError: naming the width and what would fit.
        """
        width = layer.head_dim
        if self.layout == "block" and self.quantized and width % BLOCK_CHANNELS:
            raise InputError(
                f"{self.name}: llama.cpp stores blocks of {BLOCK_CHANNELS} channels, which do not divide the "
                f"head width {width}; only k16v16 fits."
            )
        if self.layout == "token" and width * min(self.k_bits, self.v_bits) % 8:
            raise InputError(
                f"{self.name}: {width} channels of {min(self.k_bits, self.v_bits)} bits do not fill whole "
                "bytes; use 8 or 16 bits."
            )
        group = math.gcd(self.group, width)
        if self.layout == "channel" and self.v_bits < FLOAT_BITS and group * self.v_bits % 8:
            whole = [str(bits) for bits in KV_BITS["channel"] if group * bits % 8 == 0]
            raise InputError(
                f"{self.name}: values of a head of width {width} have groups of {group} channels, which do "
                f"not fill whole bytes; use {', '.join(whole[:-1])} or {whole[-1]} bits."
            )
        if self.spread and width % 2:
            raise InputError(f"{self.name}: bits are spread over pairs of channels, but a head has {width}.")

    def _code_bytes(self, tokens: int, width: int, bits: int, *, keys: bool) -> int:
        """Bytes of so many tokens of one head, scales included."""
        if bits == FLOAT_BITS:
            return tokens * width * FLOAT_BYTES
        if self.layout == "block":
            return tokens * (width // BLOCK_CHANNELS) * _BLOCK_BYTES[bits]
        if self.layout == "token":
            return tokens * (width * bits // 8 + _SCALE)
        if keys:
            return tokens // self.group * width * (self.group * bits // 8 + _SCALE_AND_MINIMUM)
        group = math.gcd(self.group, width)
        return tokens * (width // group) * (group * bits // 8 + _SCALE_AND_MINIMUM)
