"""Targets: what the tool that will carry a plan out can express."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.spaces.errors import InputError, suggest
from tightfit.spaces.options import BITS, GROUPS, ZEROS, WeightOption, Zero


@dataclass(frozen=True)
class Target:
    """What a downstream tool allows.

    Attributes:
        name: how users name it in ``search.yaml``.
        fused: modules of one block that the tool runs as a single kernel, and that must therefore
            take the same option, with the name of the joint decision.
        bits, groups, zeros: the weight formats that the tool can store.
    """

    name: str
    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    bits: tuple[int, ...] = BITS
    groups: tuple[int, ...] = GROUPS
    zeros: tuple[Zero, ...] = ZEROS

    def allows(self, option: WeightOption) -> bool:
        """Whether the tool can store this option."""
        return option.bits in self.bits and (
            not option.quantized or (option.group in self.groups and option.zero in self.zeros)
        )


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
