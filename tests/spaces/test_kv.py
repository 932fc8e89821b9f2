from __future__ import annotations

from dataclasses import replace
from math import ceil, gcd
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tightfit.spaces import KV_BITS, KV_GROUPS, Attention, InputError, KvOption, Load

PLAIN_LAYER = Attention(kv_heads=3, head_dim=64)
BLOCK_BYTES = {8: 34, 5: 22, 4: 18}


def expected(option: KvOption, layer: Attention, context: int) -> int:
    """Bytes of one sequence, from what every token takes, summed token by token.

    The tokens kept are numbered from the oldest: sinks, quantized ones, and the rest.
    """
    if option.shared:
        return 0
    heads, width = layer.kv_heads, layer.head_dim
    tokens = context if layer.window is None else min(context, layer.window)
    kept = tokens
    if option.cutoff:
        kept = min(tokens, max(1, option.sinks))
    elif option.keep < 1:
        kept = max(1, min(tokens, max(option.sinks + option.residual, ceil(option.keep * tokens - 1e-9))))
    step = option.group if option.layout == "channel" else 1
    coded = 0
    if min(option.k_bits, option.v_bits) < 16:
        while option.sinks + coded + step + option.residual <= kept:
            coded += step
    total, group = 0.0, gcd(option.group, width)
    for token in range(kept):
        quantized = option.sinks <= token < option.sinks + coded
        for bits, keys in ((option.k_bits, True), (option.v_bits, False)):
            if not quantized or bits == 16:
                total += heads * width * 2
            elif option.layout == "block":
                total += heads * width / 32 * BLOCK_BYTES[bits]
            elif option.layout == "token":
                total += heads * (width * bits / 8 + 4)
            elif keys:
                total += heads * width * (bits / 8 + 4 / option.group)
            else:
                total += heads * (width * bits / 8 + width / group * 4)
    if option.spread and coded:
        total += heads * width / 2
    if layer.window is not None and (option.keep < 1 or option.cutoff):
        total += 4 * heads * kept
    assert total == int(total)
    return int(total)


@st.composite
def options(draw: st.DrawFn) -> KvOption:
    """Any option whose name says everything about it."""
    if draw(st.integers(0, 15)) == 0:
        return KvOption(shared=True)
    layout = draw(st.sampled_from(list(KV_BITS)))
    k_bits, v_bits = (draw(st.sampled_from(KV_BITS[layout])) for _ in range(2))
    cutoff = draw(st.booleans())
    keep = 1.0 if cutoff else draw(st.sampled_from([1.0, 0.5, 0.1]) | st.floats(1e-9, 1.0))
    plain, whole = min(k_bits, v_bits) == 16, keep == 1 and not cutoff
    if plain and whole:
        return KvOption()
    return KvOption(
        k_bits,
        v_bits,
        keep,
        "channel" if plain else layout,
        draw(st.sampled_from(KV_GROUPS)) if layout == "channel" and not plain else 32,
        draw(st.integers(0, 200)),
        draw(st.integers(0, 40)),
        spread=layout == "channel" and k_bits < 16 and draw(st.booleans()),
        cutoff=cutoff,
    )


# Bytes by hand: one head of width 64 takes 256 bytes for keys and values of a token in 16 bits.


@pytest.mark.parametrize(
    ("option", "context", "size"),
    [
        (KvOption(), 1, 3 * 256),
        (KvOption(), 4096, 3 * 256 * 4096),
        # 512 - 4 sinks - 32 recent ones is 14 groups of 32 and 28 tokens over, so that 64 stay floats.
        # A group of keys: 64 channels of 32 · 4 / 8 + 4 bytes; of values: 32 tokens × 2 groups of the same.
        (KvOption(4, 4), 512, 3 * (64 * 256 + 14 * (64 * 20 + 32 * 2 * 20))),
        (KvOption(2, 8), 512, 3 * (64 * 256 + 14 * (64 * 12 + 32 * 2 * 36))),
        # Values stay floats: of the 448 quantized tokens they take 128 bytes each.
        (KvOption(4, 16), 512, 3 * (64 * 256 + 14 * 64 * 20 + 448 * 128)),
        # Pairs of channels have a byte each that says how wide they are.
        (KvOption(4, 4, spread=True), 512, 3 * (64 * 256 + 14 * (64 * 20 + 32 * 2 * 20) + 32)),
        (KvOption(4, 4), 67, 3 * 67 * 256),  # one token less than a group
        (KvOption(4, 4), 68, 3 * (36 * 256 + 64 * 20 + 32 * 2 * 20)),
        # A quarter of 4096, less 36, is 30 groups of 32 and 28 over. Groups of 128 have one scale of
        # keys for 128 tokens, of values still one for 64 channels.
        (KvOption(4, 4, keep=0.25), 4096, 3 * (64 * 256 + 30 * (64 * 20 + 32 * 2 * 20))),
        (KvOption(4, 4, group=128), 4096, 3 * (4096 - 31 * 128) * 256 + 3 * 31 * 128 * 36 + 3 * 31 * 64 * 68),
        # Half of 7 is less than sinks and recent tokens, so all are kept; without these it is 4.
        (KvOption(keep=0.5), 7, 3 * 7 * 256),
        (KvOption(keep=0.5, residual=0, sinks=0), 7, 3 * 4 * 256),
        # Q8_0 for keys and Q4_0 for values: two blocks of 32 channels each
        (KvOption(8, 4, layout="block", residual=0, sinks=0), 7, 3 * 7 * (2 * 34 + 2 * 18)),
        (KvOption(5, 5, layout="block", residual=2, sinks=1), 7, 3 * (3 * 256 + 4 * 4 * 22)),
        # A 32-bit scale per token and head
        (KvOption(8, 8, layout="token", residual=0, sinks=0), 7, 3 * 7 * 2 * 68),
        (KvOption(4, 8, layout="token", residual=0, sinks=0), 7, 3 * 7 * (36 + 68)),
        (KvOption(4, 4, cutoff=True), 4096, 3 * 4 * 256),
        (KvOption(cutoff=True, sinks=0), 4096, 3 * 256),
        (KvOption(shared=True), 4096, 0),
    ],
)
def test_bytes_are_those_counted_by_hand(option: KvOption, context: int, size: int) -> None:
    assert option.cache_bytes(PLAIN_LAYER, context) == size
    assert Load(context, 3).layer_bytes(PLAIN_LAYER, option) == 3 * size


@pytest.mark.parametrize(
    ("option", "size"),
    [
        (KvOption(), 3 * 100 * 256),
        (KvOption(4, 4), 3 * (36 * 256 + 2 * (64 * 20 + 32 * 2 * 20))),
        # Half of the window's 100 tokens, each with the 32-bit position that says when it leaves
        (KvOption(keep=0.5), 3 * 50 * (256 + 4)),
        (KvOption(cutoff=True), 3 * 4 * (256 + 4)),
    ],
)
@pytest.mark.parametrize("context", [100, 101, 4096])
def test_a_window_holds_its_own_length_at_most(option: KvOption, size: int, context: int) -> None:
    assert option.cache_bytes(replace(PLAIN_LAYER, window=100), context) == size


@given(
    option=options(),
    context=st.sampled_from([1, 7, 512, 4096]) | st.integers(1, 1500),
    window=st.none() | st.integers(1, 1000),
    width=st.sampled_from([32, 64, 96, 128]),
)
def test_bytes_equal_a_count_token_by_token(
    option: KvOption, context: int, window: int | None, width: int
) -> None:
    layer = Attention(2, width, window)
    assert option.cache_bytes(layer, context) == expected(option, layer, context)


@given(option=options(), context=st.integers(1, 5000))
def test_at_least_one_token_is_kept_and_never_more_than_there_are(option: KvOption, context: int) -> None:
    assume(not option.shared)
    assert 1 <= option.kept(context) <= context
    assert 0 <= option.quantized_tokens(option.kept(context)) <= option.kept(context)


@pytest.mark.parametrize(("share", "tokens", "kept"), [(0.1, 30, 3), (0.7, 10, 7), (1e-9, 1, 1)])
def test_shares_are_rounded_up_but_not_for_the_sake_of_binary(share: float, tokens: int, kept: int) -> None:
    assert KvOption(keep=share, residual=0, sinks=0).kept(tokens) == kept


@given(option=options())
def test_names_say_everything(option: KvOption) -> None:
    assert KvOption.from_name(option.name) == option


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("k16v16", KvOption()),
        ("k4v4-g32-r32-s4", KvOption(4, 4)),
        ("k2v4-g64-r0-s0-keep0.25-spread", KvOption(2, 4, 0.25, group=64, residual=0, sinks=0, spread=True)),
        ("k16v16-r32-s4-keep0.5", KvOption(keep=0.5)),
        ("k16v16-r32-s8-cutoff", KvOption(sinks=8, cutoff=True)),
        ("k8v8-block", KvOption(8, 8, layout="block", residual=0, sinks=0)),
        ("k8v4-r32-s4-token", KvOption(8, 4, layout="token")),
        ("shared", KvOption(shared=True)),
    ],
)
def test_names_are_as_documented(name: str, option: KvOption) -> None:
    assert option.name == name
    assert KvOption.from_name(name) == option


def test_what_changes_nothing_is_not_in_a_name_and_may_be_left_out_of_one() -> None:
    assert KvOption(group=64, residual=0, sinks=0, layout="block").name == "k16v16"
    assert KvOption.from_name("k4v4") == KvOption(4, 4)
    assert KvOption.from_name("k4v4-s8").name == "k4v4-g32-r32-s8"


@pytest.mark.parametrize(
    "name",
    [
        *("", "k4", "k4v4 ", "k4v4-tokens", "4b-g64-float", "Shared", "shared-keep0.5", f"k{'4' * 5000}v4"),
        *("k4v4-keep", "k4v4-keep0.5.5", "k4v4-keep-1", "k4v4-keepe-3"),
    ],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not a KV option"):
        KvOption.from_name(name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keep": 0.0}, "keep must be greater than 0 and at most 1, but is 0"),
        ({"keep": 1.5}, "keep must be .*, but is 1.5"),
        ({"keep": float("nan")}, "keep must be .*, but is nan"),
        ({"k_bits": 7}, r"7 bits are not offered .* by channel \(2, 3, 4, 5, 6, 8, 16\)"),
        ({"v_bits": 2, "layout": "block"}, r"2 bits are not offered .* by block \(4, 5, 8, 16\)"),
        ({"v_bits": 5, "layout": "token"}, r"5 bits are not offered .* by token \(4, 8, 16\)"),
        ({"layout": "row"}, r"'row' is no layout .* \(layouts: channel, block, token\)"),
        ({"group": 48}, r"groups of 48 tokens are not offered \(32, 64, 128\)"),
        ({"sinks": -1}, r"sinks \(-1\) cannot be negative"),
        ({"residual": -1}, r"residual \(-1\) .* cannot be negative"),
        ({"spread": True}, "spread is about quantized keys"),
        ({"spread": True, "k_bits": 8, "layout": "token"}, "spread is about quantized keys"),
    ],
)
def test_an_option_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        KvOption(**fields)


@pytest.mark.parametrize(
    ("option", "width", "message"),
    [
        (KvOption(8, 16, layout="block"), 80, "blocks of 32 channels, which do not divide the head width 80"),
        (KvOption(4, 4, layout="token"), 33, "33 channels of 4 bits do not fill whole bytes"),
        (KvOption(4, 3), 36, "groups of 4 channels, .* whole bytes; use 2, 4, 6, 8 or 16 bits"),
        (KvOption(4, 4), 33, "groups of 1 channels, .* whole bytes; use 8 or 16 bits"),
        (KvOption(4, 8, spread=True), 33, "pairs of channels, but a head has 33"),
    ],
)
def test_heads_that_do_not_pack_are_refused(option: KvOption, width: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        option.cache_bytes(Attention(2, width), 512)


def test_odd_heads_have_what_packs() -> None:
    layer = Attention(1, 33)
    # One group of keys and 32 tokens of values, each with a scale and a minimum for every channel
    assert KvOption(4, 8).cache_bytes(layer, 68) == 36 * 33 * 4 + 33 * 20 + 32 * 33 * 5
    assert KvOption(layout="block").cache_bytes(layer, 10) == 10 * 33 * 4


def test_options_are_near_one_another_by_kind_then_bits_then_tokens() -> None:
    wanted = KvOption(4, 4, 0.5)
    far = [KvOption(4, 4, cutoff=True), KvOption(8, 8, 0.5), KvOption(4, 3, 0.5), KvOption(4, 4, 0.25)]
    assert sorted(far, key=wanted.distance) == far[::-1]
    assert wanted.distance(wanted) == (0, 0, 0, False)


@given(option=options(), tokens=st.integers(1, 3000))
def test_the_last_peak_is_where_bytes_last_fell(option: KvOption, tokens: int) -> None:
    layer, held = Attention(1, 32), [0]
    held += [option.cache_bytes(layer, count) for count in range(1, tokens + 1)]
    falls = [count for count in range(1, tokens) if held[count + 1] < held[count]]
    if option.step > 1:
        jumps = [n for n in range(1, tokens) if quantized_at(option, n + 1) > quantized_at(option, n)]
        assert option.last_peak(tokens) == (jumps[-1] if jumps else 0)
        assert set(falls) <= set(jumps)
    else:
        assert (option.last_peak(tokens), falls) == (0, [])


def quantized_at(option: KvOption, tokens: int) -> int:
    return option.quantized_tokens(option.kept(tokens))
