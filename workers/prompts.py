"""Prompts that the model has read, kept for as long as plans with the same weights are measured on them.

Plans that differ in their KV caches alone share what comes before compression: reading the prefix of every
window, by far the longest part. What it leaves behind is kept in memory under a cap.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tightfit.spaces import KvOption
from tightfit.workers.text import Window, digest_windows

if TYPE_CHECKING:
    from tightfit.compress.kvcache import Prefilled

CACHE_VERSION = 1
"""Raised whenever a change in :mod:`tightfit.compress.kvcache` changes any measured loss."""

_CAP = 2**30  # bytes


class Prompts:
    """Reads prefixes and goes on from their compressed caches.

    Args:
        model: causal LM in Transformers' module layout; whoever changes its weights calls it by another name.
        cap: most bytes of keys, values and queries that are kept.
    """

    def __init__(self, model: nn.Module, cap: int = _CAP) -> None:
        self._model: Any = model
        self._cap = cap
        self._kept: dict[tuple[str, str], Prefilled] = {}
        self._lock = threading.Lock()

    @torch.no_grad()
    def continued(self, weights: str, window: Window, kv: Mapping[int, KvOption]) -> Tensor:
        """Return the logits of every token that is scored, shape (scored, vocabulary).

        Args:
            weights: name of the weights that the model has now.
            window: with a prefix.
            kv: option by layer; layers left out keep what the model gives.
        """
        from tightfit.compress.kvcache import CacheFormat, PlanCache, attention_of, continue_with

        ids = torch.from_numpy(window.tokens).to(next(self._model.parameters()).device).unsqueeze(0)
        with attention_of(self._model):
            read = self._read(weights, window, ids[:, : window.prefix])
            formats = [
                CacheFormat(**kv[layer].to_dict()) if layer in kv else None for layer in range(len(read.keys))
            ]
            cache = PlanCache.from_prefill(read, formats)
            return continue_with(self._model, cache, ids[:, window.prefix : -1])[0]

    def _read(self, weights: str, window: Window, ids: Tensor) -> Prefilled:
        from tightfit.compress.kvcache import prefill

        key = weights, digest_windows([window])
        with self._lock:
            if key in self._kept:
                return self._kept[key]
        read = prefill(self._model, ids)
        with self._lock:
            # What other weights left behind will hardly be wanted again.
            for other in [other for other in self._kept if other[0] != weights]:
                del self._kept[other]
            # The first ones stay: windows are measured in turn, so the oldest is the next to be wanted.
            if sum(each.nbytes for each in self._kept.values()) + read.nbytes <= self._cap:
                self._kept[key] = read
        return read
