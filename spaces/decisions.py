"""Decisions: which matrices must take the same option, and which options they may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tightfit.spaces.errors import InputError
from tightfit.spaces.fallbacks import check_fallbacks
from tightfit.spaces.geometry import EMBED, Geometry, Linear
from tightfit.spaces.ggml import GGML_TYPES, GgmlOption
from tightfit.spaces.kv import KvOption
from tightfit.spaces.options import GROUPS, Option, WeightOption, Zero, read_option
from tightfit.spaces.rules import WeightRules, last_match, match_counts, matching
from tightfit.spaces.targets import Target

Choice = Option | KvOption
"""What a decision may offer: ways to store matrices, or ways to store caches."""


@dataclass(frozen=True)
class Decision:
    """Sites that take one option together.

    Attributes:
        name: the site's own name, or ``layers.3.attn.qkv_proj`` for a fused group, or ``embed``
            for an embedding that is tied to the head; ``layers.3.kv`` for the KV cache of a layer.
        sites: the matrices it governs; a tied matrix is listed with the one that owns its bytes.
        options: allowed options, ascending in bytes.
        costs: stored bytes of each option, summed over the sites, bias excluded; of a KV cache at the
            context and batch of its space.
        weights: number of original weights it governs, tied ones once; none for a KV cache.
    """

    name: str
    sites: tuple[str, ...]
    options: tuple[Choice, ...]
    costs: tuple[int, ...]
    weights: int

    @property
    def is_kv(self) -> bool:
        """Whether it is about KV caches rather than matrices."""
        return isinstance(self.options[0], KvOption)

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """Layers whose KV caches it is about; none where it is about matrices."""
        return tuple(int(site.split(".")[1]) for site in self.sites) if self.is_kv else ()

    @property
    def matrix_options(self) -> tuple[Option, ...]:
        """Its options as ways to store matrices; none where it is about KV caches."""
        return tuple(option for option in self.options if not isinstance(option, KvOption))

    @property
    def kv_options(self) -> tuple[KvOption, ...]:
        """Its options as ways to store KV caches; none where it is about matrices."""
        return tuple(option for option in self.options if isinstance(option, KvOption))

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

    def nearest(self, wanted: Choice) -> int:
        """Position of an option or, where it is not offered, of the one least unlike it."""
        if wanted in self.options:
            return self.options.index(wanted)
        distances = [(option.distance(wanted), level) for level, option in enumerate(self.options)]  # type: ignore[arg-type]
        return min(distances)[1]


def build_decisions(geometry: Geometry, rules: WeightRules, target: Target) -> tuple[Decision, ...]:
    """Return the decisions of a model in depth order.

    Raises:
        InputError: a pattern matches nothing, a group divides no site, a pinned option does not
            fit its site or the target, sites that must agree have different rules, or a decision is
            left without options.
    """
    match_counts(rules, geometry)
    if target.types:
        check_fallbacks(geometry, rules)
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
    found = [pattern for names in group.tensors for pattern in matching(list(rules), names)]
    for pattern in found[1:]:
        if rules[pattern] != rules[found[0]]:
            sites = ", ".join(name for names in group.tensors for name in names)
            raise InputError(
                f"space.weights.{key}: {found[0]!r} and {pattern!r} say different things about {group.name}, "
                f"whose sites must agree ({sites}): give both the same value, or leave one of them out."
            )
    return found[0] if found else None


def _offered(group: _Group, geometry: Geometry, rules: WeightRules, target: Target) -> list[Option]:
    members = group.members
    if any(last_match(rules.exclude, names) for names in group.tensors):
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
