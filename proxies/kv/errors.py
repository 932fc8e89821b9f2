"""What storing a layer's cache does to its keys, its values, and what attention makes of both.

Keys and values of equal error do not harm equally: softmax magnifies errors of keys where attention is
concentrated, and averages errors of values where it is spread. The error of attention's output weights them
as attention does. KVTuner (Li et al., *KVTuner: Sensitivity-Aware Layer-Wise Mixed-Precision KV Cache
Quantization for Efficient and Nearly Lossless LLM Inference*, ICML 2025, arXiv:2502.04420) ranks precision
pairs of layers by such errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tightfit.proxies.kv.attention import Prefill, head_weights, visible
from tightfit.spaces.kv import KvOption


@dataclass(frozen=True, eq=False)
class Stored:
    """A layer's cache, read back as floats.

    Attributes:
        keys, values: (batch, kv_heads, kept, width).
        positions: which of the tokens that the prompt left in the layer they are, int64 (batch, kv_heads,
            kept), rising; None where all are kept.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor | None = None


Store = Callable[[int, KvOption], Stored]
"""Stores the cache of a layer under an option and reads it back."""


@dataclass(frozen=True)
class CacheError:
    """Relative squared errors of one layer under one option.

    Attributes:
        key, value: ‖X − X'‖² / ‖X‖² over the tokens that are kept.
        output: ‖softmax(qKᵀ)V − softmax(qK'ᵀ)V'‖² / ‖softmax(qKᵀ)V‖² over the last queries, evicted tokens
            missing from the second term.
    """

    key: float
    value: float
    output: float


def error_table(
    prefill: Prefill, options: Sequence[Sequence[KvOption]], store: Store
) -> list[list[CacheError]]:
    """Measure every option of every layer.

    Args:
        prefill: a prompt's states.
        options: of every layer.
        store: stores that prompt's cache.
    """
    return [
        [cache_error(prefill, layer, store(layer, option)) for option in offered]
        for layer, offered in enumerate(options)
    ]


def cache_error(prefill: Prefill, layer: int, stored: Stored) -> CacheError:
    """Measure what a layer's stored cache has lost.

    Args:
        prefill: a prompt's states, before storing.
        layer: index of the decoder block.
        stored: that layer's cache, read back.
    """
    keys, values = prefill.keys[layer], prefill.values[layer]
    queries, scaling, window = prefill.queries[layer], prefill.scalings[layer], prefill.windows[layer]
    wanted = attention_output(queries, keys, values, scaling, window)
    got = attention_output(
        queries, stored.keys, stored.values, scaling, window, stored.positions, keys.shape[2]
    )
    return CacheError(
        relative_error(_kept(keys, stored.positions), stored.keys),
        relative_error(_kept(values, stored.positions), stored.values),
        relative_error(wanted, got),
    )


def attention_output(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    window: int | None = None,
    positions: Tensor | None = None,
    tokens: int | None = None,
) -> Tensor:
    """Output of attention for the last queries, before its output projection.

    Args:
        queries: (batch, heads, observed, width), of the last positions.
        keys: (batch, kv_heads, kept, width).
        values: the same.
        scaling: factor of the attention logits.
        window: sliding window of the layer.
        positions: of the kept tokens, int64 (batch, kv_heads, kept); None where all are kept.
        tokens: that there were; needed with positions.

    Returns:
        float32, (batch, kv_heads, heads / kv_heads, observed, width); zeros for a query that sees nothing
        any more.
    """
    batch, kv_heads, kept, width = values.shape
    total = kept if tokens is None else tokens
    observed = min(queries.shape[2], total)
    shape = (batch, kv_heads, queries.shape[1] // kv_heads, observed, width)
    outputs = torch.empty(shape, dtype=torch.float32, device=values.device)
    if positions is None:
        for sequence, head, weights in head_weights(queries, keys, scaling, window):
            outputs[sequence, head] = weights @ values[sequence, head].float()
        return outputs
    recent = queries[:, :, -observed:].reshape(batch, kv_heads, -1, observed, queries.shape[3])
    seen = visible(observed, total, window).to(keys.device)
    for sequence in range(batch):
        for head in range(kv_heads):
            logits = recent[sequence, head].float() @ keys[sequence, head].float().t() * scaling
            hidden = ~seen[:, positions[sequence, head]]
            weights = logits.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
            outputs[sequence, head] = weights @ values[sequence, head].float()
    return outputs


def relative_error(exact: Tensor, approximate: Tensor) -> float:
    """‖x − x'‖² / ‖x‖², in float64; 0 where both are zero, infinite where only x is."""
    difference = (exact.double() - approximate.double()).square().sum().item()
    norm = exact.double().square().sum().item()
    if norm == 0:
        return 0.0 if difference == 0 else float("inf")
    return difference / norm


def _kept(states: Tensor, positions: Tensor | None) -> Tensor:
    if positions is None:
        return states
    return states.gather(2, positions.unsqueeze(-1).expand(-1, -1, -1, states.shape[3]))
