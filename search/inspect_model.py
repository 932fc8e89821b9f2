"""Inspect a model: does it fit, and up to which context? Needs its ``config.json`` alone."""

from __future__ import annotations

from tightfit.search.agents.uniform import formats
from tightfit.search.inspection import budget_notes, notes_on
from tightfit.search.model_memory import ModelInspection, Pair
from tightfit.spaces import (
    GROUPS,
    PLAIN,
    Budget,
    Geometry,
    InputError,
    KvOption,
    KvRules,
    Load,
    Target,
    WeightRules,
    build_space,
    get_target,
    kv_bytes,
    longest_context,
    parse_size,
    read_geometry,
)
from tightfit.workers.sources import read_config

# Widths that an inspection lists, as far as the target stores them.
_INSPECTED_BITS = (2, 3, 4, 5, 6, 8, 16)
_CACHE_BITS = (8, 4, 2)


def inspect_model(
    model: str,
    budget: str | None,
    context: int | None,
    batch: int,
    target: str,
    groups: str,
    total: str | None = None,
    shared_prefix: int = 0,
) -> ModelInspection:
    """Inspect a model under the default widths.

    Args:
        model: alias, folder or hub id.
        budget: most bytes of weights, a size such as ``76MiB``, or None.
        context: tokens in the KV cache; the model's own longest context if None.
        batch: sequences in the KV cache.
        target: name of a target.
        groups: group sizes, comma separated.
        total: most bytes of weights and KV cache, a size such as ``140MiB``, or None.
        shared_prefix: first tokens that all sequences have in common.

    Raises:
        InputError: any of these is not what it should be.
        InfeasibleError: the budget is below the floor. That a total is not kept is part of the answer.
    """
    geometry = read_geometry(read_config(model))
    load = _load(model, geometry, context, batch, shared_prefix)
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
    if space.floor < min(size for _, _, size in uniform):
        uniform.insert(0, ("smallest everywhere", space.effective_bits(space.floor), space.floor))
    caches, refused = _caches(geometry, space.target)
    sizes = tuple((cache, kv_bytes(geometry, load, [cache] * geometry.layers)) for cache in caches)
    room = None if total is None else parse_size(total)

    def longest(weights: int, cache: KvOption) -> int | None:
        if room is None:
            return None
        each = [cache] * geometry.layers
        return longest_context(geometry, room - weights, batch, shared_prefix, each)

    pairs = [
        Pair(name, weights, cache, size, longest(weights, cache))
        for name, _, weights in uniform
        for cache, size in sizes
    ]
    return ModelInspection(
        model, space, tuple(uniform), load, sizes, limit, room, tuple(pairs), notes + refused
    )


def _load(model: str, geometry: Geometry, context: int | None, batch: int, shared_prefix: int) -> Load:
    tokens = context or geometry.max_context
    if tokens > geometry.max_context:
        raise InputError(
            f"--context: {tokens} tokens are more than {model} was made for ({geometry.max_context})."
        )
    if shared_prefix > tokens:
        raise InputError(f"--shared-prefix: {shared_prefix} tokens are more than the context has ({tokens}).")
    return Load(tokens, batch, shared_prefix)


def _caches(geometry: Geometry, target: Target) -> tuple[list[KvOption], tuple[str, ...]]:
    """Return the caches that a target stores of these heads, and a note on each that does not fit them."""
    caches, notes = [PLAIN], []
    for bits in _CACHE_BITS:
        if bits not in target.kv.bits:
            continue
        (option,) = KvRules(bits=(bits,)).options(target)
        try:
            for layer in geometry.attention:
                option.check(layer)
        except InputError as error:
            notes.append(str(error))
        else:
            caches.append(option)
    return caches, tuple(notes)


def _read_groups(text: str) -> tuple[int, ...]:
    allowed = ", ".join(map(str, GROUPS))
    try:
        groups = tuple(int(part) for part in text.split(","))
    except ValueError:
        groups = ()
    if not groups or any(group not in GROUPS for group in groups):
        raise InputError(f"--groups {text!r}: give group sizes separated by commas (allowed: {allowed}).")
    return groups
