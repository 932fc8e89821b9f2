"""Rules: which formats a user wants on offer, and which pattern speaks about which site."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tightfit.spaces.errors import InputError
from tightfit.spaces.geometry import Geometry
from tightfit.spaces.ggml import GgmlOption
from tightfit.spaces.options import Zero

USUAL_TYPES = ("Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16", "F32")
"""Types of llama.cpp that are offered where none are named, narrowed by ``bits``."""


@dataclass(frozen=True)
class WeightRules:
    """Which weight options a space offers, before a target and the widths of the model narrow them.

    Attributes:
        bits, groups, zeros: every combination is an option; 16 and 32 bits have neither group nor zero.
        only: per pattern, the bits that matching sites may take instead of ``bits``.
        pin: per pattern, the one option that matching sites take.
        exclude: patterns of sites that stay at the base dtype.
        types: types of a target that has its own (llama.cpp); None for its usual ones with such ``bits``.
            ``only`` then narrows them by their nominal bits; ``groups`` and ``zeros`` say nothing there.
        strict: refuse a type whose blocks do not divide a width, instead of offering the one that
            ``llama-quantize`` falls back to.

    Patterns are shell globs over site names (``layers.*.mlp.down_proj``). Where several match,
    ``exclude`` wins over ``pin`` and ``pin`` over ``only``; within one of them the last wins. A rule for
    one site of a decision is a rule for all of them, so rules that differ between its sites are refused.
    """

    bits: tuple[int, ...] = (3, 4, 5, 6)
    groups: tuple[int, ...] = (64,)
    zeros: tuple[Zero, ...] = ("integer",)
    only: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pin: Mapping[str, str] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    types: tuple[str, ...] | None = None
    strict: bool = False

    def offered_types(self, bits: Sequence[int] | None = None) -> tuple[GgmlOption, ...]:
        """Return the types of llama.cpp on offer, of these nominal bits only where some are given."""
        named = self.types if self.types is not None else USUAL_TYPES
        widths = bits if bits is not None else None if self.types is not None else self.bits
        options = tuple(GgmlOption(name) for name in named)
        return tuple(o for o in options if widths is None or o.bits in widths)

    def patterns(self) -> list[tuple[str, str]]:
        """Return every (key, pattern) that a user wrote."""
        pairs = [("only", pattern) for pattern in self.only] + [("pin", pattern) for pattern in self.pin]
        return pairs + [("exclude", pattern) for pattern in self.exclude]


def match_counts(rules: WeightRules, geometry: Geometry) -> dict[tuple[str, str], int]:
    """Count the sites that each pattern of the rules matches.

    Raises:
        InputError: a pattern matches no site, so that it would be ignored silently.
    """
    sites = [linear.site for linear in geometry.linears]
    counts = {
        (key, pattern): sum(fnmatch.fnmatchcase(site, pattern) for site in sites)
        for key, pattern in rules.patterns()
    }
    for (key, pattern), count in counts.items():
        if not count:
            raise InputError(
                f"space.weights.{key}: the pattern {pattern!r} matches none of the {len(sites)} sites "
                f"(site names look like {sites[0]}, {sites[1]}, {sites[-1]})."
            )
    return counts


def matching(patterns: Sequence[str], names: tuple[str, ...]) -> list[str]:
    """Return the pattern that decides about a matrix: the last one that matches any of its names.

    A second one is returned with it if it matches only such names as the first one does not, so that
    neither takes precedence.
    """
    last = last_match(patterns, names)
    if last is None:
        return []
    met = tuple(name for name in names if fnmatch.fnmatchcase(name, last))
    other = last_match(patterns, tuple(name for name in names if name not in met))
    return [last] if other is None or last_match([other], met) else [last, other]


def last_match(patterns: Sequence[str], names: tuple[str, ...]) -> str | None:
    """Return the last pattern that matches any of the names that a matrix goes by."""
    hits = [pattern for pattern in patterns if any(fnmatch.fnmatchcase(name, pattern) for name in names)]
    return hits[-1] if hits else None
