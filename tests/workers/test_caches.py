"""Bytes of caches that are really there, against the memory formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, gcd
from typing import Any

import pytest

from tightfit.compress.kvcache import CacheFormat
from tightfit.spaces import KV_BITS, Geometry, KvOption, Load, kv_bytes, read_geometry
from tightfit.spaces.kv import KV_GROUPS
from tightfit.workers.caches import count_cache

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}
FULL = read_geometry({**SIZES, "model_type": "llama"})
MIXED = read_geometry(
    {
        **SIZES,
        "model_type": "gemma3_text",
        "sliding_window": 100,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
)
NARROW = read_geometry({**SIZES, "model_type": "mistral", "head_dim": 40, "sliding_window": 70})

OPTIONS = [
    KvOption(),
    KvOption(2, 4),
    KvOption(3, 8, group=64, residual=16, sinks=0),
    KvOption(5, 16, group=128, residual=0),
    KvOption(6, 2, spread=True, residual=8),
    KvOption(4, 4, keep=0.5),
    KvOption(4, 4, keep=0.13, residual=4, sinks=1),
    KvOption(16, 16, keep=0.7, residual=2),
    KvOption(4, 4, cutoff=True),
    KvOption(4, 5, layout="block", residual=0, sinks=0),
    KvOption(8, 16, layout="block", residual=0, sinks=0),
    KvOption(8, 8, layout="token", residual=0, sinks=0),
    KvOption(4, 8, layout="token", residual=10, sinks=3, keep=0.6),
]
CONTEXTS = (1, 5, 36, 37, 68, 69, 100, 101, 333)


def plans(geometry: Geometry) -> Iterator[dict[int, KvOption]]:
    """One option everywhere, then different ones side by side, some layers without any."""
    fitting = [option for option in OPTIONS if fits(option, geometry)]
    yield {}
    yield from (dict.fromkeys(range(geometry.layers), option) for option in fitting)
    for i in range(0, len(fitting) - 2, 3):
        yield {0: fitting[i], 2: fitting[i + 1], 3: fitting[i + 2]}
    yield {0: fitting[1], 1: fitting[2]}
    if geometry is FULL:
        yield {0: fitting[1], 1: KvOption(shared=True), 2: KvOption(shared=True)}


def fits(option: KvOption, geometry: Geometry) -> bool:
    return option.layout != "block" or geometry.attention[0].head_dim % 32 == 0


@pytest.mark.parametrize("geometry", [FULL, MIXED, NARROW], ids=["full", "mixed", "narrow"])
@pytest.mark.parametrize("batch", [1, 3])
def test_bytes_counted_from_a_cache_are_the_charged_ones(geometry: Geometry, batch: int) -> None:
    for context in CONTEXTS:
        loads = {Load(context, batch)}
        if batch > 1:
            loads |= {Load(context, batch, prefix) for prefix in {context // 3, context - 1, context}}
        for load in loads:
            for plan in plans(geometry):
                each = [plan.get(layer, KvOption()) for layer in range(geometry.layers)]
                assert count_cache(geometry, plan, load) == kv_bytes(geometry, load, each), (load, plan)


def test_plain_caches_are_counted_by_hand() -> None:
    assert count_cache(FULL, {}, Load(50, 3)) == 4 * 3 * 50 * 2 * 2 * 64 * 2
    assert count_cache(MIXED, {}, Load(150)) == (2 * 100 + 2 * 150) * 2 * 2 * 64 * 2
    # Three sequences of 50 tokens, of which the first 30 are stored once.
    assert count_cache(FULL, {}, Load(50, 3, 30)) == 4 * (30 + 3 * 20) * 2 * 2 * 64 * 2


def every_option() -> Iterator[KvOption]:
    """A grid over everything that options and cache formats have in common."""
    for layout, widths in KV_BITS.items():
        for k in widths:
            for v in widths[::2]:
                for keep, residual, sinks in ((1.0, 32, 4), (0.1, 0, 0), (0.35, 7, 2)):
                    option = KvOption(k, v, keep, layout, residual=residual, sinks=sinks)
                    yield option
                    if layout == "channel":
                        yield from (replace(option, group=group) for group in KV_GROUPS)
                        yield replace(option, cutoff=True)
                        if k < 16:
                            yield replace(option, spread=True)
    yield KvOption(shared=True)


def test_an_option_and_the_format_of_its_cache_count_the_same_tokens() -> None:
    seen = 0
    for option in every_option():
        form = CacheFormat(**option.to_dict())
        assert (form.step, form.is_quantized) == (option.step, option.quantized)
        for tokens in range(0, 400, 7):
            kept = form.kept(tokens)
            assert kept == option.kept(tokens)
            assert form.quantized(kept) == option.quantized_tokens(kept)
            seen += 1
    assert seen > 10_000


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_bytes_of_one_layer_are_those_written_out(option: KvOption) -> None:
    """The formula once more, from nothing but what a cache stores."""
    heads, width = 2, 64
    for tokens in (40, 100, 257):
        kept = tokens
        if option.keep < 1:
            kept = min(tokens, max(option.sinks + option.residual, ceil(option.keep * tokens)))
        if option.cutoff:
            kept = min(tokens, max(1, option.sinks))
        step = option.group if option.layout == "channel" else 1
        coded = max(0, kept - option.sinks - option.residual) // step * step
        coded = coded if min(option.k_bits, option.v_bits) < 16 else 0
        expected = 4 * heads * width * (kept - coded)
        for bits, keys in ((option.k_bits, True), (option.v_bits, False)):
            if bits == 16:
                expected += 2 * heads * width * coded
            elif option.layout == "token":
                expected += coded * heads * (width * bits // 8 + 4)
            elif option.layout == "block":
                expected += coded * heads * width // 32 * {8: 34, 5: 22, 4: 18}[bits]
            elif keys:
                expected += coded // option.group * heads * width * (option.group * bits // 8 + 4)
            else:
                group = gcd(option.group, width)
                expected += coded * heads * (width // group) * (group * bits // 8 + 4)
        expected += heads * width // 2 if option.spread and coded else 0
        one = replace(FULL, attention=FULL.attention[:1])
        assert count_cache(one, {0: option}, Load(tokens)) == expected
        assert option.cache_bytes(FULL.attention[0], tokens) == expected
