"""Caches outside of a search: read back as floats, or changed in ways that no option of a space describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tightfit.compress.kvcache import CacheFormat, PlanCache, Prefilled, attention_of, continue_with, prefill
from tightfit.compress.kvcache.eviction import attention_scores, kept_tokens
from tightfit.compress.kvcache.layer import PlanLayer
from tightfit.proxies.kv.errors import Stored
from tightfit.search.stages import Bench
from tightfit.spaces import KvOption
from tightfit.workers.evaluator import ReferenceWindow, add_losses, score_window
from tightfit.workers.measurement import DocumentLoss, Measurement

Change = Callable[[Prefilled, int], tuple[Tensor, Tensor]]
"""From a prompt and a layer to what is read instead: keys and values (batch, kv_heads, tokens, width)."""


def prompts(bench: Bench, split: str, count: int | None = None) -> list[Prefilled]:
    """Read the prefixes of a split's windows with the uncompressed model."""
    bench.evaluator.clear()
    model: Any = bench.evaluator.replica.model
    device = bench.evaluator.replica.device
    windows = bench.archive.windows(split)[:count]
    return [prefill(model, torch.from_numpy(w.tokens[: w.prefix]).to(device)[None]) for w in windows]


def read_back(read: Prefilled, layer: int, option: KvOption) -> Stored:
    """Store the cache of a layer under an option and read it back."""
    cache = PlanLayer(read, layer, CacheFormat(**option.to_dict()))
    nothing = read.keys[layer][:, :, :0]
    keys, values = cache.update(nothing, nothing)
    if option.keep == 1:
        return Stored(keys, values)
    queries, scaling, window = read.queries[layer], read.scalings[layer], read.windows[layer]
    scores = attention_scores(queries, read.keys[layer], scaling, read.tokens, window)
    count = option.kept(scores.shape[-1])
    return Stored(keys, values, kept_tokens(scores, count, option.sinks, option.residual))


def continued(bench: Bench, name: str, split: str, reads: Sequence[Prefilled], change: Change) -> Measurement:
    """Measure what the model loses after its prompts' caches were changed; new tokens stay as they are.

    Args:
        bench: of a run.
        name: takes the place of a plan's digest.
        split: part of the text.
        reads: of its prompts, see :func:`prompts`.
        change: what is read instead of a layer's keys and values.
    """
    windows, evaluator = bench.archive.windows(split), bench.evaluator
    model: Any = evaluator.replica.model
    documents, divergences = dict[str, DocumentLoss](), list[Tensor]()
    for window, expected, read in zip(windows, evaluator.references(windows), reads, strict=True):
        ids = torch.from_numpy(window.tokens)
        states = [change(read, layer) for layer in range(len(read.keys))]
        changed = replace(read, keys=[keys for keys, _ in states], values=[values for _, values in states])
        following = ids[window.prefix : -1].to(evaluator.replica.device)[None]
        with torch.no_grad(), attention_of(model):
            cache = PlanCache.from_prefill(changed, [None] * len(states))
            logits = continue_with(model, cache, following)[0]
        reference = ReferenceWindow(window.document, ids, expected)
        loss, divergence = score_window(torch.log_softmax(logits.float(), dim=-1), reference)
        known = documents.get(window.document)
        documents[window.document] = loss if known is None else add_losses(known, loss)
        divergences.append(divergence)
    p99 = torch.cat(divergences).quantile(0.99).item()
    return Measurement(name, split, evaluator.protocol(split, windows), tuple(documents.values()), p99, 0.0)
