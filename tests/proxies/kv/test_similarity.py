from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from tightfit.proxies.kv.similarity import block_paths, block_similarity
from tightfit.spaces import InputError, read_geometry

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "initializer_range": 0.3}
SHAPED_LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
FAMILIES = {**dict.fromkeys(SHAPED_LIKE_LLAMA, SIZES), "gpt2": GPT2}
WINDOWS = [torch.arange(2, 13), torch.arange(20, 27)]


def build(name: str) -> tuple[nn.Module, Any]:
    config = AutoConfig.for_model(name, **FAMILIES[name])
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    return model, read_geometry(config.to_dict())


def mean_cosine(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    rows = [
        torch.nn.functional.cosine_similarity(a, b, dim=-1).reshape(-1)
        for a, b in zip(before, after, strict=True)
    ]
    return torch.cat(rows).mean().item()


@pytest.mark.parametrize("family", FAMILIES)
def test_block_cosines_are_those_of_the_hidden_states(family):
    model, geometry = build(family)
    found = block_similarity(model, geometry, WINDOWS)
    states = [model(input_ids=ids[None], output_hidden_states=True).hidden_states for ids in WINDOWS]
    for layer in range(2):  # the last of Transformers' hidden states is normalized
        expected = mean_cosine([x[layer] for x in states], [x[layer + 1] for x in states])
        assert found.block[layer] == pytest.approx(expected, abs=1e-5)
    assert ((found.block <= 1) & (found.attention <= 1) & (found.block != found.attention)).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_that_adds_nothing_has_cosine_one(family):
    model, geometry = build(family)
    block = model.get_submodule(block_paths(geometry)[1])
    values = block.attn.c_attn if family == "gpt2" else block.self_attn.v_proj
    for parameter in values.parameters():
        parameter.zero_()
    found = block_similarity(model, geometry, WINDOWS)
    assert found.attention[1] == pytest.approx(1, abs=1e-12)
    assert found.attention[[0, 2]].max() < 1
    assert found.block[1] < 1


def test_hooks_are_gone_afterwards():
    model, geometry = build("llama")
    block_similarity(model, geometry, WINDOWS)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_windows_count_by_their_tokens():
    model, geometry = build("llama")
    both, one, other = (block_similarity(model, geometry, x) for x in (WINDOWS, WINDOWS[:1], WINDOWS[1:]))
    np.testing.assert_allclose(both.attention, (11 * one.attention + 7 * other.attention) / 18)


def test_no_windows():
    model, geometry = build("llama")
    with pytest.raises(InputError, match="at least one window"):
        block_similarity(model, geometry, [])
