"""Inspect: what the settings of a run mean for a model, from its ``config.json`` alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.exporters.gguf import check_shape
from tightfit.search.contexts import context_note, prefix_of
from tightfit.search.cost import check_disk
from tightfit.search.hardware import bounds_of
from tightfit.search.settings import Settings
from tightfit.spaces import (
    Geometry,
    GgmlOption,
    InfeasibleError,
    InputError,
    KvRules,
    Part,
    Space,
    Target,
    WeightRules,
    build_space,
    fallbacks,
    format_size,
    match_counts,
    read_geometry,
)
from tightfit.workers.sources import ALIASES, read_config, resolve_folder


@dataclass(frozen=True)
class Inspection:
    """A space with its budget.

    Attributes:
        limit: most bytes of a plan that the budget allows: of its weights, and where it decides about KV
            caches, of weights and caches together.
        budget_text: the budget as it was asked for.
        matches: how many sites each (key, pattern) of the settings matched.
        notes: what a user should know, a sentence each.
        config: content of ``config.json``.
        prefix: tokens in the KV caches where losses are measured.
    """

    space: Space
    limit: int
    budget_text: str
    matches: Mapping[tuple[str, str], int]
    notes: tuple[str, ...]
    config: Mapping[str, Any]
    prefix: int = 0


def inspect_settings(settings: Settings) -> Inspection:
    """Build the space of some settings and check that the budget can be kept. Needs no torch.

    Raises:
        InputError: the model is unknown or incomplete, the target cannot take it, rules do not fit it, they
            leave no choice, or the files that a new run would write do not fit on the disk.
        InfeasibleError: the budget is below the floor, or so near to it that one plan is left.
    """
    config = read_config(settings.model)
    if settings.model not in ALIASES and Path(settings.model).expanduser().is_dir():
        resolve_folder(settings.model)  # refuses weights that nobody could load, before anything heavy
    geometry = read_geometry(config)
    if settings.target == "llama.cpp":
        check_shape(config, geometry)
    rules, caches = settings.weight_rules(), settings.kv_rules()
    budget = settings.budget.to_budget()
    space = build_space(geometry, rules, settings.target_rules(), caches, budget.load)
    if space.size == 1:
        offers = "options" if space.has_kv else "bits, groups or zeros"
        raise InputError(
            f"{'space' if space.has_kv else 'space.weights'} leaves one plan, {smallest_plan(space)}, so "
            f"there is nothing to search: offer more {offers}, or pin less."
        )
    limit, parts, asked = budget.check(space), budget.parts(space), _budget_text(settings)
    short = missing_bytes(space, limit, parts)
    if short:
        raise InfeasibleError(
            f"the budget ({asked}) leaves a single plan, {smallest_plan(space)}, so there is nothing to "
            f"search: raise it by {short} B of {_counted(space)} to have a choice."
        )
    check_disk(settings, space, _weight_limit(space, limit))
    notes = notes_on(space, rules) + pin_notes(space, caches) + budget_notes(space, limit, parts)
    if note := context_note(settings, space):
        notes += (note,)
    if space.has_kv and settings.validation.hardware:
        notes += ("validate.hardware: files are run with plain KV caches; speed and memory are of these.",)
    prefix = prefix_of(settings, space)
    return Inspection(space, limit, asked, match_counts(rules, geometry), notes, config, prefix)


def _budget_text(settings: Settings) -> str:
    """Write the budget as it was asked for: ``total 1.50 GiB, context 4096``."""
    budget = settings.budget
    sizes = [("weights", budget.weights), ("total", budget.total), ("kv", budget.kv)]
    parts = [f"{key} {format_size(size)}" for key, size in sizes if size is not None]
    numbers = [("effective_bits", budget.effective_bits), ("context", budget.context)]
    parts += [f"{key} {number}" for key, number in numbers if number is not None]
    parts += [bound.asked for bound in bounds_of(settings)]
    parts += [f"batch {budget.batch}"] * (budget.batch > 1)
    return ", ".join(parts + [f"shared_prefix {budget.shared_prefix}"] * (budget.shared_prefix > 0))


def _counted(space: Space) -> str:
    """Say what the bytes of a plan are bytes of."""
    return "weights and KV cache" if space.has_kv else "weights"


def _weight_limit(space: Space, limit: int) -> int:
    """Most bytes of weights that a limit leaves; they are what files hold."""
    caches = [decision.costs for decision in space.kv_decisions]
    return min(limit - sum(c[0] for c in caches), space.ceiling - sum(c[-1] for c in caches))


def missing_bytes(space: Space, limit: int, parts: Sequence[Part] = ()) -> int:
    """Bytes that a budget lacks to leave more than one plan; 0 where it leaves a choice, or never could.

    Args:
        space: the decisions.
        limit: most bytes of a plan.
        parts: bounds on its weights alone and on its KV caches alone.
    """
    missing = []
    for decision in space.decisions:
        if len(decision.costs) == 1:
            continue
        step = decision.costs[1] - decision.costs[0]
        over = [space.floor + step - limit]
        over += [_floor_of(space, part) + step - part.limit for part in parts if part.kv == decision.is_kv]
        missing.append(max(0, *over))
    return min(missing, default=0)


def _floor_of(space: Space, part: Part) -> int:
    return sum(decision.costs[0] for decision in space.decisions if decision.is_kv == part.kv)


def smallest_plan(space: Space) -> str:
    """Name the smallest plan in words: which option where, and its bytes."""
    places: dict[str, list[str]] = {}
    for decision in space.decisions:
        places.setdefault(decision.options[0].name, []).append(decision.name)
    words = "; ".join(f"{option} in {_listed(names)}" for option, names in places.items())
    if len(places) == 1:
        words = f"{next(iter(places))} everywhere"
    return f"{words} ({format_size(space.floor)}, {space.floor} B)"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def budget_notes(space: Space, limit: int, parts: Sequence[Part] = ()) -> tuple[str, ...]:
    """Say what is particular about a budget: that it leaves one plan, or that everything fits."""
    if limit >= space.ceiling:
        return ("the budget fits at the largest option everywhere, so it forces no choice.",)
    short = missing_bytes(space, limit, parts)
    if short:
        return (f"the budget leaves a single plan, {smallest_plan(space)}; {short} B more give a choice.",)
    return ()


def pin_notes(space: Space, rules: KvRules | None) -> tuple[str, ...]:
    """Say how many caches every pattern of ``space.kv.pin`` matches."""
    sites = [site for decision in space.kv_decisions for site in decision.sites]
    return tuple(
        f"space.kv.pin {pattern!r} matches {sum(fnmatch.fnmatchcase(site, pattern) for site in sites)} of "
        f"{len(sites)} caches."
        for pattern in (rules.pin if rules else ())
    )


def notes_on(space: Space, rules: WeightRules) -> tuple[str, ...]:
    """Name what was asked for and is not offered: by the target at all, or by widths in some places."""
    if space.target.types:
        return _type_notes(space, rules)
    notes = _unstored(space.target, rules)
    for group in rules.groups:
        widths = _undivided(space.geometry, group)
        if widths:
            named = ", ".join(
                f"{width} ({count} sites, such as {site})" for width, (count, site) in widths.items()
            )
            notes.append(f"group {group} is not offered where it does not divide the input width: {named}.")
    return tuple(notes)


def _type_notes(space: Space, rules: WeightRules) -> tuple[str, ...]:
    """Name the types of llama.cpp that do not fit somewhere, and what is stored, and charged, instead."""
    notes = []
    defaults = WeightRules()
    unused = [key for key in ("groups", "zeros") if getattr(rules, key) != getattr(defaults, key)]
    if unused:
        notes.append(
            f"{' and '.join(unused)} say nothing about target {space.target.name}: its types decide."
        )
    for (name, width), (stored, sites) in fallbacks(space.geometry, rules).items():
        wanted, real = GgmlOption(name), GgmlOption(stored)
        more = real.block_bytes / real.block / (wanted.block_bytes / wanted.block) - 1
        notes.append(
            f"{name} stores blocks of {wanted.block} weights, which do not divide the width {width} of "
            f"{len(sites)} sites, such as {sites[0]}: {stored} is offered there, as llama-quantize falls "
            f"back to, at {more:+.0%} bytes."
        )
    return tuple(notes)


def _unstored(target: Target, rules: WeightRules) -> list[str]:
    """Name the widths and zeros that a target leaves out."""
    asked = dict.fromkeys([*rules.bits, *(width for widths in rules.only.values() for width in widths)])
    bits = [str(width) for width in sorted(asked) if width not in target.bits]
    zeros = [zero for zero in dict.fromkeys(rules.zeros) if zero not in target.zeros]
    notes = [f"target {target.name} does not store {' and '.join(bits)} bits: not offered."] if bits else []
    if zeros:
        notes.append(f"target {target.name} does not store {' and '.join(zeros)} zeros: not offered.")
    return notes


def _undivided(geometry: Geometry, group: int) -> dict[int, tuple[int, str]]:
    result: dict[int, tuple[int, str]] = {}
    for linear in geometry.linears:
        if group and linear.cols % group and linear.tied_to is None:
            count, site = result.get(linear.cols, (0, linear.site))
            result[linear.cols] = (count + 1, site)
    return result
