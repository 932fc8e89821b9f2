"""Inspect: what a budget means for a model, from its ``config.json`` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.exporters.gguf import check_shape
from tightfit.search.agents.uniform import formats
from tightfit.search.contexts import context_note, prefix_of
from tightfit.search.cost import check_disk
from tightfit.search.facts import SpaceFacts
from tightfit.search.hardware import bounds_of
from tightfit.search.settings import Settings
from tightfit.search.tables import feasible_range, render_table
from tightfit.spaces import (
    GROUPS,
    Budget,
    Geometry,
    GgmlOption,
    InfeasibleError,
    InputError,
    Load,
    Space,
    Target,
    WeightRules,
    build_space,
    fallbacks,
    format_size,
    get_target,
    kv_bytes,
    match_counts,
    parse_size,
    read_geometry,
)
from tightfit.workers.sources import ALIASES, read_config, resolve_folder

# Widths that an inspection lists, as far as the target stores them.
_INSPECTED_BITS = (2, 3, 4, 5, 6, 8, 16)


@dataclass(frozen=True)
class Inspection:
    """A space with its budget.

    Attributes:
        limit: most weight bytes that the budget allows.
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
    rules = settings.weight_rules()
    budget = settings.budget.to_budget()
    space = build_space(geometry, rules, settings.target_rules(), settings.kv_rules(), budget.load)
    if space.size == 1:
        raise InputError(
            f"space.weights leaves one plan, {smallest_plan(space)}, so there is nothing to search: "
            "offer more bits, groups or zeros, or pin less."
        )
    limit, asked = budget.check(space), _budget_text(settings)
    short = missing_bytes(space, limit)
    if short:
        raise InfeasibleError(
            f"the budget ({asked}) leaves a single plan, {smallest_plan(space)}, so there is nothing to "
            f"search: raise it by {short} B of weights to have a choice."
        )
    check_disk(settings, space, limit)
    notes = notes_on(space, rules) + budget_notes(space, limit)
    if note := context_note(settings, space):
        notes += (note,)
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
    return ", ".join(parts + [f"batch {budget.batch}"] * (budget.batch > 1))


def missing_bytes(space: Space, limit: int) -> int:
    """Bytes that a limit lacks to leave more than one plan; 0 where it leaves a choice, or never could."""
    steps = [decision.costs[1] - decision.costs[0] for decision in space.decisions if len(decision.costs) > 1]
    return max(0, space.floor + min(steps) - limit) if steps else 0


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


def budget_notes(space: Space, limit: int) -> tuple[str, ...]:
    """Say what is particular about a budget: that it leaves one plan, or that everything fits."""
    if limit >= space.ceiling:
        return ("the budget fits at the largest option everywhere, so it forces no choice.",)
    short = missing_bytes(space, limit)
    if short:
        return (f"the budget leaves a single plan, {smallest_plan(space)}; {short} B more give a choice.",)
    return ()


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


@dataclass(frozen=True)
class ModelInspection:
    """What a model takes in memory before anything is searched. Sizes in bytes.

    Attributes:
        uniform: (format name, effective bits, weight bytes) of every uniform plan.
        context: tokens in the KV cache that ``kv`` counts, at ``batch`` sequences.
        fits: whether the smallest plan keeps the budget; None without a budget.
    """

    model: str
    space: Space
    uniform: tuple[tuple[str, float, int], ...]
    context: int
    batch: int
    kv: int
    budget: int | None
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool | None:
        """Whether some plan keeps the budget."""
        return None if self.budget is None else self.space.floor <= self.budget

    def to_dict(self) -> dict[str, Any]:
        """Return the inspection as plain data."""
        geometry = self.space.geometry
        return {
            "model": self.model,
            "family": geometry.family,
            "layers": geometry.layers,
            "parameters": geometry.parameters,
            "base_dtype": geometry.dtype,
            "uncompressed_bytes": geometry.parameters * geometry.dtype_bytes,
            "decisions": len(self.space.decisions),
            "floor_bytes": self.space.floor,
            "ceiling_bytes": self.space.ceiling,
            "uniform": [
                {"option": name, "effective_bits": bits, "weight_bytes": size}
                for name, bits, size in self.uniform
            ],
            "kv_cache": {"context": self.context, "batch": self.batch, "bytes": self.kv},
            "budget_bytes": self.budget,
            "fits": self.fits,
            "notes": list(self.notes),
        }

    def render(self) -> str:
        """Return the inspection as text."""
        geometry = self.space.geometry
        whole = geometry.parameters * geometry.dtype_bytes
        tied = ", head tied to the embedding" if geometry.tied else ""
        lines = [
            f"{self.model}: {geometry.family}, {geometry.layers} layers, "
            f"{geometry.parameters:,} parameters{tied}",
            f"uncompressed: {format_size(whole)} in {geometry.dtype}",
            f"KV cache: {format_size(self.kv)} at {self.context:,} tokens × {self.batch} (16 bits)",
            feasible_range(SpaceFacts.of(self.space), self.budget),
            render_table(
                ["uniform plan", "effective bits", "weights", "weights + KV"],
                [[n, f"{bits:.3f}", format_size(b), format_size(b + self.kv)] for n, bits, b in self.uniform],
                right={1, 2, 3},
            ),
            *self.notes,
        ]
        return "\n".join(lines)


def inspect_model(
    model: str, budget: str | None, context: int | None, batch: int, target: str, groups: str
) -> ModelInspection:
    """Inspect a model under the default widths.

    Args:
        model: alias, folder or hub id.
        budget: a size such as ``76MiB``, or None.
        context: tokens in the KV cache; the model's own longest context if None.
        batch: sequences in the KV cache.
        target: name of a target.
        groups: group sizes, comma separated.

    Raises:
        InputError: any of these is not what it should be.
        InfeasibleError: the budget is below the floor.
    """
    geometry = read_geometry(read_config(model))
    rules = WeightRules(bits=_INSPECTED_BITS, groups=_read_groups(groups), zeros=("integer",))
    space = build_space(geometry, rules, get_target(target))
    notes, limit = notes_on(space, rules), None
    if budget is not None:
        limit = Budget(weights=parse_size(budget)).check(space)
        notes += budget_notes(space, limit)
    uniform = []
    for option in formats(space):
        size = space.bytes_of(space.uniform_levels(option))
        uniform.append((option.name, space.effective_bits(size), size))
    context = context or geometry.max_context
    kv = kv_bytes(geometry, Load(context, batch))
    return ModelInspection(model, space, tuple(uniform), context, batch, kv, limit, notes)


def _read_groups(text: str) -> tuple[int, ...]:
    allowed = ", ".join(map(str, GROUPS))
    try:
        groups = tuple(int(part) for part in text.split(","))
    except ValueError:
        groups = ()
    if not groups or any(group not in GROUPS for group in groups):
        raise InputError(f"--groups {text!r}: give group sizes separated by commas (allowed: {allowed}).")
    return groups
