"""Where the last queries of a prompt look: the attention that every cached token gets from them.

Tokens that the end of a prompt attends to are those that its continuation attends to as well (Li et al.,
*SnapKV: LLM Knows What You Are Looking for Before Generation*, 2024, arXiv:2404.14469), so a few queries
stand for all that come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from tightfit.compress.kvcache.eviction import attention_scores


class Prefill(Protocol):
    """What a prompt left behind, one entry per layer.

    Attributes:
        keys, values: (batch, kv_heads, tokens, width), as the cache holds them; of a layer with a sliding
            window perhaps only the last tokens.
        queries: (batch, heads, observed, width), of the last positions of the prompt.
        windows: sliding window, or None.
        scalings: factor of the attention logits.
    """

    @property
    def keys(self) -> Sequence[Tensor]: ...  # noqa: D102
    @property
    def values(self) -> Sequence[Tensor]: ...  # noqa: D102
    @property
    def queries(self) -> Sequence[Tensor]: ...  # noqa: D102
    @property
    def windows(self) -> Sequence[int | None]: ...  # noqa: D102
    @property
    def scalings(self) -> Sequence[float]: ...  # noqa: D102


def visible(queries: int, tokens: int, window: int | None) -> Tensor:
    """Which tokens each of the last queries may attend to, shape (queries, tokens), bool.

    A query sees itself and what came before it, in a sliding window the last ``window`` tokens of that.
    """
    back = torch.arange(tokens - queries, tokens).unsqueeze(-1) - torch.arange(tokens)
    seen = back >= 0
    return seen if window is None else seen & (back < window)


def head_weights(
    queries: Tensor, keys: Tensor, scaling: float, window: int | None
) -> Iterator[tuple[int, int, Tensor]]:
    """Attention weights of one sequence and KV head after the other, so that little memory is needed.

    Softmax is in float32 over those of the tokens that a query sees, with no soft cap on the logits. Keys
    may be fewer than queries where a window is short; queries older than all of them are left out.

    Args:
        queries: (batch, heads, observed, width), of the last positions.
        keys: (batch, kv_heads, tokens, width), of the last positions.
        scaling: factor of the attention logits.
        window: sliding window of the layer.

    Yields:
        Sequence, KV head, and float32 weights of its query heads, shape (heads / kv_heads, observed,
        tokens); every row sums to 1.
    """
    batch, kv_heads, tokens, width = keys.shape
    recent = queries[:, :, -min(queries.shape[2], tokens) :]
    grouped = recent.reshape(batch, kv_heads, -1, recent.shape[2], width)
    hidden = ~visible(recent.shape[2], tokens, window).to(keys.device)
    for sequence in range(batch):
        for head in range(kv_heads):
            logits = grouped[sequence, head].float() @ keys[sequence, head].float().t() * scaling
            yield sequence, head, logits.masked_fill(hidden, -torch.inf).softmax(-1)


def attention_mass(queries: Tensor, keys: Tensor, scaling: float, window: int | None = None) -> Tensor:
    """Attention that each token gets from the last queries, averaged over them and a KV head's query heads.

    Args:
        queries: (batch, heads, observed, width), of the last positions.
        keys: (batch, kv_heads, tokens, width), of the last positions.
        scaling: factor of the attention logits.
        window: sliding window of the layer.

    Returns:
        float32, shape (batch, kv_heads, tokens); sums to 1 over tokens.
    """
    held = keys.shape[2]
    return attention_scores(queries[:, :, -held:], keys, scaling, held, window)


def prefill_masses(prefill: Prefill) -> list[Tensor]:
    """Attention mass of every layer of a prompt, each of shape (batch, kv_heads, tokens)."""
    layers = zip(prefill.queries, prefill.keys, prefill.scalings, prefill.windows, strict=True)
    return [attention_mass(*layer) for layer in layers]
