"""What a compressed cache holds: bytes against a formula, what is copied, what is never touched again."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, gcd

import pytest
import torch
from torch import Tensor

from tightfit.compress.kvcache import OBSERVED, CacheFormat, PlanCache, Prefilled
from tightfit.compress.kvcache.layer import PlanLayer

HEADS, QUERY_HEADS, WIDTH = 2, 4, 64
BLOCK_BYTES = {8: 34, 5: 22, 4: 18}

CHANNEL = [
    CacheFormat(bits, other)
    for bits, other in ((2, 3), (3, 4), (4, 5), (5, 6), (6, 8), (8, 2), (4, 16), (16, 4))
]
OTHERS = [
    CacheFormat(bits, other, layout="block") for bits, other in ((8, 5), (5, 4), (4, 8), (16, 4), (8, 16))
]
OTHERS += [CacheFormat(bits, other, layout="token") for bits, other in ((8, 4), (4, 8), (16, 8))]
SPREAD = [CacheFormat(bits, 4, spread=True) for bits in (2, 3, 5, 8)]
BOUNDS = [
    CacheFormat(4, 4, residual=0, sinks=0),
    CacheFormat(4, 4, layout="block", residual=0, sinks=0),
    CacheFormat(4, 4, group=128, residual=100, sinks=40),
    CacheFormat(4, 2, group=64, residual=1, sinks=1),
    CacheFormat(4, 8, layout="token", residual=90, sinks=3),
]
WHOLE = [CacheFormat(), *CHANNEL, *OTHERS, *SPREAD, *BOUNDS]
LESS = [replace(form, keep=keep) for form in WHOLE[::3] + BOUNDS for keep in (0.25, 0.5)]
CUT = [replace(form, cutoff=True) for form in WHOLE[::3] + BOUNDS]
FORMATS = WHOLE + LESS + CUT


def kept_tokens(form: CacheFormat, tokens: int) -> int:
    """Tokens kept of so many, as the memory formula says."""
    if form.cutoff:
        return min(tokens, max(1, form.sinks))
    return (
        tokens
        if form.keep == 1
        else min(tokens, max(form.sinks + form.residual, ceil(form.keep * tokens), 1))
    )


def expected_bytes(form: CacheFormat, kept: int, window: int | None) -> int:
    """Bytes of ``kept`` tokens of one sequence, as the memory formula says."""
    step = form.group if form.layout == "channel" else 1
    coded = max(0, kept - form.sinks - form.residual) // step * step
    total = 0
    for bits, keys in ((form.k_bits, True), (form.v_bits, False)):
        q = coded if bits < 16 else 0
        total += 2 * HEADS * WIDTH * (kept - q)
        if form.layout == "block":
            total += q * HEADS * WIDTH // 32 * BLOCK_BYTES.get(bits, 0)
        elif form.layout == "token":
            total += q * HEADS * (WIDTH * bits // 8 + 4)
        elif keys:
            total += q // form.group * HEADS * WIDTH * (form.group * bits // 8 + 4)
        else:
            group = gcd(form.group, WIDTH)
            total += q * HEADS * (WIDTH // group) * (group * bits // 8 + 4)
    if form.spread and coded:
        total += HEADS * WIDTH // 2
    if window is not None and (form.keep < 1 or form.cutoff):
        total += 4 * HEADS * kept
    return total


def random_states(batch: int, tokens: int, heads: int = HEADS, seed: int = 0) -> Tensor:
    return torch.randn(batch, heads, tokens, WIDTH, generator=torch.Generator().manual_seed(seed))


def prefilled(tokens: int, batch: int, window: int | None, layers: int) -> Prefilled:
    held = tokens if window is None else min(tokens, window)
    keys, values = random_states(batch, held), random_states(batch, held, seed=1)
    queries = random_states(batch, min(tokens, OBSERVED), QUERY_HEADS, seed=2)
    return Prefilled(
        [keys] * layers,
        [values] * layers,
        [queries] * layers,
        [window] * layers,
        [0.125] * layers,
        tokens,
        torch.zeros(batch, 5),
    )


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("tokens", [1, 7, 512, 4096])
def test_bytes_are_those_of_the_formula(tokens: int, batch: int, window: int | None) -> None:
    cache = PlanCache.from_prefill(prefilled(tokens, batch, window, len(FORMATS)), FORMATS)
    visible = tokens if window is None else min(tokens, window)
    for form, size in zip(FORMATS, cache.layer_bytes, strict=True):
        assert size == batch * expected_bytes(form, kept_tokens(form, visible), window), form
    assert cache.nbytes == sum(cache.layer_bytes)


def test_the_formula_of_a_format_is_the_one_of_the_tests() -> None:
    for form in FORMATS:
        for tokens in (1, 5, 36, 37, 100, 1000):
            assert form.kept(tokens) == kept_tokens(form, tokens)
    assert CacheFormat(4, 4, keep=0.1, sinks=0, residual=0).kept(30) == 3
    assert CacheFormat(4, 16).quantized(4 + 32 + 31) == 0
    assert CacheFormat(4, 16).quantized(4 + 32 + 32) == 32
    assert CacheFormat(4, 16, layout="block").quantized(4 + 32 + 31) == 31
    assert CacheFormat().quantized(1000) == 0


def test_a_shared_layer_holds_nothing() -> None:
    forms = [CacheFormat(4, 4), CacheFormat(shared=True), CacheFormat(shared=True), None]
    cache = PlanCache.from_prefill(prefilled(100, 2, None, 4), forms)
    assert cache.layer_bytes[1:3] == [0, 0]
    assert cache.layer_bytes[3] == 2 * 2 * HEADS * WIDTH * 100 * 4  # as the model gives it: 32 bits
    assert forms[1] is not None
    assert forms[1].kept(100) == 0


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("window", [None, 100, 20])
def test_bytes_never_exceed_the_formula_later(window: int | None, size: int) -> None:
    formats = WHOLE[::4] + BOUNDS + LESS[::4] + CUT[::4]
    cache = PlanCache.from_prefill(prefilled(70, 1, window, len(formats)), formats)
    for turn in range(120 // size):
        new = random_states(1, size, seed=turn)
        for form, layer in zip(formats, cache.layers, strict=True):
            assert isinstance(layer, PlanLayer)
            layer.update(new, new)
            size_now = sum(tensor.nbytes for tensor in layer.tensors().values())
            limit = expected_bytes(form, layer.held, window)
            assert layer.held <= (window or 10**9)
            assert size_now <= limit, form
            if window is None:
                assert size_now == limit, form
                assert layer.held == kept_tokens(form, 70) + (turn + 1) * size


def test_a_group_is_quantized_once() -> None:
    formats = [*CHANNEL, *OTHERS, *SPREAD]
    cache = PlanCache.from_prefill(prefilled(110, 2, None, len(formats)), formats)
    earlier = [layer.tensors() for layer in cache.layers]  # type: ignore[union-attr]
    for turn in range(30):
        for index, layer in enumerate(cache.layers):
            assert isinstance(layer, PlanLayer)
            layer.update(random_states(2, 3, seed=turn), random_states(2, 3, seed=-turn))
            now = layer.tensors()
            for name, tensor in earlier[index].items():
                if name.rpartition(".")[2] in ("codes", "scales", "minima"):
                    assert torch.equal(now[name][:, :, : tensor.shape[2]], tensor)
                elif name.endswith(("sinks", "widths")):
                    assert torch.equal(now[name], tensor)
            earlier[index] = now
    codes = cache.layers[0].tensors()["keys.codes"]  # type: ignore[union-attr]
    assert codes.shape[2] == (200 - 4 - 32) // 32


def test_a_prefill_is_left_alone() -> None:
    state = prefilled(200, 1, None, len(FORMATS))
    before = [tensor.clone() for tensor in (*state.keys, *state.values, *state.queries)]
    cache = PlanCache.from_prefill(state, FORMATS)
    for layer in cache.layers:
        layer.update(random_states(1, 40), random_states(1, 40))  # type: ignore[union-attr]
    assert all(
        torch.equal(a, b) for a, b in zip(before, (*state.keys, *state.values, *state.queries), strict=True)
    )
    owned = {tensor.untyped_storage().data_ptr() for tensor in (state.keys[0], state.values[0])}
    for layer in PlanCache.from_prefill(state, FORMATS).layers:
        for tensor in layer.tensors().values():  # type: ignore[union-attr]
            # What is held is no view of something larger.
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
            assert tensor.untyped_storage().data_ptr() not in owned
    assert state.nbytes == len(FORMATS) * (2 * 200 * HEADS + 32 * QUERY_HEADS) * WIDTH * 4 + 5 * 4


def test_wide_windows_drop_nothing_that_they_reach() -> None:
    state = prefilled(50, 1, 100, 1)
    layer = PlanCache.from_prefill(state, [CacheFormat(keep=0.9, residual=4)]).layers[0]
    assert isinstance(layer, PlanLayer)
    for turn in range(200):
        layer.update(random_states(1, 1), random_states(1, 1))
        layer.settle()
        assert layer.positions is not None
        # Heads keep tokens of their own; one that has left is held only while another head needs its row.
        assert int(layer.positions[..., 0].max()) > layer.seen - 1 - 100
        assert layer.positions[..., -1].eq(50 + turn).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k_bits": 7}, "k_bits must be one of 2, 3, 4, 5, 6, 8, 16"),
        ({"v_bits": 6, "layout": "block"}, "v_bits must be one of 4, 5, 8, 16 in layout block"),
        ({"k_bits": 5, "layout": "token"}, "4, 8, 16 in layout token"),
        ({"layout": "row"}, "layout must be one of channel, block, token"),
        ({"keep": 0.0}, "keep must be"),
        ({"keep": 1.5}, "keep must be"),
        ({"group": 16}, "group must be one of 32, 64, 128"),
        ({"residual": -1}, "cannot be negative"),
        ({"spread": True}, "spread needs quantized keys"),
        ({"spread": True, "layout": "block", "k_bits": 4}, "spread needs quantized keys"),
    ],
)
def test_impossible_formats_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CacheFormat(**changes)  # type: ignore[arg-type]


def test_formats_that_do_not_fit_the_model_are_refused() -> None:
    state = prefilled(10, 1, None, 2)
    with pytest.raises(ValueError, match="1 formats were given for 2 layers"):
        PlanCache.from_prefill(state, [None])
    with pytest.raises(ValueError, match="Layer 0 has no layer below"):
        PlanCache.from_prefill(state, [CacheFormat(shared=True), None])
    with pytest.raises(ValueError, match="its sliding window is 5, not None"):
        PlanCache.from_prefill(replace(state, windows=[None, 5]), [None, CacheFormat(shared=True)])
    narrow = [state.keys[0], state.keys[0][:, :1]]
    with pytest.raises(ValueError, match="its KV heads is 1, not 2"):
        PlanCache.from_prefill(replace(state, keys=narrow), [None, CacheFormat(shared=True)])
    odd = replace(state, keys=[k[..., :33] for k in state.keys], values=[v[..., :33] for v in state.values])
    for form, message in (
        (CacheFormat(8, 16, layout="block"), "multiple of 32 channels, not 33"),
        (CacheFormat(4, 16, layout="token"), "33 channels"),
        (CacheFormat(4, 16, spread=True), "pairs channels"),
    ):
        with pytest.raises(ValueError, match=message):
            PlanCache.from_prefill(odd, [form, None])
    for layer in PlanCache.from_prefill(state, [CacheFormat(4, 4), CacheFormat(shared=True)]).layers:
        with pytest.raises(RuntimeError, match="new one from its prefill"):
            layer.reset()
        with pytest.raises(RuntimeError, match="new one from its prefill"):
            layer.crop(-1)
