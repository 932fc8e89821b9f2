from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tightfit.compress import PackedTensor, integer, unpack_codes
from tightfit.compress.integer import quantize
from tightfit.spaces import ZEROS, InputError, WeightOption, Zero

Draw = Callable[..., tuple[Tensor, Tensor]]
BITS = (2, 3, 4, 5, 6, 8)


def group_errors(weight: Tensor, h: Tensor, packed: PackedTensor) -> np.ndarray:
    """Σ h (w − ŵ)² of every group, in float64."""
    error = h.double() * (packed.dequantize().double() - weight.double()) ** 2
    group = packed.option.group or packed.cols
    return error.view(packed.rows, -1, group).sum(-1).numpy()


def min_max_errors(weight: Tensor, h: Tensor, option: WeightOption) -> np.ndarray:
    """The same for plain min–max rounding."""
    w = weight.double().numpy().reshape(weight.shape[0], -1, option.group or weight.shape[1])
    weights = h.double().numpy().reshape(1, *w.shape[1:])
    levels, half = 2**option.bits - 1, 2 ** (option.bits - 1)
    low, high = w.min(-1, keepdims=True), w.max(-1, keepdims=True)
    if option.zero == "none":
        scale = (np.where(high > -low, high, low) / -half).astype(np.float16).astype(float)
        offset = -half * scale
    elif option.zero == "integer":
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = ((high - low) / levels).astype(np.float16).astype(float)
        zero = np.clip(np.rint(np.divide(-low, scale, out=np.zeros_like(low), where=scale != 0)), 0, levels)
        offset = -zero * scale
    else:
        scale = ((high - low) / levels).astype(np.float16).astype(float)
        offset = low.astype(np.float16).astype(float)
    steps = np.divide(w - offset, scale, out=np.zeros_like(w), where=scale != 0)
    values = offset + scale * np.clip(np.rint(steps), 0, levels)
    return (weights * (values - w) ** 2).sum(-1)


def on_grid(option: WeightOption, values: int, seed: int) -> Tensor:
    """Weights (60, 128) that the option can store exactly, both extremes in every group.

    A group takes at most ``values`` different ones, so that other ranges come near as well.
    """
    rng = np.random.default_rng([seed, 2])
    group = option.group or 128
    pool = rng.integers(0, 2**option.bits, (60, 128 // group, values))
    pool[..., 0], pool[..., 1] = 0, 2**option.bits - 1
    codes = np.take_along_axis(pool, rng.integers(0, values, (60, 128 // group, group)), -1)
    codes[..., 0], codes[..., -1] = 0, 2**option.bits - 1
    scale = rng.lognormal(-4, 1, (*codes.shape[:2], 1)).astype(np.float16).astype(np.float32)
    if option.zero == "float":
        steps = rng.uniform(-3, 2, scale.shape) * 2**option.bits
        offset = (scale * steps).astype(np.float16).astype(np.float32)
    elif option.zero == "integer":
        offset = -scale * rng.integers(0, 2**option.bits, scale.shape)
    else:
        scale *= rng.choice([-1, 1], scale.shape)
        offset = -scale * 2 ** (option.bits - 1)
    return torch.from_numpy((codes * scale + offset).astype(np.float32)).reshape(60, 128)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("group", [32, 64, 0])
def test_weights_on_a_grid_are_reproduced_exactly(
    bits: int, zero: Zero, group: int, heavy_tailed: Draw
) -> None:
    option = WeightOption(bits, group, zero)
    _, h = heavy_tailed(1, 128)
    for values in (2, 3, 100):
        weight = on_grid(option, values, seed=bits * 100 + group)
        assert torch.equal(quantize(weight, option).dequantize(), weight)
        assert torch.equal(quantize(weight, option, h).dequantize(), weight)


ELEMENT = st.floats(-2.0, 2.0, width=32) | st.sampled_from([0.0, 1.0, -1.0, 1e-7, 300.0])


@settings(max_examples=60)
@given(
    bits=st.sampled_from(BITS),
    zero=st.sampled_from(ZEROS),
    values=st.lists(ELEMENT, min_size=4, max_size=4).flatmap(
        lambda few: st.lists(st.sampled_from(few) | ELEMENT, min_size=64, max_size=64)
    ),
    importances=st.lists(st.sampled_from([0.0, 1e-12, 0.01, 1.0, 1e4]), min_size=32, max_size=32),
    scale=st.sampled_from([1e-6, 1e-3, 1.0, 100.0]),
)
def test_no_group_is_worse_than_plain_rounding(
    bits: int, zero: Zero, values: list[float], importances: list[float], scale: float
) -> None:
    weight = torch.tensor(values, dtype=torch.float32).view(2, 32) * scale
    h = torch.tensor(importances)
    option = WeightOption(bits, 16, zero)
    best, plain = group_errors(weight, h, quantize(weight, option, h)), min_max_errors(weight, h, option)
    # What float32 cannot tell from the largest weight does not count.
    rounding = 1e-12 * float((h.double() * weight.abs().max() ** 2).sum())
    assert (best <= plain * (1 + 1e-4) + rounding).all()


def exhaustive_errors(weight: Tensor, h: Tensor, option: WeightOption) -> np.ndarray:
    """The least error per group over a fine grid of ranges, scales and offsets not rounded."""
    w, levels = weight.double().numpy().reshape(-1, option.group), 2**option.bits - 1
    low, high = w.min(-1, keepdims=True), w.max(-1, keepdims=True)
    if option.zero == "none":
        ends = [(-s * 2 ** (option.bits - 1), s) for s in np.linspace(-1.2, 1.2, 481) if s]
        scales = np.maximum(-low, high) / 2 ** (option.bits - 1)
        trials = [(s * scales, first * scales) for first, s in ends]
    elif option.zero == "integer":
        trials = [
            ((high - low) / levels * s, -z * (high - low) / levels * s)
            for z in range(levels + 1)
            for s in np.linspace(0.3, 1.3, 201)
        ]
    else:
        cuts = np.linspace(-0.1, 0.5, 41)
        trials = [
            ((high - low) * (1 - a - b) / levels, low + a * (high - low))
            for a, b in itertools.product(cuts, cuts)
            if a + b < 0.8
        ]
    errors = [
        (h.double().numpy() * (o + s * np.clip(np.rint((w - o) / s), 0, levels) - w) ** 2).sum(-1)
        for s, o in trials
    ]
    return np.min(errors, axis=0)


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_errors_come_near_those_of_an_exhaustive_search(bits: int, zero: Zero, heavy_tailed: Draw) -> None:
    weight, h = heavy_tailed(300, 32, seed=bits)
    option = WeightOption(bits, 32, zero)
    found = group_errors(weight, h, quantize(weight, option, h)).sum()
    assert found <= 1.08 * exhaustive_errors(weight, h, option).sum()


@pytest.mark.parametrize(("bits", "most"), [(2, 0.55), (3, 0.6), (4, 0.76), (8, 0.83)])
def test_the_search_beats_plain_rounding_by_far(bits: int, most: float, heavy_tailed: Draw) -> None:
    weight, h = heavy_tailed(64, 256)
    for zero in ZEROS:
        option = WeightOption(bits, 64, zero)
        found = group_errors(weight, h, quantize(weight, option, h)).sum()
        assert found <= most * min_max_errors(weight, h, option).sum(), zero


def test_important_weights_are_kept_better(heavy_tailed: Draw) -> None:
    weight, h = heavy_tailed(64, 256)
    option = WeightOption(3, 64, "float")
    weighted = group_errors(weight, h, quantize(weight, option, h)).sum()
    unweighted = group_errors(weight, h, quantize(weight, option)).sum()
    assert weighted < 0.75 * unweighted
    assert torch.equal(
        quantize(weight, option).dequantize(), quantize(weight, option, torch.full((256,), 7.0)).dequantize()
    )


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_groups_without_spread_are_kept(bits: int, zero: Zero) -> None:
    option = WeightOption(bits, 32, zero)
    weight = torch.tensor([0.0, 0.5, -0.5, 0.1]).repeat_interleave(32).view(1, 128)
    read = quantize(weight, option).dequantize()
    torch.testing.assert_close(read, weight, rtol=2**-11, atol=0)
    if zero == "float":
        assert torch.equal(read[:, :96], weight[:, :96])
    assert torch.equal(quantize(torch.zeros(2, 64), option).dequantize(), torch.zeros(2, 64))


def test_an_outlier_costs_its_own_group_only(heavy_tailed: Draw) -> None:
    weight, h = heavy_tailed(8, 256)
    option = WeightOption(4, 64, "float")
    clean = group_errors(weight, h, quantize(weight, option, h))
    weight[3, 70] = 1000.0
    found = group_errors(weight, h, quantize(weight, option, h))
    others = np.ones_like(clean, dtype=bool)
    others[3, 1] = False
    assert np.array_equal(found[others], clean[others])
    assert found[3, 1] <= min_max_errors(weight, h, option)[3, 1]


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("scale", [2.0**-24, 2.0**-20, 2.0**-16, 1e-12])
def test_tiny_weights_are_read_back_as_well_as_subnormal_scales_allow(scale: float, zero: Zero) -> None:
    weight = torch.arange(-8.0, 8.0).repeat(4).view(2, 32) * scale
    read = quantize(weight, WeightOption(4, 32, zero)).dequantize()
    if scale == 1e-12:  # below every 16-bit float
        assert torch.equal(read, torch.zeros_like(weight))
    else:
        assert torch.equal(read, weight)


@pytest.mark.parametrize("zero", ZEROS)
def test_weights_up_to_the_largest_scale_are_stored_and_larger_ones_refused(zero: Zero) -> None:
    option = WeightOption(4, 32, zero)
    most = {"float": 65504.0, "integer": 65504.0 * 15, "none": 65504.0 * 8}[zero]
    weight = torch.zeros(1, 64)
    weight[0, 5] = -most
    read = quantize(weight, option).dequantize()
    torch.testing.assert_close(read, weight, rtol=0, atol=most * 1e-3)
    with pytest.raises(InputError, match="too large for 16-bit group scales"):
        quantize(weight * 1.01, option)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    weight, h = torch.ones(3, 64), torch.ones(64)
    option = WeightOption(4, 32, "float")
    broken = weight.clone()
    broken[2, 63] = bad
    with pytest.raises(InputError, match="the weights hold a value that is not finite"):
        quantize(broken, option, h)
    h[0] = bad
    with pytest.raises(InputError, match="the importances hold a value that is not finite"):
        quantize(weight, option, h)
    with pytest.raises(InputError, match="not finite"):
        quantize(torch.full((1, 32), 1e300, dtype=torch.float64), option)


def test_a_group_that_does_not_divide_the_width_is_refused() -> None:
    with pytest.raises(InputError, match="group 64 does not divide 96 input weights"):
        quantize(torch.ones(2, 96), WeightOption(4, 64, "float"))


def same(a: PackedTensor, b: PackedTensor) -> bool:
    pairs = zip(a.tensors().items(), b.tensors().items(), strict=True)
    return all(x == y and torch.equal(s, t) for (x, s), (y, t) in pairs)


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("group", [32, 0])
def test_bits_depend_neither_on_chunks_nor_on_threads_nor_on_layout(
    zero: Zero, group: int, heavy_tailed: Draw, monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    weight, h = heavy_tailed(83, 1536)
    option = WeightOption(3, group, zero)
    torch.set_num_threads(1)
    first = quantize(weight, option, h)
    assert same(first, quantize(weight.t().contiguous().t(), option, h))
    assert same(first, quantize(torch.stack([weight, weight], dim=-1)[..., 0], option, h))
    assert same(first, quantize(torch.nn.Parameter(weight), option, h))
    monkeypatch.setattr(integer, "_CHUNK", 1)
    assert same(first, quantize(weight, option, h))
    for count in (2, 3):
        torch.set_num_threads(count)
        assert same(first, quantize(weight, option, h))
        assert torch.get_num_threads() == count


def test_the_number_of_threads_survives_an_error(threads: None) -> None:
    torch.set_num_threads(2)
    with pytest.raises(InputError):
        quantize(torch.full((1, 32), torch.inf), WeightOption(4, 32, "float"))
    assert torch.get_num_threads() == 2


def test_a_row_longer_than_any_chunk_is_one_group(heavy_tailed: Draw) -> None:
    weight, h = heavy_tailed(1, 150_001)
    packed = quantize(weight, WeightOption(2, 0, "integer"), h)
    assert packed.scales is not None
    assert packed.scales.shape == (1, 1)
    assert group_errors(weight, h, packed) <= min_max_errors(weight, h, packed.option)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_read_as_float32(dtype: torch.dtype, heavy_tailed: Draw) -> None:
    weight, h = heavy_tailed(4, 64)
    stored = weight.to(dtype)
    option = WeightOption(4, 32, "float")
    assert same(quantize(stored, option, h), quantize(stored.float(), option, h))


def test_nothing_given_is_written_to(heavy_tailed: Draw) -> None:
    weight, h = heavy_tailed(5, 64)
    before = weight.clone(), h.clone()
    quantize(weight, WeightOption(4, 32, "float"), h)
    assert torch.equal(weight, before[0])
    assert torch.equal(h, before[1])


def test_scales_are_16_bit_floats_and_only_symmetric_ones_are_negative(heavy_tailed: Draw) -> None:
    weight, h = heavy_tailed(64, 128)
    for zero, bits in itertools.product(ZEROS, (2, 4)):
        packed = quantize(weight, WeightOption(bits, 32, zero), h)
        assert packed.scales is not None
        assert packed.scales.dtype == torch.float16
        assert bool((packed.scales < 0).any()) == (zero == "none")
        assert bool((packed.scales != 0).all())
        codes = unpack_codes(packed.codes, bits, 64 * 128)
        assert (codes.min(), codes.max()) == (0, 2**bits - 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("zero", ZEROS)
def test_a_gpu_quantizes_as_well(zero: Zero, heavy_tailed: Draw) -> None:
    weight, h = heavy_tailed(40, 256)
    option = WeightOption(3, 64, zero)
    packed = quantize(weight.cuda(), option, h)
    assert packed.codes.is_cuda
    found = float((h * (packed.dequantize("cpu") - weight) ** 2).sum())
    assert found == pytest.approx(group_errors(weight, h, quantize(weight, option, h)).sum(), rel=0.01)
