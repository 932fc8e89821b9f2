"""What a model takes in memory before anything is searched, for people and as plain data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightfit.search.facts import SpaceFacts
from tightfit.search.tables import WIDTH, feasible_range, render_table
from tightfit.spaces import (
    Geometry,
    KvOption,
    Load,
    Space,
    Target,
    format_size,
    kv_bytes,
    overhead_bytes,
    prefill_bytes,
)


@dataclass(frozen=True)
class Pair:
    """One format for all matrices with one for all KV caches. Sizes in bytes.

    Attributes:
        option: name of the matrices' format.
        weights: bytes of all weights.
        cache: format of the caches.
        cache_bytes: bytes of the caches at the context and batch of the inspection.
        longest: longest context up to which both keep the total; None without one.
    """

    option: str
    weights: int
    cache: KvOption
    cache_bytes: int
    longest: int | None

    @property
    def total(self) -> int:
        """Bytes of weights and caches."""
        return self.weights + self.cache_bytes

    @property
    def name(self) -> str:
        """Both formats."""
        return f"{self.option} + {self.cache.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return the pair as plain data."""
        longest = {} if self.longest is None else {"longest_context": self.longest}
        return {"option": self.option, "cache": self.cache.name, "total_bytes": self.total, **longest}


@dataclass(frozen=True)
class ModelInspection:
    """What a model takes in memory before anything is searched. Sizes in bytes.

    Attributes:
        uniform: (format name, effective bits, weight bytes) of every uniform plan, and of the smallest one
            where that is none of them.
        load: what the KV caches hold.
        caches: every cache that is listed, with its bytes.
        budget: most bytes of weights, if asked for.
        total: most bytes of weights and KV cache together, if asked for.
        pairs: every format with every cache, in the order of ``uniform`` and ``caches``.
    """

    model: str
    space: Space
    uniform: tuple[tuple[str, float, int], ...]
    load: Load
    caches: tuple[tuple[KvOption, int], ...]
    budget: int | None
    total: int | None
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool | None:
        """Whether some plan keeps what was asked for, up to the context; None where nothing was."""
        if self.total is None:
            return None if self.budget is None else self.space.floor <= self.budget
        return bool(self._fitting)

    @property
    def _allowed(self) -> list[Pair]:
        """Pairs whose weights keep the budget."""
        return [pair for pair in self.pairs if self.budget is None or pair.weights <= self.budget]

    @property
    def _fitting(self) -> list[Pair]:
        # A cache may be larger before a group is quantized than after, so every shorter context counts too.
        return [pair for pair in self._allowed if pair.total <= (self.total or 0)]

    @property
    def shown(self) -> Pair:
        """The pair whose memory is split: the fullest that fits, or the one that fits longest.

        Without a total it is the largest.
        """
        if self.total is None:
            return max(self.pairs, key=lambda pair: pair.total)
        if self._fitting:
            return max(self._fitting, key=lambda pair: pair.total)
        return max(self._allowed, key=lambda pair: (pair.longest, -pair.weights))

    @property
    def verdict(self) -> str | None:
        """One line that answers whether the total is kept; None without one."""
        if self.total is None:
            return None
        shown, place = self.shown, _place(self.load)
        if self.fits:
            count = f"{len(self._fitting)} of {len(self.pairs)} combinations fit"
            return (
                f"fits: {format_size(shown.total)} of {format_size(self.total)} at {place} with "
                f"{shown.name}, which goes up to {shown.longest:,} tokens ({count})"
            )
        if not shown.longest:
            return (
                f"does not fit at any context: the smallest weights take {format_size(shown.weights)} of "
                f"{format_size(self.total)}"
            )
        return f"does not fit at {place}; fits up to {shown.longest:,} tokens with {shown.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return the inspection as plain data."""
        geometry, load = self.space.geometry, self.load
        return {
            "model": self.model,
            "family": geometry.family,
            "layers": geometry.layers,
            "parameters": geometry.parameters,
            "base_dtype": geometry.dtype,
            "uncompressed_bytes": geometry.parameters * geometry.dtype_bytes,
            "longest_context": geometry.max_context,
            "decisions": len(self.space.decisions),
            "floor_bytes": self.space.floor,
            "ceiling_bytes": self.space.ceiling,
            "uniform": [
                {"option": name, "effective_bits": bits, "weight_bytes": size}
                for name, bits, size in self.uniform
            ],
            "kv_cache": {
                "context": load.context,
                "batch": load.batch,
                "shared_prefix": load.shared_prefix,
                "bytes": kv_bytes(geometry, load),
            },
            "caches": [{"option": option.name, "bytes": size} for option, size in self.caches],
            "plans": [pair.to_dict() for pair in self.pairs],
            "memory": {
                "option": self.shown.option,
                "cache": self.shown.cache.name,
                "weight_bytes": self.shown.weights,
                "kv_bytes": self.shown.cache_bytes,
                "overhead_bytes": overhead_bytes(geometry, load, self.space.target),
                "overhead_formula": overhead_words(geometry, load, self.space.target),
                "prefill_kv_bytes": prefill_bytes(geometry, load),
            },
            "budget_bytes": self.budget,
            "total_bytes": self.total,
            "fits": self.fits,
            "verdict": self.verdict,
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
            f"KV cache: {format_size(kv_bytes(geometry, self.load))} at {_place(self.load)} (16 bits)",
            feasible_range(SpaceFacts.of(self.space), self.budget),
            "",
            *self._tables(),
            *self._split(),
            *([self.verdict] if self.verdict else []),
            *self.notes,
        ]
        return "\n".join(lines)

    def _tables(self) -> Iterator[str]:
        headers = [f"KV {option.k_bits} bits" for option, _ in self.caches]
        yield f"weights + KV cache at {_place(self.load)}"
        rows = [["KV cache alone", "", "", *(format_size(size) for _, size in self.caches)]]
        rows += [
            [name, f"{bits:.3f}", format_size(size), *(format_size(pair.total) for pair in self._row(name))]
            for name, bits, size in self.uniform
        ]
        right = set(range(1, 3 + len(headers)))
        yield render_table(["uniform plan", "effective bits", "weights", *headers], rows, right)
        yield f"caches: {', '.join(option.name for option, _ in self.caches)}"
        yield ""
        if self.total is not None:
            yield f"longest context within {format_size(self.total)}, × {self.load.batch}{_shared(self.load)}"
            rows = [[name, *(f"{p.longest or 0:,}" for p in self._row(name))] for name, _, _ in self.uniform]
            yield render_table(["uniform plan", *headers], rows, right)
            yield ""

    def _row(self, name: str) -> list[Pair]:
        return [pair for pair in self.pairs if pair.option == name]

    def _split(self) -> Iterator[str]:
        geometry, load, shown = self.space.geometry, self.load, self.shown
        overhead = overhead_bytes(geometry, load, self.space.target)
        yield f"memory of {shown.name} at {_place(load)}"
        rows = [
            ["weights", format_size(shown.weights)],
            ["KV cache", format_size(shown.cache_bytes)],
            ["overhead", format_size(overhead)],
            ["prefill peak", format_size(prefill_bytes(geometry, load))],
        ]
        yield render_table(["part", "size"], rows, right={1})
        words = overhead_words(geometry, load, self.space.target)
        yield textwrap.fill(f"overhead, beside weights and KV cache: {words}.", WIDTH)
        yield textwrap.fill(
            "prefill peak, in place of the KV cache when the prompt has been read: all of its keys and "
            f"values in {geometry.dtype}, nothing evicted yet.",
            WIDTH,
        )
        yield ""


def overhead_words(geometry: Geometry, load: Load, target: Target) -> str:
    """Say in words how :func:`~tightfit.spaces.overhead_bytes` counts."""
    tokens = max(load.batch, min(target.chunk, load.context))
    at_once = f"{tokens:,} tokens at once" if tokens > 1 else "one token at once"
    words = (
        f"with {at_once}, residual stream and outputs of the widest block's matrices, and logits of every "
        "sequence's last token, in 32-bit floats"
    )
    if target.fused_kernels:
        return words
    return (
        f"{words}; attention scores of one layer; the largest matrix of a block and the largest layer's "
        f"cache written out in {geometry.dtype}"
    )


def _place(load: Load) -> str:
    return f"{load.context:,} tokens × {load.batch}{_shared(load)}"


def _shared(load: Load) -> str:
    return f", the first {load.shared_prefix:,} in common" if load.shared_prefix else ""
