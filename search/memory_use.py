"""Memory that running a plan takes beside what its budget counts, where plans decide about KV caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tightfit.search.model_memory import overhead_words
from tightfit.search.settings import Settings
from tightfit.spaces import PLAIN, overhead_bytes, prefill_bytes, read_geometry


@dataclass(frozen=True)
class MemoryUse:
    """What stands beside the bytes of every plan of a run, at the context and batch of its budget.

    Attributes:
        overhead: bytes that generating needs beside weights and cache.
        formula: how they are counted, in words.
        prefill: bytes of the caches at their peak, when the prompts have been read.
        dtype: that they are held in then.
        plain: per layer, bytes of its cache in plain 16-bit floats, nothing evicted.
        target: the tool that runs the plans.
        vocabulary: number of tokens that the model knows.
    """

    overhead: int
    formula: str
    prefill: int
    dtype: str
    plain: tuple[int, ...]
    target: str
    vocabulary: int

    def plain_bytes(self, sites: Sequence[str]) -> int:
        """Bytes of some caches, named like ``layers.3.kv``, in plain 16-bit floats."""
        return sum(self.plain[int(site.split(".")[1])] for site in sites)


def memory_use(space: Mapping[str, Any] | None, settings: Mapping[str, Any] | None) -> MemoryUse | None:
    """Return what stands beside a plan's bytes; None where a run does not decide about KV caches.

    Args:
        space: as the run stored it, with the model's config.
        settings: of the run, as stored.
    """
    if not space or not settings or space.get("context") is None:
        return None
    typed, geometry = Settings.from_dict(settings), read_geometry(space["config"])
    load, target = typed.budget.to_budget().load, typed.target_rules()
    if load is None:
        return None
    return MemoryUse(
        overhead_bytes(geometry, load, target),
        overhead_words(geometry, load, target),
        prefill_bytes(geometry, load),
        geometry.dtype,
        tuple(load.layer_bytes(layer, PLAIN) for layer in geometry.attention),
        target.name,
        geometry.vocab,
    )
