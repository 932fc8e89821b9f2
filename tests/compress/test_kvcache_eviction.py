"""Which tokens of a prompt stay, against scores computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tightfit.compress.kvcache import CacheFormat, PlanCache, Prefilled, continue_with, prefill
from tightfit.compress.kvcache.eviction import attention_scores, kept_tokens
from tightfit.compress.kvcache.layer import PlanLayer

TOKENS, KV_HEADS, GROUP, WIDTH, OBSERVED, SCALING = 50, 2, 3, 8, 32, 0.3


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_hand(queries: Tensor, keys: Tensor, window: int | None) -> list[list[list[float]]]:
    """Mean attention per sequence, KV head and token of the whole prompt, one query at a time."""
    result = []
    for sequence in range(queries.shape[0]):
        heads = []
        for kv_head in range(KV_HEADS):
            total = torch.zeros(TOKENS)
            for head in range(kv_head * GROUP, (kv_head + 1) * GROUP):
                for index in range(OBSERVED):
                    position = TOKENS - OBSERVED + index
                    start = 0 if window is None else max(0, position - window + 1)
                    logits = keys[sequence, kv_head, start : position + 1] @ queries[sequence, head, index]
                    total[start : position + 1] += (logits * SCALING).softmax(0)
            heads.append((total / (GROUP * OBSERVED)).tolist())
        result.append(heads)
    return result


def test_scores_are_the_mean_attention_of_the_last_queries() -> None:
    keys = randn(2, KV_HEADS, TOKENS, WIDTH, seed=0)
    queries = randn(2, KV_HEADS * GROUP, OBSERVED, WIDTH, seed=1)
    scores = attention_scores(queries, keys, SCALING, TOKENS, None)
    torch.testing.assert_close(scores, torch.tensor(by_hand(queries, keys, None)))
    # With a window of 15 tokens, its reach from the first of these queries on is enough to know them exactly.
    windowed = attention_scores(queries, keys[:, :, -(15 + 31) :], SCALING, TOKENS, 15)
    torch.testing.assert_close(windowed, torch.tensor(by_hand(queries, keys, 15))[..., -46:])
    # Where less is held, what is held gets all of the attention.
    less = attention_scores(queries, keys[:, :, -40:], SCALING, TOKENS, 15)
    assert less.shape == (2, KV_HEADS, 40)
    torch.testing.assert_close(less.sum(-1), torch.ones(2, KV_HEADS))


def test_sinks_and_recent_tokens_stay_and_ties_go_to_the_earlier() -> None:
    scores = torch.tensor([[[0.0, 0.0, 0.1, 0.3, 0.2, 0.3, 0.2, 0.0, 0.0]]])
    assert kept_tokens(scores, 4, 1, 1).tolist() == [[[0, 3, 5, 8]]]
    assert kept_tokens(scores, 5, 1, 1).tolist() == [[[0, 3, 4, 5, 8]]]
    assert kept_tokens(scores, 4, 2, 2).tolist() == [[[0, 1, 7, 8]]]
    assert kept_tokens(scores, 3, 0, 0).tolist() == [[[3, 4, 5]]]


def test_every_head_keeps_the_tokens_it_attends_to() -> None:
    keys = randn(2, KV_HEADS, TOKENS, WIDTH, seed=0)
    values = randn(2, KV_HEADS, TOKENS, WIDTH, seed=3)
    queries = randn(2, KV_HEADS * GROUP, OBSERVED, WIDTH, seed=1)
    state = Prefilled([keys], [values], [queries], [None], [SCALING], TOKENS, torch.zeros(2, 5))
    form = CacheFormat(keep=0.4, sinks=2, residual=5)
    tensors = PlanCache.from_prefill(state, [form]).layers[0].tensors()  # type: ignore[union-attr]
    scores = by_hand(queries, keys, None)
    kept = set()
    for sequence in range(2):
        for head in range(KV_HEADS):
            middle = sorted(range(2, 45), key=lambda token: -scores[sequence][head][token])[:13]
            chosen = [0, 1, *sorted(middle), *range(45, 50)]
            kept.add(tuple(chosen))
            assert torch.equal(tensors["keys.tail"][sequence, head], keys[sequence, head, chosen].half())
            assert torch.equal(tensors["values.tail"][sequence, head], values[sequence, head, chosen].half())
    assert len(kept) > 1


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("cutoff", [False, True])
def test_evicted_tokens_are_as_if_masked_and_positions_stay(window: int | None, cutoff: bool) -> None:
    """One layer, so that no other layer can tell: a plain forward with the evicted tokens masked."""
    sizes = {
        "vocab_size": 40, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.3,
    }  # fmt: skip
    torch.manual_seed(0)
    model = (
        LlamaForCausalLM(LlamaConfig(**sizes))
        if window is None
        else MistralForCausalLM(MistralConfig(**sizes, sliding_window=window))
    )
    ids = torch.randint(0, 40, (1, 60), generator=torch.Generator().manual_seed(0))
    state = prefill(model.eval(), ids[:, :TOKENS])
    form = CacheFormat(keep=0.3, sinks=3, residual=2, cutoff=cutoff)
    held = min(TOKENS, window or TOKENS)
    start = TOKENS - held
    if cutoff:
        kept = torch.arange(3)
    else:
        scores = attention_scores(state.queries[0], state.keys[0], state.scalings[0], TOKENS, window)
        kept = kept_tokens(scores[..., -held:], form.kept(held), 3, 2)[0, 0]
    seen = torch.zeros(60, dtype=torch.bool)
    seen[kept + start] = True
    seen[TOKENS:] = True
    query, key = torch.arange(60).unsqueeze(1), torch.arange(60)
    mask = (key <= query) & (query - key < (window or 60)) & (seen | (query < TOKENS))
    with torch.no_grad():
        expected = model(ids, attention_mask=mask[None, None], use_cache=False).logits[:, TOKENS:]
    cache = PlanCache.from_prefill(state, [form])
    logits = continue_with(model, cache, ids[:, TOKENS:])
    torch.testing.assert_close(logits, expected, atol=1e-2, rtol=0)  # floats of 16 bits
    with torch.no_grad():
        assert (model(ids, use_cache=False).logits[:, TOKENS:] - expected).abs().max() > 0.1
    (layer,) = cache.layers
    assert isinstance(layer, PlanLayer)
    assert (layer.positions is None) == (window is None)


def test_one_token_always_stays() -> None:
    keys = randn(1, KV_HEADS, TOKENS, WIDTH, seed=0)
    queries = randn(1, KV_HEADS * GROUP, OBSERVED, WIDTH, seed=1)
    forms = [
        CacheFormat(keep=1e-6, sinks=0, residual=0),
        CacheFormat(cutoff=True, sinks=0, residual=0),
        CacheFormat(4, 4, keep=1e-6, sinks=0, residual=0, layout="token"),
    ]
    state = Prefilled(
        [keys] * 3, [keys] * 3, [queries] * 3, [None] * 3, [SCALING] * 3, TOKENS, torch.zeros(1, 5)
    )
    for form, layer in zip(forms, PlanCache.from_prefill(state, forms).layers, strict=True):
        assert form.kept(TOKENS) == 1
        assert isinstance(layer, PlanLayer)
        assert layer.held == 1
