"""Models that continue on a compressed cache: against plain forwards, chunks against single tokens."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen3Config,
)

from tightfit.compress.kvcache import CacheFormat, PlanCache, attention_of, continue_with, prefill

COMMON: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
CONFIGS = {
    "llama": LlamaConfig(**COMMON),
    "qwen3": Qwen3Config(**COMMON),
    "mistral": MistralConfig(**COMMON, sliding_window=48),
    "gemma2": Gemma2Config(**COMMON, sliding_window=40, query_pre_attn_scalar=20, attn_logit_softcapping=3.0),
    "gemma3": Gemma3TextConfig(
        **COMMON, sliding_window=40, layer_types=["sliding_attention", "full_attention"] * 2
    ),
    "gpt2": GPT2Config(vocab_size=61, n_embd=64, n_head=2, n_layer=4, initializer_range=0.2),
}
PROMPT, CONTINUATION = 90, 60

CHANNEL = CacheFormat(4, 3, residual=16)
BLOCK = CacheFormat(4, 8, layout="block", residual=0, sinks=0)
TOKEN = CacheFormat(8, 4, layout="token", residual=5, sinks=2)
SPREAD = CacheFormat(3, 16, spread=True, residual=8)
SHARED = CacheFormat(shared=True)
PLANS: dict[str, list[CacheFormat | None]] = {
    "whole": [CHANNEL, BLOCK, TOKEN, CacheFormat(2, 5, residual=0, sinks=0)],
    "evicted": [
        CacheFormat(16, 4, keep=0.3, residual=4),
        CacheFormat(keep=0.1, residual=0),
        CacheFormat(8, 8, keep=0.2, layout="block", residual=3),
        SPREAD,
    ],
    "cut off": [
        CacheFormat(cutoff=True),
        CacheFormat(4, 4, cutoff=True, residual=8),
        CacheFormat(8, 8, layout="token", cutoff=True, sinks=0, residual=3),
        None,
    ],
    "shared": [CHANNEL, SHARED, SHARED, CacheFormat()],
}


@cache
def model_of(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
    return model.to(dtype)


@cache
def ids(batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 61, (batch, PROMPT + CONTINUATION), generator=generator)


@torch.no_grad()
def plain(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    logits: Tensor = model(tokens, use_cache=False).logits
    return logits


def continued(model: PreTrainedModel, formats: list[CacheFormat | None], size: int | None = None) -> Tensor:
    """Logits of the continuation, in pieces of so many tokens."""
    plan = PlanCache.from_prefill(prefill(model, ids()[:, :PROMPT]), formats)
    rest = ids()[:, PROMPT:]
    return torch.cat([continue_with(model, plan, piece) for piece in rest.split(size or CONTINUATION, 1)], 1)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_cache_that_compresses_nothing_is_the_plain_forward(name: str) -> None:
    model = model_of(name)
    expected = plain(model, ids())
    state = prefill(model, ids()[:, :PROMPT])
    torch.testing.assert_close(state.logits, expected[:, PROMPT - 1], atol=1e-5, rtol=0)
    torch.testing.assert_close(continued(model, [None] * 4), expected[:, PROMPT:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_16_bits_change_next_to_nothing(name: str) -> None:
    model = model_of(name)
    expected = plain(model, ids())[:, PROMPT:]
    torch.testing.assert_close(continued(model, [CacheFormat()] * 4), expected, atol=1e-2, rtol=0)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gemma3"])
def test_many_tokens_at_once_are_one_token_at_a_time(name: str, plan: str) -> None:
    if plan == "shared" and name.startswith("gemma"):
        pytest.skip("neighbours differ in their window")
    # In 64 bits, since the last bit of 32 would decide now and then how a key is rounded to 16 bits.
    model = model_of(name, torch.float64)
    tolerance = 1e-4 if name == "gemma2" else 1e-7  # its softmax is in 32 bits nevertheless
    one = continued(model, PLANS[plan], 1)
    for size in (CONTINUATION, 7):
        torch.testing.assert_close(continued(model, PLANS[plan], size), one, atol=tolerance, rtol=0)


def test_a_shared_layer_attends_to_what_the_layer_below_holds() -> None:
    # A layer whose key and value projections are those of the layer below, and whose input is too.
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"]).eval()
    with torch.no_grad():
        first, second = model.model.layers[:2]
        second.self_attn.load_state_dict(first.self_attn.state_dict())
        second.input_layernorm.load_state_dict(first.input_layernorm.state_dict())
        first.self_attn.o_proj.weight.zero_()
        first.mlp.down_proj.weight.zero_()
    shared = PlanCache.from_prefill(prefill(model, ids()[:, :PROMPT]), [None, SHARED, None, None])
    logits = continue_with(model, shared, ids()[:, PROMPT:])
    torch.testing.assert_close(logits, plain(model, ids())[:, PROMPT:], atol=1e-5, rtol=0)
    assert shared.layer_bytes[1] == 0
    # And it is that layer's cache that is read: another second layer of the prompt changes nothing.
    other = prefill(model, ids()[:, :PROMPT])
    other.keys[1].zero_()
    again = continue_with(model, PlanCache.from_prefill(other, [None, SHARED, None, None]), ids()[:, PROMPT:])
    assert torch.equal(again, logits)


@pytest.mark.parametrize("plan", PLANS)
def test_generating_is_choosing_the_likeliest_token_each_time(plan: str) -> None:
    model, prompt = model_of("llama", torch.float64), ids()[:, :PROMPT]
    state = prefill(model, prompt)
    first = state.logits.argmax(-1, keepdim=True)
    with attention_of(model):
        text = model.generate(  # type: ignore[operator]
            torch.cat([prompt, first], 1),
            cache=PlanCache.from_prefill(state, PLANS[plan]),
            max_new_tokens=20,
            do_sample=False,
        )
    expected, plan_cache, token = [first], PlanCache.from_prefill(state, PLANS[plan]), first
    for _ in range(20):
        token = continue_with(model, plan_cache, token)[:, -1].argmax(-1, keepdim=True)
        expected.append(token)
    assert torch.equal(text[:, PROMPT:], torch.cat(expected, 1))


def test_beam_search_reorders_the_cache() -> None:
    model, prompt = model_of("llama", torch.float64), ids()[:1, :PROMPT].expand(3, -1)
    mixed = PLANS["evicted"]
    state = prefill(model, prompt)
    cache_of = PlanCache.from_prefill(state, mixed)
    logits = continue_with(model, cache_of, ids(3)[:, :20])
    cache_of.reorder_cache(torch.tensor([2, 0, 2]))
    again = continue_with(model, cache_of, ids(3)[[2, 0, 2], 20:40])
    straight = continue_with(model, PlanCache.from_prefill(state, mixed), ids(3)[[2, 0, 2], :40])
    torch.testing.assert_close(again, straight[:, 20:], atol=1e-7, rtol=0)
    assert logits.shape == (3, 20, 61)


def test_threads_side_by_side_give_what_they_give_alone() -> None:
    model = model_of("mistral")
    plans = [PLANS["whole"], PLANS["evicted"], PLANS["cut off"]]
    alone = [continued(model, plan, 5) for plan in plans]
    together: dict[int, Tensor] = {}

    def work(index: int) -> None:
        together[index] = continued(model, plans[index], 5)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    with attention_of(model):
        expected = plain(model, ids())
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(torch.equal(together[index], alone[index]) for index in range(3))
    assert torch.equal(expected, plain(model, ids()))


def test_bfloat16_stays_bfloat16() -> None:
    model = model_of("llama", torch.bfloat16)
    plain_cache, floats = continued(model, [None] * 4), continued(model, [CacheFormat()] * 4)
    assert torch.equal(plain_cache, floats)
    eight = continued(model, [CacheFormat(8, 8)] * 4)
    assert eight.dtype == torch.bfloat16
    torch.testing.assert_close(eight, floats, atol=0.1, rtol=0)
    state = prefill(model, ids()[:, :PROMPT])
    tensors = PlanCache.from_prefill(state, [CacheFormat(8, 8)] * 4).layers[0].tensors()
    assert tensors["keys.sinks"].dtype == tensors["keys.tail"].dtype == torch.bfloat16
    assert tensors["keys.scales"].dtype == tensors["keys.minima"].dtype == torch.float16


def test_the_model_is_as_before_afterwards() -> None:
    for name, before in (("llama", "sdpa"), ("gemma2", "eager")):
        model = model_of(name)
        assert model.config._attn_implementation == before
        with attention_of(model), attention_of(model):
            inside = plain(model, ids())
            assert model.config._attn_implementation != before
        assert model.config._attn_implementation == before
        assert torch.equal(inside, plain(model, ids()))


def test_a_cache_outside_of_its_context_is_refused() -> None:
    model = model_of("llama")
    plan = PlanCache.from_prefill(prefill(model, ids()[:, :PROMPT]), [None] * 4)
    with pytest.raises(RuntimeError, match="attention_of"), torch.no_grad():
        model(ids()[:, PROMPT:], cache=plan)


def test_models_that_cannot_work_are_refused() -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match="sdpa or eager"):
        prefill(model, ids())
    with pytest.raises(ValueError, match="at least one token"):
        prefill(model_of("llama"), ids()[:, :0])
