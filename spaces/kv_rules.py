"""Which KV options a user wants on offer, and the decisions that they make of a model."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tightfit.spaces.decisions import Decision
from tightfit.spaces.errors import InputError
from tightfit.spaces.geometry import Attention, Geometry
from tightfit.spaces.kv import FLOAT_BITS, KvOption
from tightfit.spaces.memory import Load
from tightfit.spaces.targets import Target

KV_JOINT = "kv"
"""Name of the decision about all caches, where a target treats them alike."""


@dataclass(frozen=True)
class KvRules:
    """Which KV options a space offers, before a target and the heads of the model narrow them.

    Attributes:
        bits, keep: every combination is an option; without bits, the usual ones of the target.
        separate: whether keys and values choose their bits apart from one another.
        group, residual, sinks: of every option, see :class:`~tightfit.spaces.kv.KvOption`; a target that
            evicts nothing has no residual and no sinks.
        spread: also offer keys whose bits are spread over rotary pairs.
        share: also offer to read the cache of the layer below.
        cutoff: also offer to keep only the sinks of the prompt; they stay floats, so of all bits only the
            most are offered.
        pin: per pattern, the one option that matching layers take; names look like ``layers.3.kv``. Of
            several patterns the last one wins.
    """

    bits: tuple[int, ...] | None = None
    keep: tuple[float, ...] = (1.0,)
    separate: bool = False
    group: int = 32
    residual: int = 32
    sinks: int = 4
    spread: bool = False
    share: bool = False
    cutoff: bool = False
    pin: Mapping[str, str] = field(default_factory=dict)

    def options(self, target: Target) -> list[KvOption]:
        """Return what is on offer for a layer.

        Raises:
            InputError: the target cannot store one of them.
        """
        self._check(target)
        layout = target.kv.layout
        evicts = target.kv.evicts
        common = {
            "layout": layout,
            "group": self.group,
            "residual": self.residual if evicts else 0,
            "sinks": self.sinks if evicts else 0,
        }
        bits = self.bits or target.kv.usual
        pairs = [(k, v) for k in bits for v in bits if self.separate or k == v]
        found: dict[str, KvOption] = {}
        for k, v in pairs:
            for keep in self.keep:
                option = KvOption(k, v, keep, **common)  # type: ignore[arg-type]
                found[option.name] = option
                if self.spread and k < FLOAT_BITS:
                    twin = KvOption(k, v, keep, spread=True, **common)  # type: ignore[arg-type]
                    found[twin.name] = twin
        if self.cutoff:
            option = KvOption(max(bits), max(bits), cutoff=True, **common)  # type: ignore[arg-type]
            found[option.name] = option
        if self.share:
            found["shared"] = KvOption(shared=True)
        return list(found.values())

    def _check(self, target: Target) -> None:
        kv = target.kv
        asked_bits = self.bits or kv.usual
        for bits in asked_bits:
            if bits not in kv.bits:
                raise InputError(f"space.kv.bits: {bits} is not possible ({kv.storable(target.name)}).")
        for keep in self.keep:
            if not 0 < keep <= 1:
                raise InputError(f"space.kv.keep: {keep:g} must be greater than 0 and at most 1.")
        if not kv.evicts:
            asked = {"keep below 1": min(self.keep) < 1, "share": self.share}
            asked |= {"cutoff": self.cutoff, "spread": self.spread}
            for what, wanted in asked.items():
                if wanted:
                    raise InputError(f"space.kv: {what} is not possible ({kv.storable(target.name)}).")
        quantized = [bits for bits in asked_bits if bits < FLOAT_BITS]
        if kv.widths is not None and (len(quantized) > kv.widths or (self.separate and quantized)):
            raise InputError(
                f"space.kv.bits: target {target.name} stores every layer either as 16-bit floats or in one "
                f"other width, the same for keys and values, so give at most {kv.widths} of "
                f"{', '.join(map(str, quantized))}."
            )


def build_kv_decisions(
    geometry: Geometry, rules: KvRules, target: Target, load: Load
) -> tuple[Decision, ...]:
    """Return one decision per layer, or a single one where the target treats all layers alike.

    Args:
        geometry: of the model.
        rules: what is wanted.
        target: what can be stored.
        load: context and batch that the bytes are counted at.

    Raises:
        InputError: the rules do not fit the target or the heads of the model, or a pattern matches nothing.
    """
    if load.context > geometry.max_context:
        raise InputError(
            f"budget.context: {load.context} tokens are more than the model was made for "
            f"({geometry.max_context})."
        )
    sites = list(kv_sites(KV_JOINT, geometry.layers))
    for pattern in rules.pin:
        if not any(fnmatch.fnmatchcase(site, pattern) for site in sites):
            raise InputError(
                f"space.kv.pin: the pattern {pattern!r} matches none of the {len(sites)} caches "
                f"(they are called {sites[0]} to {sites[-1]})."
            )
    offered, pinned = rules.options(target), _pinned(geometry, rules, target, sites)
    if target.kv.joint:
        options = [_agreed(pinned)] if pinned else offered
        return (_decision(KV_JOINT, sites, options, geometry.attention, load),)
    decisions = []
    for layer, site in enumerate(sites):
        options = [o for o in offered if _possible(geometry, o, layer)]
        options = [pinned[site]] if site in pinned else options
        decisions.append(_decision(site, [site], options, [geometry.attention[layer]], load))
    return tuple(decisions)


def kv_sites(decision: str, layers: int) -> tuple[str, ...]:
    """Return the caches that a decision of this name is about; none where it is about matrices."""
    if decision == KV_JOINT:
        return tuple(f"layers.{layer}.kv" for layer in range(layers))
    return (decision,) if decision.endswith(".kv") else ()


def _possible(geometry: Geometry, option: KvOption, layer: int) -> bool:
    """Whether there is a cache like its own to share below."""
    return not option.shared or (layer > 0 and geometry.attention[layer - 1] == geometry.attention[layer])


def _pinned(geometry: Geometry, rules: KvRules, target: Target, sites: Sequence[str]) -> dict[str, KvOption]:
    """Return the one option of every cache that a pattern pins.

    Raises:
        InputError: a pinned option is none, or the target or the layer cannot have it.
    """
    pinned = {}
    for layer, site in enumerate(sites):
        hits = [pattern for pattern in rules.pin if fnmatch.fnmatchcase(site, pattern)]
        if not hits:
            continue
        place = f"space.kv.pin {hits[-1]!r}"
        try:
            option = KvOption.from_name(rules.pin[hits[-1]])
        except InputError as error:
            raise InputError(f"{place}: {error}") from error
        if not _storable(option, target):
            raise InputError(f"{place}: {option.name} is not possible ({target.kv.storable(target.name)}).")
        if not _possible(geometry, option, layer):
            raise InputError(
                f"{place}: {site} cannot read the cache of the layer below, since there is none with heads "
                "and a window like its own."
            )
        pinned[site] = option
    widths = {bits for option in pinned.values() for bits in (option.k_bits, option.v_bits)}
    widths = {bits for bits in widths.union(rules.bits or target.kv.usual) if bits < FLOAT_BITS}
    if target.kv.widths is not None and len(widths) > target.kv.widths:
        raise InputError(
            f"space.kv.pin: target {target.name} stores every layer either as 16-bit floats or in one other "
            f"width, but bits and pins name {', '.join(map(str, sorted(widths)))}."
        )
    return pinned


def _storable(option: KvOption, target: Target) -> bool:
    """Whether a target has caches like this."""
    kv = target.kv
    whole = kv.evicts or not option.quantized or option.residual == option.sinks == 0
    alike = kv.widths is None or option.k_bits == option.v_bits
    return kv.allows(option) and whole and alike


def _agreed(pinned: Mapping[str, KvOption]) -> KvOption:
    """Return the option of layers that must agree.

    Raises:
        InputError: they have different ones.
    """
    first, *others = pinned.items()
    for site, option in others:
        if option != first[1]:
            raise InputError(
                f"space.kv.pin: {first[0]} at {first[1].name} and {site} at {option.name} disagree, but all "
                "layers must have the same cache: give all of them the same option."
            )
    return first[1]


def _decision(
    name: str, sites: list[str], offered: list[KvOption], layers: Sequence[Attention], load: Load
) -> Decision:
    try:
        costs = {o: sum(load.layer_bytes(layer, o) for layer in layers) for o in offered}
    except InputError as error:
        raise InputError(f"space.kv: {error}") from error
    # In a short context nothing may be quantized or evicted: of equals the most exact counts as the largest.
    options = sorted(offered, key=lambda option: (costs[option], option.bits, option.name))
    return Decision(name, tuple(sites), tuple(options), tuple(costs[o] for o in options), 0)
