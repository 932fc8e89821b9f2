"""What lies where in a model: sensitivities and chosen options by layer and module, bytes by part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tightfit.search.records import Score, Site
from tightfit.search.tables import kept_text
from tightfit.spaces import Decision, GgmlOption, KvOption, Option, Plan

SENSITIVITY_KINDS = {
    "calibrated": "one backward pass, calibrated by losses measured one decision at a time",
    "marginal": "measured one decision at a time",
    "prescreen": "estimated by one backward pass",
}
"""Kinds of score that a sensitivity map may show, the best first, in words."""

FIXED = "norms and other"
"""Name of what no decision changes."""

KV_CACHE = "KV cache"
"""Name of all caches together."""


@dataclass(frozen=True)
class Cell:
    """One matrix of the model under one option, or the KV cache of one layer.

    Attributes:
        decision: name of the decision that governs it; fused matrices share theirs.
        bits: nominal bits per weight; of a cache, rounded, per value of the whole context.
        loss: nats per token when only that decision takes the option; None in a map of a plan.
        type, stored: of a type of llama.cpp its name, and its bits per weight with scales: several share
            their nominal bits. None for other options.
        cache: how a KV cache is stored; None for a matrix.
    """

    site: str
    decision: str
    option: str
    bits: int
    loss: float | None = None
    se: float | None = None
    type: str | None = None
    stored: float | None = None
    cache: KvOption | None = None


@dataclass(frozen=True)
class SiteMap:
    """Cells by layer (rows) and module (columns), with embedding and head apart from them.

    Attributes:
        cells: one row per layer, one entry per module, None where a layer has no such module.
        apart: cells that belong to no layer; all KV caches are one of them where they are one decision.
        what: what the cells show, in words.
        caches: the KV cache of every layer, None where it has no score; empty where caches are not decided
            about layer by layer.
    """

    layers: tuple[int, ...]
    modules: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    apart: tuple[Cell, ...]
    what: str
    caches: tuple[Cell | None, ...] = ()

    def all(self) -> list[Cell]:
        """Return every cell."""
        cells = [*(cell for row in self.cells for cell in row), *self.caches, *self.apart]
        return [cell for cell in cells if cell]


@dataclass(frozen=True)
class MemoryPart:
    """Bytes of one kind of matrix, summed over the layers, or of all KV caches.

    Attributes:
        weights: number of weights; 0 for what no decision changes, and for caches.
        floor, ceiling: bytes under the smallest and the largest option.
        planned: bytes under the plan, None without one.
        bits: the plan's stored bits per weight, None without a plan or without weights.
    """

    name: str
    weights: int
    floor: int
    ceiling: int
    planned: int | None = None
    bits: float | None = None


def plan_map(sites: Sequence[Site], decisions: Sequence[Decision], plan: Plan) -> SiteMap:
    """Lay a plan's options out by layer and module."""
    choices = dict(plan.choices)
    options = {d.name: d.matrix_options[d.index(choices[d.name])] for d in decisions if not d.is_kv}
    laid = _lay_out(sites, lambda site: _cell(site, options[site.decision]), "bits per weight of the plan")
    caches = {d.name: d.kv_options[d.index(choices[d.name])] for d in decisions if d.is_kv}
    return _with_caches(laid, decisions, lambda name: _cache_cell(name, caches[name]))


def sensitivity_map(
    sites: Sequence[Site],
    decisions: Sequence[Decision],
    scores: Callable[[str], Sequence[Score]],
    plan: Plan | None = None,
) -> SiteMap | None:
    """Lay out what each decision alone loses at one option, or None where nothing was scored yet.

    The option is the one that the plan takes most often, if no other is offered by more decisions.
    A decision that does not offer it is shown at its nearest option. KV caches have an option of their own,
    chosen alike among those that lose something.

    Args:
        sites: of the space, in depth order.
        decisions: of the space, in its order.
        scores: returns the scores of one kind.
        plan: the plan that the map is to explain.
    """
    known = {kind: {(x.decision, x.option): x for x in scores(kind)} for kind in SENSITIVITY_KINDS}
    kind = next((kind for kind, held in known.items() if held), None)
    if kind is None:
        return None
    held = known[kind]
    scored = {d.name: [o for o in d.matrix_options if (d.name, o.name) in held] for d in decisions}
    common = _common_option([option for options in scored.values() for option in options], plan)
    picked = {
        name: min(options, key=lambda option: (option != common, abs(option.bits - common.bits)))
        for name, options in scored.items()
        if options
    }

    def cell(site: Site) -> Cell | None:
        option = picked.get(site.decision)
        return _cell(site, option, held[site.decision, option.name]) if option else None

    what = f"loss when only this decision is stored at {common.name}"
    shown = _shown_caches(decisions, held, plan)
    if shown:
        what += f", or this cache at {shown[0].name}"
    laid = _lay_out(sites, cell, f"{what}; {SENSITIVITY_KINDS[kind]}")

    def cache_cell(name: str) -> Cell | None:
        option = shown[1].get(name) if shown else None
        return _cache_cell(name, option, held[name, option.name]) if option else None

    return _with_caches(laid, decisions, cache_cell)


def _shown_caches(
    decisions: Sequence[Decision], held: Mapping[tuple[str, str], Score], plan: Plan | None
) -> tuple[KvOption, dict[str, KvOption]] | None:
    """Return the option that caches are compared at, and per decision the scored one that is nearest."""
    scored = {d.name: [o for o in d.kv_options if (d.name, o.name) in held] for d in decisions if d.is_kv}
    offered = [option for options in scored.values() for option in options]
    lossy = [option for option in offered if option.quantized or option.keep < 1]
    # Other ways to have less of a cache than fewer bits and tokens are no common measure.
    usual = [option for option in lossy if not (option.shared or option.cutoff or option.spread)]
    if not offered:
        return None
    counts = Counter(usual or lossy or offered)
    used = Counter(name for _, name in plan.choices) if plan else Counter[str]()
    common = max(sorted(counts), key=lambda option: (counts[option], used[option.name]))
    near = {
        name: min(options, key=lambda option: (option != common, option.distance(common)))
        for name, options in scored.items()
        if options
    }
    return common, near


def memory_parts(
    decisions: Sequence[Decision], fixed: int, plan: Plan | None = None
) -> tuple[MemoryPart, ...]:
    """Sum the bytes of decisions by their module, in order of depth; what is fixed, then caches come last."""
    choices = dict(plan.choices) if plan else {}
    groups: dict[str, list[Decision]] = {}
    for decision in decisions:
        groups.setdefault(kind_name(decision), []).append(decision)
    caches = groups.pop(KV_CACHE, [])
    parts = [_part(name, members, choices) for name, members in groups.items()]
    parts.append(MemoryPart(FIXED, 0, fixed, fixed, fixed if plan else None))
    return (*parts, _part(KV_CACHE, caches, choices)) if caches else tuple(parts)


def _part(name: str, decisions: Sequence[Decision], choices: Mapping[str, str]) -> MemoryPart:
    weights = sum(d.weights for d in decisions)
    part = MemoryPart(name, weights, sum(d.costs[0] for d in decisions), sum(d.costs[-1] for d in decisions))
    if not choices:
        return part
    planned = sum(d.costs[d.index(choices[d.name])] for d in decisions)
    return replace(part, planned=planned, bits=8 * planned / weights if weights else None)


def total_part(parts: Sequence[MemoryPart]) -> MemoryPart:
    """Return the sum of all parts; its bits leave out what no decision changes."""
    weights = sum(part.weights for part in parts)
    total = MemoryPart(
        "total", weights, sum(part.floor for part in parts), sum(part.ceiling for part in parts)
    )
    if any(part.planned is None for part in parts):
        return total
    planned = [(part.planned or 0, part.weights) for part in parts]
    governed = sum(size for size, held in planned if held)
    return replace(total, planned=sum(size for size, _ in planned), bits=8 * governed / weights)


def kind_name(decision: Decision) -> str:
    """``attn.q_proj`` for ``layers.3.attn.q_proj``; ``embed = head`` where they are one; ``KV cache``."""
    if decision.is_kv:
        return KV_CACHE
    if decision.name.startswith("layers."):
        return decision.name.split(".", 2)[2]
    return " = ".join(decision.sites)


def _common_option(options: Sequence[Option], plan: Plan | None) -> Option:
    counts = Counter(options)
    used = Counter(name for _, name in plan.choices) if plan else Counter()
    return max(sorted(counts), key=lambda option: (counts[option], used[option.name]))


def _cell(site: Site, option: Option, score: Score | None = None) -> Cell:
    loss, se = (score.value, score.se) if score else (None, None)
    cell = Cell(site.name, site.decision, option.name, option.bits, loss, se)
    if isinstance(option, GgmlOption):
        return replace(cell, type=option.type, stored=8 * option.block_bytes / option.block)
    return cell


def cache_label(option: KvOption) -> str:
    """Write a cache into a cell: bits of keys and values, and the share that is kept: ``4/4 ½``."""
    if option.shared:
        return "shared"
    if option.cutoff:
        return "cut"
    return f"{option.k_bits}{'s' if option.spread else ''}/{option.v_bits}{kept_text(option.keep)}"


def _cache_cell(name: str, option: KvOption, score: Score | None = None) -> Cell:
    loss, se = (score.value, score.se) if score else (None, None)
    return Cell(name, name, option.name, round(option.bits), loss, se, cache=option)


def _with_caches(laid: SiteMap, decisions: Sequence[Decision], cell: Callable[[str], Cell | None]) -> SiteMap:
    """Add the KV caches to a map: layer by layer, or apart where all are one decision."""
    cells = {d.kv_layers[0]: cell(d.name) for d in decisions if len(d.kv_layers) == 1}
    joint = [found for d in decisions if d.is_kv and len(d.sites) > 1 and (found := cell(d.name))]
    caches = tuple(cells.get(layer) for layer in laid.layers) if any(cells.values()) else ()
    return replace(laid, caches=caches, apart=(*laid.apart, *joint))


def _lay_out(sites: Sequence[Site], cell: Callable[[Site], Cell | None], what: str) -> SiteMap:
    layers = tuple(sorted({site.layer for site in sites if site.layer is not None}))
    modules = tuple(dict.fromkeys(site.module for site in sites if site.layer is not None))
    placed = {(site.layer, site.module): cell(site) for site in sites if site.layer is not None}
    rows = tuple(tuple(placed.get((layer, module)) for module in modules) for layer in layers)
    return SiteMap(layers, modules, rows, _apart(sites, cell), what)


def _apart(sites: Sequence[Site], cell: Callable[[Site], Cell | None]) -> tuple[Cell, ...]:
    """One cell per tensor outside the layers; a tied pair is one, named after both."""
    aliases = {site.tied_to: site.name for site in sites if site.tied_to}
    owners = [site for site in sites if site.layer is None and site.tied_to is None]
    pairs = [(site, cell(site)) for site in owners]
    return tuple(
        replace(found, site=f"{site.name} = {aliases[site.name]}" if site.name in aliases else site.name)
        for site, found in pairs
        if found
    )
