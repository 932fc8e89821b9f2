"""Saying no to a plan that llama.cpp cannot store, with what the nearest one would cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tightfit.spaces import (
    GGML_TYPES,
    Geometry,
    GgmlOption,
    InputError,
    Linear,
    Option,
    WeightOption,
    format_size,
)


def ggml_options(geometry: Geometry, options: Mapping[str, Option]) -> dict[str, GgmlOption]:
    """Return the options of a plan as types of ggml.

    Args:
        geometry: the model's shape.
        options: site → option, for every site that owns its bytes.

    Raises:
        InputError: some option is not one of llama.cpp's, or its blocks do not divide a width.
    """
    foreign = {site: option for site, option in options.items() if isinstance(option, WeightOption)}
    if foreign:
        raise InputError(_refusal(geometry, foreign))
    types = {site: option for site, option in options.items() if isinstance(option, GgmlOption)}
    for site, option in types.items():
        linear = geometry.linear(site)
        if not option.divides(linear.cols):
            raise InputError(
                f"{site}: {option.type} stores blocks of {option.block} weights, which do not divide its "
                f"width of {linear.cols}."
            )
    return types


def nearest_type(option: WeightOption, linear: Linear) -> GgmlOption:
    """Return the type of a matrix whose bits, and then bytes, come nearest to an option's."""
    wanted = option.tensor_bytes(linear.rows, linear.cols)
    fitting = [x for x in map(GgmlOption, GGML_TYPES) if x.divides(linear.cols)]
    return min(
        fitting,
        key=lambda x: (
            abs(x.bits - option.bits),
            abs(x.tensor_bytes(linear.rows, linear.cols) - wanted),
            x.family == "IQ",  # the slower one of two that are as long
        ),
    )


def _refusal(geometry: Geometry, foreign: Mapping[str, WeightOption]) -> str:
    counts: Counter[tuple[str, str]] = Counter()
    extra = 0
    for site, option in foreign.items():
        linear = geometry.linear(site)
        near = nearest_type(option, linear)
        counts[option.name, near.type] += 1
        extra += near.tensor_bytes(linear.rows, linear.cols) - option.tensor_bytes(linear.rows, linear.cols)
    parts = [f"{count} × {name} (nearest: {near})" for (name, near), count in counts.most_common()]
    return (
        f"llama.cpp cannot store {len(foreign)} matrices of this plan: {', '.join(parts)}; the nearest types "
        f"would take {format_size(abs(extra))} {'more' if extra >= 0 else 'less'} in all. Search with "
        "target: llama.cpp."
    )
