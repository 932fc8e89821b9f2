"""Options: the ways to store one linear layer, with their exact bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tightfit.spaces.errors import InputError
from tightfit.spaces.ggml import GGML_TYPES, GgmlOption

Zero = Literal["none", "integer", "float"]

BITS = (2, 3, 4, 5, 6, 8, 16, 32)
QUANTIZED_BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128, 0)
ZEROS: tuple[Zero, ...] = ("none", "integer", "float")
SCALE_BITS = 16

_ZERO_WORD: dict[Zero, str] = {"none": "sym", "integer": "int", "float": "float"}
_WORD_ZERO: dict[str, Zero] = {word: zero for zero, word in _ZERO_WORD.items()}
_NAME = re.compile(r"([2-8])b-(?:g([1-9][0-9]*)|row)-(sym|int|float)")


def ceil_div(a: int, b: int) -> int:
    """Return ⌈a / b⌉ for integers."""
    return -(-a // b)


@dataclass(frozen=True, order=True)
class WeightOption:
    """One way to store the weights of a linear layer.

    Args:
        bits: bits per weight; 16 and 32 mean a plain float array without groups.
        group: consecutive input weights that share one scale; 0 means one scale per output row.
        zero: how a group is shifted. ``none`` is symmetric, ``integer`` keeps a zero point of
            ``bits`` bits, ``float`` keeps the group's minimum as a 16-bit float.
    """

    bits: int
    group: int = 0
    zero: Zero = "none"

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise InputError(f"{self.bits} bits are not offered (allowed: {', '.join(map(str, BITS))}).")
        if self.zero not in ZEROS:
            raise InputError(f"{self.zero!r} is not a kind of zero point (allowed: {', '.join(ZEROS)}).")
        if self.group < 0:
            raise InputError(f"group {self.group} must be positive, or 0 for one scale per output row.")
        if not self.quantized and (self.group or self.zero != "none"):
            raise InputError(f"{self.bits}-bit floats have no groups and no zero points.")

    @property
    def quantized(self) -> bool:
        """Whether weights are integers with scales, rather than plain floats."""
        return self.bits <= 8

    @property
    def name(self) -> str:
        """Short unique name: ``4b-g64-float``, ``3b-row-sym``, ``16b``."""
        if not self.quantized:
            return f"{self.bits}b"
        group = f"g{self.group}" if self.group else "row"
        return f"{self.bits}b-{group}-{_ZERO_WORD[self.zero]}"

    @classmethod
    def from_name(cls, name: str) -> WeightOption:
        """Read an option back from its name.

        Raises:
            InputError: the name is not one that :attr:`name` writes.
        """
        if name in ("16b", "32b"):
            return cls(int(name[:-1]))
        match = _NAME.fullmatch(name)
        if match is None:
            raise InputError(f"{name!r} is not an option name (examples: 4b-g64-float, 3b-row-sym, 16b).")
        bits, group, word = match.groups()
        return cls(int(bits), int(group or 0), _WORD_ZERO[word])

    @property
    def family(self) -> tuple[int, str]:
        """Formats that a hand-made mix takes from: the same group and kind of zero point."""
        return self.group, self.zero

    def distance(self, other: Option) -> tuple[float, ...]:
        """How unlike another format is: in bits, then kind of zero point, then group."""
        if not isinstance(other, WeightOption):
            return (abs(self.bits - other.bits), 1)
        return (abs(self.bits - other.bits), self.zero != other.zero, abs(self.group - other.group))

    def divides(self, cols: int) -> bool:
        """Whether rows of ``cols`` input weights split into whole groups."""
        return self.group == 0 or cols % self.group == 0

    def code_bytes(self, rows: int, cols: int) -> int:
        """Bytes of the packed weight codes (or floats) of a rows × cols matrix."""
        return ceil_div(rows * cols * self.bits, 8)

    def scale_bytes(self, rows: int, cols: int) -> int:
        """Bytes of the 16-bit group scales."""
        return self._groups(rows, cols) * SCALE_BITS // 8 if self.quantized else 0

    def zero_bytes(self, rows: int, cols: int) -> int:
        """Bytes of the zero points: ``bits`` each as packed integers, 16 bits each as floats."""
        if self.zero == "integer":
            return ceil_div(self._groups(rows, cols) * self.bits, 8)
        return self._groups(rows, cols) * SCALE_BITS // 8 if self.zero == "float" else 0

    def tensor_bytes(self, rows: int, cols: int) -> int:
        """Bytes of a stored rows × cols matrix, scales and zero points included, bias excluded."""
        return self.code_bytes(rows, cols) + self.scale_bytes(rows, cols) + self.zero_bytes(rows, cols)

    def _groups(self, rows: int, cols: int) -> int:
        if not self.divides(cols):
            raise InputError(f"{self.name}: group {self.group} does not divide {cols} input weights.")
        return rows * (cols // self.group if self.group else 1)


Option = WeightOption | GgmlOption
"""One way to store a matrix: in Tightfit's own packing, or as a tensor type of llama.cpp."""


def read_option(name: str) -> Option:
    """Read an option back from its name.

    Raises:
        InputError: no option is called so.
    """
    return GgmlOption(name) if name in GGML_TYPES else WeightOption.from_name(name)
