"""Decisions: which matrices must take the same option, and which options they may take."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tightfit.spaces.errors import InputError
from tightfit.spaces.geometry import EMBED, Geometry, Linear
from tightfit.spaces.ggml import GGML_TYPES, GgmlOption
from tightfit.spaces.options import GROUPS, Option, WeightOption, Zero, read_option
from tightfit.spaces.targets import Target


@dataclass(frozen=True)
class Decision:
    """Sites that take one option together.

    Attributes:
        name: the site's own name, or ``layers.3.attn.qkv_proj`` for a fused group, or ``embed``
            for an embedding that is tied to the head.
        sites: the matrices it governs; a tied matrix is listed with the one that owns its bytes.
        options: allowed options, ascending in bytes.
        costs: stored bytes of each option, summed over the sites, bias excluded.
        weights: number of original weights it governs, tied ones once.
    """

    name: str
    sites: tuple[str, ...]
    options: tuple[Option, ...]
    costs: tuple[int, ...]
    weights: int

    def index(self, name: str) -> int:
        """Position of an option by its name.

        Raises:
            InputError: this decision does not offer that option.
        """
        for position, option in enumerate(self.options):
            if option.name == name:
                return position
        offered = ", ".join(option.name for option in self.options)
        raise InputError(f"{self.name} does not offer {name!r} (offered: {offered}).")


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


def build_decisions(geometry: Geometry, rules: WeightRules, target: Target) -> tuple[Decision, ...]:
    """Return the decisions of a model in depth order.

    Raises:
        InputError: a pattern matches nothing, a group divides no site, a pinned option does not
            fit its site or the target, sites that must agree have different rules, or a decision is
            left without options.
    """
    match_counts(rules, geometry)
    if target.types:
        _check_fallbacks(geometry, rules)
    else:
        _check_groups(geometry, rules)
        if rules.types is not None:
            raise InputError(f"space.weights.types: target {target.name} has no types of its own; give bits.")
    owners = {linear.site: linear for linear in geometry.linears if linear.tied_to is None}
    tied = {linear.tied_to: linear.site for linear in geometry.linears if linear.tied_to is not None}
    decisions = []
    for name, sites in _grouped(list(owners.values()), target):
        members = [owners[site] for site in sites]
        # A pattern that names either end of a tied pair speaks about the one tensor they share.
        tensors = [(site, tied[site]) if site in tied else (site,) for site in sites]
        aliases = tuple(tied[site] for site in sites if site in tied)
        offered = _offered(_Group(name, members, tensors), geometry, rules, target)
        costs = {option: sum(option.tensor_bytes(x.rows, x.cols) for x in members) for option in offered}
        options = tuple(sorted(offered, key=lambda option: (costs[option], option)))
        decisions.append(
            Decision(
                name=name,
                sites=sites + aliases,
                options=options,
                costs=tuple(costs[option] for option in options),
                weights=sum(x.weights for x in members),
            )
        )
    return tuple(decisions)


def _grouped(linears: Sequence[Linear], target: Target) -> list[tuple[str, tuple[str, ...]]]:
    """Group sites into named decisions, keeping depth order."""
    joint = {module: name for name, modules in target.fused for module in modules}
    groups: dict[str, list[str]] = {}
    for linear in linears:
        prefix, _, module = linear.site.rpartition(".")
        name = f"{prefix}.{joint[module]}" if module in joint else linear.site
        groups.setdefault(name, []).append(linear.site)
    return [(name, tuple(sites)) for name, sites in groups.items()]


def _check_groups(geometry: Geometry, rules: WeightRules) -> None:
    """Refuse a group size that divides the input width of no site at all."""
    for group in rules.groups:
        if group and all(linear.cols % group for linear in geometry.linears):
            first = {linear.cols: linear.site for linear in reversed(geometry.linears)}
            allowed = [g for g in GROUPS if g == 0 or any(width % g == 0 for width in first)]
            places = "; ".join(f"{width} in {first[width]}" for width in sorted(first))
            raise InputError(
                f"space.weights.groups: group {group} divides no input width of this model ({places}); "
                f"allowed here: {_listed(allowed)} (0 is one scale per output row)."
            )


@dataclass(frozen=True)
class _Group:
    """What becomes one decision: its name, its matrices, and the names that each of them goes by."""

    name: str
    members: Sequence[Linear]
    tensors: Sequence[tuple[str, ...]]


def _rule(key: str, rules: Mapping[str, Any], group: _Group) -> str | None:
    """Return the pattern that decides about a group, or None where no pattern matches it.

    Raises:
        InputError: its matrices have different rules.
    """
    found = [pattern for names in group.tensors for pattern in _matching(list(rules), names)]
    for pattern in found[1:]:
        if rules[pattern] != rules[found[0]]:
            sites = ", ".join(name for names in group.tensors for name in names)
            raise InputError(
                f"space.weights.{key}: {found[0]!r} and {pattern!r} say different things about {group.name}, "
                f"whose sites must agree ({sites}): give both the same value, or leave one of them out."
            )
    return found[0] if found else None


def _matching(patterns: Sequence[str], names: tuple[str, ...]) -> list[str]:
    """Return the pattern that decides about a matrix: the last one that matches any of its names.

    A second one is returned with it if it matches only such names as the first one does not, so that
    neither takes precedence.
    """
    last = _last_match(patterns, names)
    if last is None:
        return []
    met = tuple(name for name in names if fnmatch.fnmatchcase(name, last))
    other = _last_match(patterns, tuple(name for name in names if name not in met))
    return [last] if other is None or _last_match([other], met) else [last, other]


def _last_match(patterns: Sequence[str], names: tuple[str, ...]) -> str | None:
    hits = [pattern for pattern in patterns if any(fnmatch.fnmatchcase(name, pattern) for name in names)]
    return hits[-1] if hits else None


def _offered(group: _Group, geometry: Geometry, rules: WeightRules, target: Target) -> list[Option]:
    members = group.members
    if any(_last_match(rules.exclude, names) for names in group.tensors):
        return [target.unchanged(geometry.dtype)]
    pinned = _rule("pin", rules.pin, group)
    if pinned:
        return [_pinned_option(pinned, rules.pin[pinned], members, target)]
    narrowed = _rule("only", {pattern: set(bits) for pattern, bits in rules.only.items()}, group)
    if target.types:
        return _offered_types(group, geometry, rules, rules.only[narrowed] if narrowed else None)
    bits = rules.only[narrowed] if narrowed else rules.bits
    offered: list[Option] = [
        option
        for option in expand(bits, rules.groups, rules.zeros)
        if target.allows(option) and all(option.divides(linear.cols) for linear in members)
    ]
    if not offered:
        widths = ", ".join(f"{linear.site} (width {linear.cols})" for linear in members)
        raise InputError(
            f"space.weights: no option is left for {widths}: of bits {_listed(bits)}, groups "
            f"{_listed(rules.groups)} and zeros {_listed(rules.zeros)} none fits "
            f"({target.storable()}; "
            f"groups that divide: {_dividing(members)})."
        )
    return offered


def _offered_types(
    group: _Group, geometry: Geometry, rules: WeightRules, bits: Sequence[int] | None
) -> list[Option]:
    """Return the types of llama.cpp that a group may take, each as what is really stored."""
    offered: dict[Option, None] = {}
    for option in rules.offered_types(bits):
        for linear in group.members:
            option = option.fitting(linear.cols)
        if not (option.needs_importance and _lacks_importance(group, geometry)):
            offered[option] = None
    if not offered:
        asked = (
            rules.types if bits is None and rules.types is not None else f"bits {_listed(bits or rules.bits)}"
        )
        raise InputError(
            f"space.weights: no type of llama.cpp is left for {group.name} of {asked} "
            f"(types: {_listed(list(GGML_TYPES))})."
        )
    return list(offered)


def _lacks_importance(group: _Group, geometry: Geometry) -> bool:
    """Whether calibration sees no input of a group: an untied embedding only looks rows up."""
    return any(linear.site == EMBED for linear in group.members) and not geometry.tied


def fallbacks(geometry: Geometry, rules: WeightRules) -> dict[tuple[str, int], tuple[str, list[str]]]:
    """Return which types do not divide which widths: (type, width) → type stored instead, sites."""
    found: dict[tuple[str, int], tuple[str, list[str]]] = {}
    for linear in geometry.linears:
        names = (linear.site, *(x.site for x in geometry.linears if x.tied_to == linear.site))
        ruled = [_last_match(list(patterns), names) for patterns in (rules.exclude, rules.pin)]
        if linear.tied_to is not None or any(ruled):
            continue
        narrowed = _last_match(list(rules.only), names)
        for option in rules.offered_types(rules.only[narrowed] if narrowed else None):
            stored = option.fitting(linear.cols)
            if stored != option:
                found.setdefault((option.type, linear.cols), (stored.type, []))[1].append(linear.site)
    return found


def _check_fallbacks(geometry: Geometry, rules: WeightRules) -> None:
    """Refuse, where rules are strict, types whose blocks do not divide a width."""
    found = fallbacks(geometry, rules) if rules.strict else {}
    for (name, width), (stored, sites) in found.items():
        dividing = [t for t in GGML_TYPES if GgmlOption(t).divides(width)]
        raise InputError(
            f"space.weights.strict: {name} stores blocks of {GgmlOption(name).block} weights, which do not "
            f"divide the width {width} of {len(sites)} sites, such as {sites[0]}; llama-quantize would store "
            f"{stored} there. Types that divide it: {_listed(dividing)}."
        )


def _pinned_option(pattern: str, name: str, members: Sequence[Linear], target: Target) -> Option:
    """Read the option of a pin and check that every member can take it."""
    place = f"space.weights.pin {pattern!r}"
    try:
        option = read_option(name)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error
    if not target.allows(option):
        raise InputError(f"{place}: target {target.name} cannot store {option.name} ({target.storable()}).")
    for linear in members:
        if isinstance(option, GgmlOption) and not option.divides(linear.cols):
            raise InputError(
                f"{place}: {option.type} stores blocks of {option.block} weights, which do not divide the "
                f"{linear.cols} input weights of {linear.site} (llama-quantize would store "
                f"{option.fitting(linear.cols).type} there)."
            )
        if isinstance(option, WeightOption) and not option.divides(linear.cols):
            raise InputError(
                f"{place}: group {option.group} does not divide the {linear.cols} input weights of "
                f"{linear.site} (allowed groups: {_dividing([linear])})."
            )
    return option


def _dividing(members: Sequence[Linear]) -> str:
    """List the group sizes that every one of these sites could take."""
    return _listed([g for g in GROUPS if all(g == 0 or linear.cols % g == 0 for linear in members)])


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def expand(bits: Sequence[int], groups: Sequence[int], zeros: Sequence[Zero]) -> list[WeightOption]:
    """Return every option that these lists combine to, each once."""
    options: dict[WeightOption, None] = {}
    for width in bits:
        if width > 8:
            options[WeightOption(width)] = None
            continue
        for group in groups:
            for zero in zeros:
                options[WeightOption(width, group, zero)] = None
    return list(options)
