"""Targets: what the tool that will carry a plan out can express."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.spaces.errors import InputError, suggest
from tightfit.spaces.geometry import DTYPE_BYTES
from tightfit.spaces.ggml import BASE_TYPES, GGML_TYPES, GgmlOption
from tightfit.spaces.kv import KV_BITS, KvLayout, KvOption
from tightfit.spaces.options import BITS, GROUPS, ZEROS, Option, WeightOption, Zero


@dataclass(frozen=True)
class KvRange:
    """What a downstream tool can do with the KV cache.

    Attributes:
        layout: how it stores quantized keys and values.
        evicts: whether it can drop tokens, share caches between layers and spread bits over channels.
        joint: whether all layers take the same option.
        widths: most quantized options among the layers; the others stay 16-bit floats.
        usual: widths that are offered where none are named.
        shares_prefixes: whether it stores tokens once that sequences of a batch have in common.
    """

    layout: KvLayout = "channel"
    evicts: bool = True
    joint: bool = False
    widths: int | None = None
    usual: tuple[int, ...] = (2, 4, 8, 16)
    shares_prefixes: bool = False

    @property
    def bits(self) -> tuple[int, ...]:
        """Widths that the layout has."""
        return KV_BITS[self.layout]

    def allows(self, option: KvOption) -> bool:
        """Whether the tool can store a cache like this."""
        if not self.evicts and (option.keep < 1 or option.shared or option.cutoff or option.spread):
            return False
        return not option.quantized or option.layout == self.layout

    def storable(self, target: str) -> str:
        """Say in words which caches the tool stores."""
        rest = "" if self.evicts else ", and keep, shared, cutoff and spread not at all"
        same = ", the same in all layers" if self.joint else ""
        return f"target {target} stores KV caches of {', '.join(map(str, self.bits))} bits{same}{rest}"


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
        kv: what it can do with the KV cache.
        chunk: tokens of a prompt that it runs at once; 1 where only generating counts.
        fused_kernels: whether it multiplies stored numbers without writing them out in full first.
    """

    name: str
    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    bits: tuple[int, ...] = BITS
    groups: tuple[int, ...] = GROUPS
    zeros: tuple[Zero, ...] = ZEROS
    types: tuple[str, ...] = ()
    fixed_dtype: str | None = None
    kv: KvRange = KvRange()
    chunk: int = 1
    fused_kernels: bool = False

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
            kv=KvRange("token", evicts=False, widths=1, usual=(8, 16), shares_prefixes=True),
            chunk=2048,
            fused_kernels=True,
        ),
        Target(
            "llama.cpp",
            types=tuple(GGML_TYPES),
            fixed_dtype="float32",
            kv=KvRange("block", evicts=False, joint=True, usual=(4, 5, 8, 16)),
            chunk=512,
            fused_kernels=True,
        ),
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
