"""Inputs rounded as llama.cpp rounds them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tightfit.compress.activations import (
    round_blocks_of_32,
    round_blocks_of_256,
    round_to_bfloat16,
    round_to_half,
    rounded_inputs,
    rounding_of,
)
from tightfit.spaces import GGML_TYPES, GgmlOption, WeightOption, read_geometry

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}


def test_blocks_of_256_by_hand() -> None:
    x = torch.zeros(256)
    x[:4] = torch.tensor([-254.0, 100.0, 3.1, 1.0])
    # The largest, −254, becomes −127: the scale is 2, and 1 lies between 0 and 2, which rounds to even.
    assert round_blocks_of_256(x)[:5].tolist() == [-254.0, 100.0, 4.0, 0.0, 0.0]
    x[0] = 254.0
    assert round_blocks_of_256(x)[:5].tolist() == [254.0, 100.0, 4.0, 0.0, 0.0]


def test_blocks_of_32_by_hand() -> None:
    x = torch.zeros(64)
    x[:3], x[32] = torch.tensor([-12.7, 0.16, 0.04]), 127.0
    scale = float(np.float16(0.1))
    assert round_blocks_of_32(x)[[0, 1, 2, 32]].tolist() == pytest.approx(
        [-127 * scale, 2 * scale, 0.0, 127.0]
    )


@pytest.mark.parametrize(("rounding", "block"), [(round_blocks_of_256, 256), (round_blocks_of_32, 32)])
def test_errors_are_at_most_half_a_step_and_zeros_stay(rounding: object, block: int) -> None:
    assert callable(rounding)
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 5, 512)).astype(np.float32))
    x[0, 0] = 0
    error = (rounding(x) - x).view(3, 5, -1, block).abs()
    step = x.view(3, 5, -1, block).abs().amax(-1, keepdim=True) / 127
    assert bool((error <= 0.5 * step + 0.1 * step).all())  # a 16-bit scale adds up to 127 · 2⁻¹² steps
    assert not rounding(x)[0, 0].any()


def test_every_type_has_its_rounding_and_no_other_format_has_one() -> None:
    floats = {"F32": None, "F16": round_to_half, "BF16": round_to_bfloat16}
    for name in GGML_TYPES:
        option = GgmlOption(name)
        by_block = {256: round_blocks_of_256, 32: round_blocks_of_32}
        expected = by_block[option.block] if option.quantized else floats[name]
        assert rounding_of(option) is expected
    assert rounding_of(WeightOption(4, 32)) is None


def test_inputs_are_rounded_only_where_and_while_asked_for() -> None:
    model = nn.ModuleDict({"model": nn.Module(), "lm_head": nn.Linear(256, 64, bias=False)})
    geometry = read_geometry(CONFIG)
    for linear in geometry.linears:
        if linear.layer is not None:
            _place(model, linear.path, nn.Linear(linear.cols, linear.rows, bias=False))
    query = model.get_submodule("model.layers.0.self_attn.q_proj")
    key = model.get_submodule("model.layers.0.self_attn.k_proj")
    x = torch.from_numpy(np.random.default_rng(3).normal(size=(2, 256)).astype(np.float32))
    plain, rounded = query.weight @ x.T, query.weight @ round_blocks_of_256(x).T
    options = {"layers.0.attn.q_proj": GgmlOption("Q4_K"), "layers.0.attn.k_proj": GgmlOption("F32")}
    with torch.no_grad(), rounded_inputs(model, geometry, options):
        torch.testing.assert_close(query(x), rounded.T)
        torch.testing.assert_close(key(x), (key.weight @ x.T).T)
        torch.testing.assert_close(model["lm_head"](x), (model["lm_head"].weight @ x.T).T)
    assert (plain - rounded).abs().max() > 1e-4
    torch.testing.assert_close(query(x), plain.T)
    with torch.no_grad(), rounded_inputs(model, geometry, {"embed": GgmlOption("Q8_0")}):
        tied = model["lm_head"](x)  # multiplies with the embedding's type
    torch.testing.assert_close(tied, (model["lm_head"].weight @ round_blocks_of_32(x).T).T)


def _place(model: nn.Module, path: str, module: nn.Module) -> None:
    *parents, name = path.split(".")
    for part in parents:
        if part not in dict(model.named_children()):
            model.add_module(part, nn.Module())
        model = model.get_submodule(part)
    model.add_module(name, module)
