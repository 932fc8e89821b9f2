"""Types of llama.cpp where their blocks do not divide a width: what is stored, or refused, instead."""

from __future__ import annotations

from tightfit.spaces.errors import InputError
from tightfit.spaces.geometry import Geometry
from tightfit.spaces.ggml import GGML_TYPES, GgmlOption
from tightfit.spaces.rules import WeightRules, last_match


def fallbacks(geometry: Geometry, rules: WeightRules) -> dict[tuple[str, int], tuple[str, list[str]]]:
    """Return which types do not divide which widths: (type, width) → type stored instead, sites."""
    found: dict[tuple[str, int], tuple[str, list[str]]] = {}
    for linear in geometry.linears:
        names = (linear.site, *(x.site for x in geometry.linears if x.tied_to == linear.site))
        ruled = [last_match(list(patterns), names) for patterns in (rules.exclude, rules.pin)]
        if linear.tied_to is not None or any(ruled):
            continue
        narrowed = last_match(list(rules.only), names)
        for option in rules.offered_types(rules.only[narrowed] if narrowed else None):
            stored = option.fitting(linear.cols)
            if stored != option:
                found.setdefault((option.type, linear.cols), (stored.type, []))[1].append(linear.site)
    return found


def check_fallbacks(geometry: Geometry, rules: WeightRules) -> None:
    """Refuse, where rules are strict, types whose blocks do not divide a width.

    Raises:
        InputError: there is such a type.
    """
    found = fallbacks(geometry, rules) if rules.strict else {}
    for (name, width), (stored, sites) in found.items():
        dividing = [t for t in GGML_TYPES if GgmlOption(t).divides(width)]
        raise InputError(
            f"space.weights.strict: {name} stores blocks of {GgmlOption(name).block} weights, which do not "
            f"divide the width {width} of {len(sites)} sites, such as {sites[0]}; llama-quantize would store "
            f"{stored} there. Types that divide it: {', '.join(dividing)}."
        )
