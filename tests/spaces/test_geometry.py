from __future__ import annotations

from collections.abc import Callable

import pytest

from tightfit.spaces import EMBED, HEAD, Geometry, InputError, read_geometry


def test_sites_come_in_depth_order_under_the_same_names_in_every_llama_shaped_family(
    llama: Callable[..., Geometry],
) -> None:
    sites = [linear.site for linear in llama(num_hidden_layers=1).linears]
    attention = [f"layers.0.attn.{name}_proj" for name in "qkvo"]
    assert sites == [EMBED, *attention, *(f"layers.0.mlp.{x}_proj" for x in ("gate", "up", "down")), HEAD]


def test_a_tied_head_owns_nothing(llama: Callable[..., Geometry]) -> None:
    tied, untied = llama(), llama(tie_word_embeddings=False)
    assert tied.linear(HEAD).tied_to == EMBED
    assert untied.linear(HEAD).tied_to is None
    assert untied.parameters - tied.parameters == 320 * 64


def test_gpt2_names_both_projections_apart() -> None:
    geometry = read_geometry({"model_type": "gpt2", "n_layer": 1, "n_embd": 48, "n_head": 6})
    assert [linear.module for linear in geometry.linears] == [
        "embed", "c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "head",
    ]  # fmt: skip


def test_parameters_count_biases_and_norms_and_tied_weights_once(llama: Callable[..., Geometry]) -> None:
    block = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 192
    biases = 64 + 32 + 32 + 64
    assert llama(attention_bias=True).parameters == 320 * 64 + 3 * (block + biases) + 7 * 64
    assert llama(attention_bias=True).other == 7 * 64


def test_digest_tells_shapes_apart(llama: Callable[..., Geometry]) -> None:
    assert llama().digest() == llama().digest()
    assert len({llama().digest(), llama(sliding_window=9).digest()}) == 1  # Llama has no window
    assert llama().digest() != llama(num_key_value_heads=1).digest()
    assert llama().digest() != llama(dtype="float32").digest()


def test_unknown_site_is_refused_with_the_nearest(llama: Callable[..., Geometry]) -> None:
    with pytest.raises(InputError, match=r"'layers\.0\.attn\.qproj'.*'layers\.0\.attn\.q_proj'"):
        llama().linear("layers.0.attn.qproj")
