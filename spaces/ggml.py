"""The tensor types of ggml, the library inside llama.cpp: exact block bytes, and what a type needs.

A type stores the weights of a row in blocks. A block never crosses rows, so a type fits a matrix
where its block divides the input width. Block layouts: ``ggml-common.h`` of llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tightfit.spaces.errors import InputError, suggest

if TYPE_CHECKING:
    from tightfit.spaces.options import Option


@dataclass(frozen=True)
class GgmlType:
    """What one type stores.

    Attributes:
        bits: nominal bits per weight, scales not counted.
        block: consecutive weights of a row that are stored together.
        block_bytes: bytes of one block, scales included.
        fallback: the type that ``llama-quantize`` takes where the block does not divide the width.
        needs_importance: ``llama-quantize`` refuses the type without an importance matrix.
    """

    bits: int
    block: int
    block_bytes: int
    fallback: str | None = None
    needs_importance: bool = False


GGML_TYPES: dict[str, GgmlType] = {
    "IQ2_XXS": GgmlType(2, 256, 66, "IQ4_NL", needs_importance=True),
    "IQ2_XS": GgmlType(2, 256, 74, "IQ4_NL", needs_importance=True),
    "IQ2_S": GgmlType(2, 256, 82, "IQ4_NL", needs_importance=True),
    "Q2_K": GgmlType(2, 256, 84, "Q4_0"),
    "IQ3_XXS": GgmlType(3, 256, 98, "IQ4_NL", needs_importance=True),
    "IQ3_S": GgmlType(3, 256, 110, "IQ4_NL"),
    "Q3_K": GgmlType(3, 256, 110, "Q4_0"),
    "IQ4_XS": GgmlType(4, 256, 136, "IQ4_NL"),
    "IQ4_NL": GgmlType(4, 32, 18, "F16"),
    "Q4_0": GgmlType(4, 32, 18, "F16"),
    "Q4_K": GgmlType(4, 256, 144, "Q5_0"),
    "Q4_1": GgmlType(4, 32, 20, "F16"),
    "Q5_0": GgmlType(5, 32, 22, "F16"),
    "Q5_K": GgmlType(5, 256, 176, "Q5_1"),
    "Q5_1": GgmlType(5, 32, 24, "F16"),
    "Q6_K": GgmlType(6, 256, 210, "Q8_0"),
    "Q8_0": GgmlType(8, 32, 34, "F16"),
    "F16": GgmlType(16, 1, 2),
    "BF16": GgmlType(16, 1, 2),
    "F32": GgmlType(32, 1, 4),
}
"""The types on offer, ascending in bytes per weight."""

FLOAT_TYPES = ("F16", "BF16", "F32")
BASE_TYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
"""Type of a matrix that stays as it is, by the model's base dtype."""


@dataclass(frozen=True, order=True)
class GgmlOption:
    """One way to store the weights of a linear layer: a type of ggml.

    Args:
        type: a key of :data:`GGML_TYPES`, such as ``Q4_K``.
    """

    type: str

    def __post_init__(self) -> None:
        if self.type not in GGML_TYPES:
            raise InputError(
                f"no type of llama.cpp is called {self.type!r} (types: {', '.join(GGML_TYPES)})."
                f"{suggest(self.type, GGML_TYPES)}"
            )

    @property
    def name(self) -> str:
        """The type's own name."""
        return self.type

    @property
    def spec(self) -> GgmlType:
        """Block layout and needs of the type."""
        return GGML_TYPES[self.type]

    @property
    def block(self) -> int:
        """Consecutive weights of a row that are stored together."""
        return self.spec.block

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, scales included."""
        return self.spec.block_bytes

    @property
    def bits(self) -> int:
        """Nominal bits per weight, scales not counted."""
        return self.spec.bits

    @property
    def quantized(self) -> bool:
        """Whether weights are codes with scales, rather than plain floats."""
        return self.type not in FLOAT_TYPES

    @property
    def needs_importance(self) -> bool:
        """Whether llama.cpp's quantizer refuses the type without an importance matrix."""
        return self.spec.needs_importance

    @property
    def family(self) -> str:
        """Types that a hand-made mix takes from: K-quants, codebooks (``IQ``), or the plain ones."""
        return "K" if self.type.endswith("_K") else "IQ" if self.type.startswith("IQ") else "plain"

    def distance(self, other: Option) -> tuple[float, ...]:
        """How unlike another format is, the most important difference first."""
        if not isinstance(other, GgmlOption):
            return (abs(self.bits - other.bits), 1)
        mine, its = (8 * x.block_bytes / x.block for x in (self, other))
        return (abs(mine - its), self.family != other.family)

    def divides(self, cols: int) -> bool:
        """Whether rows of ``cols`` input weights split into whole blocks."""
        return cols % self.block == 0

    def tensor_bytes(self, rows: int, cols: int) -> int:
        """Bytes of a stored rows × cols matrix, bias excluded.

        Raises:
            InputError: the block does not divide the width.
        """
        if not self.divides(cols):
            raise InputError(
                f"{self.type} stores blocks of {self.block} weights, which do not divide {cols}."
            )
        return rows * (cols // self.block) * self.block_bytes

    def fitting(self, cols: int) -> GgmlOption:
        """Return the type itself where it divides the width, otherwise what llama-quantize takes instead."""
        option = self
        while not option.divides(cols):
            option = GgmlOption(option.spec.fallback or "F16")
        return option
