"""Which tokens of a prompt to keep: those that its last queries attend to.

The scores are SnapKV's (Li et al., *SnapKV: LLM Knows What You Are Looking for Before Generation*, NeurIPS
2024, arXiv:2404.14469) without its pooling over neighbouring tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention_scores(
    queries: Tensor, keys: Tensor, scaling: float, tokens: int, window: int | None
) -> Tensor:
    """Return the mean attention that each key receives from the last queries of the prompt.

    Softmax is over the keys that a query sees (those before it and inside its window), in 32 bits, without
    the soft cap that some models put on attention logits; the mean is over queries and over the query heads
    of a KV head.

    Args:
        queries: (batch, heads, observed, width), of the last positions.
        keys: (batch, kv_heads, held, width), of the last positions. Where a layer with a window holds fewer
            than all its queries see, a query's attention is shared out among those that are held.
        scaling: factor of the attention logits.
        tokens: length of the prompt.
        window: sliding window of the layer.

    Returns:
        float32 (batch, kv_heads, held).
    """
    batch, _, observed, width = queries.shape
    held = keys.shape[2]
    grouped = queries.float().reshape(batch, keys.shape[1], -1, observed, width)
    logits = grouped @ keys.float().unsqueeze(2).transpose(-1, -2) * scaling
    query = torch.arange(tokens - observed, tokens, device=keys.device).unsqueeze(-1)
    key = torch.arange(tokens - held, tokens, device=keys.device)
    seen = (key <= query) if window is None else (key <= query) & (query - key < window)
    # A query far back may see none of the keys that are still held: it counts for nothing.
    weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    return weights.mean((2, 3))


def kept_tokens(scores: Tensor, count: int, sinks: int, residual: int) -> Tensor:
    """Choose ``count`` tokens of every head: sinks, the last ``residual``, then by score.

    Equal scores go to the earlier token.

    Args:
        scores: (batch, kv_heads, held).
        count: tokens to keep, at least ``min(held, sinks + residual)``.
        sinks: first tokens that always stay.
        residual: last tokens that always stay.

    Returns:
        int64 (batch, kv_heads, count), indices of tokens in rising order.
    """
    forced = scores.clone()
    forced[..., :sinks] = torch.inf
    forced[..., max(0, scores.shape[-1] - residual) :] = torch.inf
    order = forced.argsort(dim=-1, descending=True, stable=True)
    return order[..., :count].sort(-1).values
