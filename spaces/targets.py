"""Targets: what the tool that will carry a plan out can express."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.spaces.errors import InputError, suggest
from tightfit.spaces.geometry import DTYPE_BYTES
from tightfit.spaces.ggml import BASE_TYPES, GGML_TYPES, GgmlOption
from tightfit.spaces.options import BITS, GROUPS, ZEROS, Option, WeightOption, Zero


@dataclass(frozen=True)
class Target:
    """What a downstream tool allows.

    Attributes:
        name: how users name it in ``search.yaml``.
        fused: modules of one block that the tool runs as a single kernel, and that must therefore
            take the same option, with the name of the joint decision.
        bits, groups, zeros: the weight formats that the tool can store.
        types: tensor types of ggml, for a tool that stores these and no other formats.
        fixed_dtype: dtype in which the tool keeps norms and biases; the model's base dtype if None.
    """

    name: str
    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    bits: tuple[int, ...] = BITS
    groups: tuple[int, ...] = GROUPS
    zeros: tuple[Zero, ...] = ZEROS
    types: tuple[str, ...] = ()
    fixed_dtype: str | None = None

    def allows(self, option: Option) -> bool:
        """Whether the tool can store this option."""
        if isinstance(option, GgmlOption):
            return option.type in self.types
        if self.types:
            return False
        return option.bits in self.bits and (
            not option.quantized or (option.group in self.groups and option.zero in self.zeros)
        )

    def unchanged(self, dtype: str) -> Option:
        """Return how the tool keeps a matrix that stays at the base dtype of the model."""
        return GgmlOption(BASE_TYPES[dtype]) if self.types else WeightOption(8 * DTYPE_BYTES[dtype])

    def storable(self) -> str:
        """Say in words which formats the tool stores."""
        if self.types:
            return f"target {self.name} stores the types {', '.join(self.types)}"
        bits, zeros = ", ".join(map(str, self.bits)), ", ".join(self.zeros)
        return f"target {self.name} stores bits {bits} and zeros {zeros}"


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("any"),
        Target(
            "vllm",
            fused=(("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))),
            bits=(2, 3, 4, 8, 16, 32),
            zeros=("none", "integer"),
        ),
        Target("llama.cpp", types=tuple(GGML_TYPES), fixed_dtype="float32"),
    )
}
"""The known targets. ``any`` is Tightfit's own packing, where every matrix decides for itself."""


def get_target(name: str) -> Target:
    """Return a target by its name.

    Raises:
        InputError: there is no such target.
    """
    if name not in TARGETS:
        raise InputError(
            f"no target is called {name!r} (targets: {', '.join(TARGETS)}).{suggest(name, TARGETS)}"
        )
    return TARGETS[name]
