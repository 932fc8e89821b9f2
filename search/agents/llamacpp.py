"""The mixes that ``llama-quantize`` makes by itself: what people get who name a mix and no plan.

The rules are those of ``llama_tensor_get_type_impl`` in llama.cpp's ``llama-quant.cpp``, for dense models:
which kinds of matrices, in which layers, get a wider type than the mix's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tightfit.spaces import EMBED, HEAD, Geometry, GgmlOption, KvOption, Linear, Space

_KINDS = {
    "v_proj": "value",
    "o_proj": "output",
    "attn.c_proj": "output",
    "down_proj": "down",
    "mlp.c_proj": "down",
    "c_attn": "value",  # a fused projection is treated as the value in it
}


@dataclass(frozen=True)
class Recipe:
    """One mix.

    Attributes:
        base: type of every matrix that no rule speaks about.
        value, down: (layer, layers) → type of the value and down projections.
        output: type of attention's output projections.
    """

    base: str
    value: Callable[[int, int], str]
    down: Callable[[int, int], str]
    output: str

    def type_of(self, linear: Linear, geometry: Geometry) -> GgmlOption:
        """Return what the mix stores a matrix as, fallbacks for its width included."""
        if linear.site == HEAD or (linear.site == EMBED and geometry.tied):
            wide = GgmlOption("Q6_K")
            return wide if wide.divides(linear.cols) else GgmlOption("Q8_0").fitting(linear.cols)
        layer, kind = linear.layer or 0, _KINDS.get(linear.module)
        named = {
            "value": self.value(layer, geometry.layers),
            "down": self.down(layer, geometry.layers),
            "output": self.output,
        }.get(kind or "", self.base)
        return GgmlOption(named).fitting(linear.cols)


def _more_bits(layer: int, layers: int) -> bool:
    """Whether a layer is among the first or last eighth, or every third one between them."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _raised(base: str) -> Callable[[int, int], str]:
    return lambda layer, layers: "Q6_K" if _more_bits(layer, layers) else base


RECIPES: dict[str, Recipe] = {
    "Q3_K_M": Recipe(
        "Q3_K",
        value=lambda layer, layers: "Q5_K" if layer < 2 else "Q4_K",
        down=lambda layer, layers: "Q5_K" if layer < layers // 16 else "Q4_K",
        output="Q4_K",
    ),
    "Q4_K_M": Recipe("Q4_K", _raised("Q4_K"), _raised("Q4_K"), output="Q4_K"),
    "Q5_K_M": Recipe("Q5_K", _raised("Q5_K"), _raised("Q5_K"), output="Q5_K"),
}
"""Mixes by the name that ``llama-quantize`` knows them by."""


def recipe_levels(space: Space, recipe: Recipe, cache: KvOption | None = None) -> tuple[int, ...] | None:
    """Return the levels of a mix, or None where a decision does not offer the type that it needs.

    It says nothing about KV caches: all have the given option, or are as large as they may be.
    """
    levels = []
    for decision in space.matrix_decisions:
        option = recipe.type_of(space.geometry.linear(decision.sites[0]), space.geometry)
        if option not in decision.options:
            return None
        levels.append(decision.options.index(option))
    return (*levels, *space.uniform_levels(option, cache)[len(levels) :])
