from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tightfit.spaces import (
    Attention,
    Geometry,
    InputError,
    KvOption,
    Load,
    get_target,
    kv_bytes,
    longest_context,
    overhead_bytes,
    prefill_bytes,
    read_geometry,
)

# One layer in three attends in full, the others over 100 tokens. Heads are 10 wide,
# which is neither hidden / heads (16) nor any other size in the config.
SLIDING = {
    "model_type": "gemma3_text",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "sliding_window": 100,
    "sliding_window_pattern": 3,
}


@pytest.mark.parametrize(
    ("context", "batch", "size"),
    [
        # keys and values × KV heads × head width × tokens × 2 bytes, layer by layer
        (50, 1, 2 * 2 * 10 * (50 + 50 + 50) * 2),
        (100, 1, 2 * 2 * 10 * (100 + 100 + 100) * 2),
        (1000, 1, 2 * 2 * 10 * (100 + 100 + 1000) * 2),
        (1000, 4, 4 * 2 * 2 * 10 * (100 + 100 + 1000) * 2),
        (1, 1, 240),
    ],
)
def test_cache_is_counted_by_head_width_and_capped_at_each_window(
    context: int, batch: int, size: int
) -> None:
    assert kv_bytes(read_geometry(SLIDING), Load(context, batch)) == size


def test_head_width_is_the_configs_own_not_hidden_by_heads() -> None:
    wide = read_geometry({**SLIDING, "head_dim": 40})
    assert kv_bytes(wide, Load(1000)) == 4 * kv_bytes(read_geometry(SLIDING), Load(1000))


def test_a_cache_does_not_depend_on_the_base_dtype(llama: Callable[..., Geometry]) -> None:
    size = 3 * 2 * 2 * 16 * 64 * 2
    assert kv_bytes(llama(dtype="float32"), Load(64)) == kv_bytes(llama(), Load(64)) == size


def test_seventy_billion_weights_need_a_third_of_a_mebibyte_per_token(llama_70b_geometry: Geometry) -> None:
    assert kv_bytes(llama_70b_geometry, Load(1)) == 327_680


@pytest.mark.parametrize(("context", "batch"), [(0, 1), (1, 0), (-5, 1)])
def test_an_empty_cache_is_refused(llama: Callable[..., Geometry], context: int, batch: int) -> None:
    with pytest.raises(InputError, match=rf"context \({context}\) and batch \({batch}\)"):
        kv_bytes(llama(), Load(context, batch))


# A model's caches with options


LAYERS = (Attention(2, 64), Attention(1, 32, window=100), Attention(3, 96))
"""Heads that differ in number and width, and a window."""


def several(config: dict[str, Any] | None = None, layers: Sequence[Attention] = LAYERS) -> Geometry:
    """Geometry of a model with these layers, of 700 tokens at most."""
    geometry = read_geometry({**SLIDING, **(config or {})})
    return replace(geometry, attention=tuple(layers), max_context=700)


@st.composite
def stored(draw: st.DrawFn) -> KvOption:
    """Some way to store a cache whose scales need no exotic heads."""
    layout = draw(st.sampled_from(["channel", "channel", "block", "token"]))
    bits = [4, 8, 16] if layout != "channel" else [2, 4, 16]
    k_bits, v_bits = draw(st.sampled_from(bits)), draw(st.sampled_from(bits))
    return KvOption(
        k_bits,
        v_bits,
        draw(st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.07])),
        layout,
        draw(st.sampled_from([32, 64, 128])),
        draw(st.integers(0, 70)),
        draw(st.integers(0, 20)),
        spread=layout == "channel" and k_bits < 16 and draw(st.booleans()),
        cutoff=draw(st.integers(0, 9)) == 0,
        shared=draw(st.integers(0, 9)) == 0,
    )


def test_every_layer_counts_its_own_heads_and_its_own_option() -> None:
    options = [KvOption(4, 4), KvOption(2, 2, keep=0.5), KvOption(8, 8, layout="block", residual=0, sinks=0)]
    first = 2 * (36 * 256 + 3 * (64 * 20 + 32 * 2 * 20))  # 132 tokens are 36 and 3 groups
    second = 50 * 32 * 4 + 50 * 4  # half of 100 tokens: 14 beyond sinks and residual are no group
    third = 3 * 132 * 2 * 3 * 34
    assert kv_bytes(several(), Load(132, 3), options) == 3 * (first + second + third)


def test_options_are_one_per_layer() -> None:
    with pytest.raises(ValueError, match="argument"):
        kv_bytes(several(), Load(10), [KvOption()])


def recount(layer: Attention, option: KvOption, load: Load) -> int:
    """Bytes of a batch, each token of each sequence on its own; what all have in common is kept once.

    A prefix is in common where all of it stays as it is for everybody. Single tokens are, as floats, and
    groups of tokens that are quantized together.
    """
    one = option.cache_bytes(layer, load.context)
    slides = layer.window is not None and layer.window < load.context
    if slides or option.shared or option.cutoff or option.keep < 1:
        return load.batch * one
    step = option.group if option.layout == "channel" else 1
    groups = 0
    if min(option.k_bits, option.v_bits) < 16:
        groups = max(0, load.context - option.sinks - option.residual) // step
    common = 0
    for token in range(min(load.shared_prefix, load.context)):
        group = (token - option.sinks) // step
        if token < option.sinks or group >= groups:
            common += 4 * layer.kv_heads * layer.head_dim
        elif option.sinks + (group + 1) * step <= load.shared_prefix and (token - option.sinks) % step == 0:
            # Bytes of a group: what a cache of so many more tokens takes.
            longer = replace(option, spread=False)
            held = option.sinks + option.residual
            common += longer.cache_bytes(layer, held + step) - longer.cache_bytes(layer, held)
            common += layer.kv_heads * layer.head_dim // 2 if option.spread and group == 0 else 0
    return load.batch * one - (load.batch - 1) * common


@given(
    option=stored(),
    context=st.sampled_from([1, 7, 512]) | st.integers(1, 600),
    batch=st.sampled_from([1, 2, 3, 16]),
    share=st.floats(0, 1),
    layer=st.sampled_from([*LAYERS, Attention(2, 64, window=1000)]),
)
def test_a_common_prefix_is_stored_once(
    option: KvOption, context: int, batch: int, share: float, layer: Attention
) -> None:
    load = Load(context, batch, round(share * context))
    assert load.layer_bytes(layer, option) == recount(layer, option, load)


@given(option=stored(), context=st.integers(1, 600), batch=st.integers(1, 5))
def test_sequences_that_are_the_same_take_the_room_of_one(option: KvOption, context: int, batch: int) -> None:
    assume(option.keep == 1 and not option.cutoff)
    layer, one = LAYERS[0], Load(context).layer_bytes(LAYERS[0], option)
    assert Load(context, batch, context).layer_bytes(layer, option) == one
    assert Load(context, batch).layer_bytes(layer, option) == batch * one


def test_a_plain_prefix_is_counted_by_the_token() -> None:
    assert Load(512, 4, 100).layer_bytes(Attention(2, 64), KvOption()) == (100 + 4 * 412) * 2 * 256
    # 100 tokens are 4 sinks and 3 groups of 32; the other 11 groups and 32 + 28 floats are everybody's own.
    own = 11 * (64 * 20 + 32 * 2 * 20) + 60 * 256
    common = 3 * (64 * 20 + 32 * 2 * 20) + 4 * 256
    assert Load(512, 4, 100).layer_bytes(Attention(2, 64), KvOption(4, 4)) == 2 * (common + 4 * own)
    # Nobody knows what everybody evicts.
    evicting = KvOption(4, 4, keep=0.5)
    assert Load(512, 4, 100).layer_bytes(Attention(2, 64), evicting) == Load(512, 4).layer_bytes(
        Attention(2, 64), evicting
    )


@pytest.mark.parametrize("prefix", [-1, 65])
def test_a_prefix_longer_than_the_context_is_refused(prefix: int) -> None:
    with pytest.raises(InputError, match=rf"shared prefix \({prefix}\) must be from 0 to the context \(64\)"):
        Load(64, 2, prefix)


# The longest context


@settings(max_examples=60, deadline=None)
@given(
    options=st.lists(stored(), min_size=3, max_size=3),
    batch=st.sampled_from([1, 3]),
    prefix=st.sampled_from([0, 0, 50, 300]),
    share=st.floats(0, 1.1),
)
def test_the_longest_context_is_the_last_before_one_does_not_fit(
    options: list[KvOption], batch: int, prefix: int, share: float
) -> None:
    geometry = several()
    held = [
        kv_bytes(geometry, Load(context, batch, min(prefix, context)), options) for context in range(1, 701)
    ]
    size = int(share * max(held))
    found = next((context for context, held_then in enumerate(held) if held_then > size), 700)
    assert longest_context(geometry, size, batch, prefix, options) == found


def test_a_context_fits_only_if_every_shorter_one_does() -> None:
    layer = [Attention(1, 64)]
    option = KvOption(2, 2, residual=0, sinks=0, group=128)
    geometry = several(layers=layer)
    full, coded = 127 * 256, 64 * 36 + 128 * 20
    assert kv_bytes(geometry, Load(127), [option]) == full
    assert kv_bytes(geometry, Load(128), [option]) == coded < full
    assert longest_context(geometry, full, options=[option]) == 128 + (full - coded) // 256 == 236
    assert longest_context(geometry, full - 1, options=[option]) == 126


def test_nothing_fits_into_nothing_and_everything_into_enough() -> None:
    assert longest_context(several(), 0) == longest_context(several(), -5) == 0
    assert longest_context(several(), 10**12, batch=8) == 700


def test_long_contexts_are_found_without_trying_them_all(llama_70b_geometry: Geometry) -> None:
    plain = longest_context(llama_70b_geometry, 20 * 2**30)
    assert plain == 20 * 2**30 // 327_680 == 65_536
    # A third with 4 bits and scales, a third evicting, a third untouched
    options = [KvOption(4, 4, group=128), KvOption(keep=0.3), KvOption()] * 26 + [KvOption(2, 2)] * 2
    found = longest_context(llama_70b_geometry, 20 * 2**30, options=options)
    assert kv_bytes(llama_70b_geometry, Load(found), options) <= 20 * 2**30
    assert kv_bytes(llama_70b_geometry, Load(found + 1), options) > 20 * 2**30


# Beside the cache


def test_while_a_prompt_is_read_its_cache_is_whole_and_in_the_models_own_numbers() -> None:
    values = 2 * (2 * 64 + 1 * 32 + 3 * 96)
    assert prefill_bytes(several({"dtype": "float32"}), Load(500, 4)) == values * 4 * 500 * 4
    assert prefill_bytes(several({"dtype": "bfloat16"}), Load(500, 4, 100)) == values * (100 + 4 * 400) * 2


@pytest.mark.parametrize(("context", "batch"), [(4096, 1), (4096, 5), (100, 1), (100, 700)])
def test_overhead_is_that_of_its_formula(llama: Callable[..., Geometry], context: int, batch: int) -> None:
    geometry, load = llama(), Load(context, batch)
    rows = 64 + 32 + 32 + 64 + 192 + 192 + 64  # q, k, v, o, gate, up, down
    for name, chunk in (("llama.cpp", 512), ("vllm", 2048)):
        tokens = max(batch, min(chunk, context))
        size = tokens * (2 * 64 + rows) * 4 + batch * 320 * 4
        assert overhead_bytes(geometry, load, get_target(name)) == size
    # One token of every sequence at once; scores, the largest matrix and a layer's cache are written out.
    size = batch * (2 * 64 + rows) * 4 + batch * 320 * 4 + batch * 4 * context * 4
    size += 64 * 192 * 2 + 2 * 2 * 16 * context * batch * 2
    assert overhead_bytes(geometry, load, get_target("any")) == size
