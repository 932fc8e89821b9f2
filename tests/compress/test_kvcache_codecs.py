"""Packing and the four ways to quantize, against computations of their own and llama.cpp's kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tightfit.compress.ggml import dequantize_ggml, quantize_ggml
from tightfit.compress.kvcache.codecs import Blocks, ChannelKeys, ChannelValues, Codec, SpreadKeys, Tokens
from tightfit.compress.kvcache.packing import pack, pack_planes, unpack, unpack_planes
from tightfit.compress.kvcache.spread import spread_bits
from tightfit.spaces import GgmlOption

BITS = (2, 3, 4, 5, 6, 8)


def states(*shape: int, seed: int = 0) -> Tensor:
    """Keys or values of 16 bits, some channels of which are much larger than others."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.logspace(-2, 1, shape[-1])
    return (x + torch.randn(shape[-1], generator=generator)).half()


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_are_read_back_from_as_many_bits(bits: int) -> None:
    codes = torch.randint(0, 2**bits, (2, 3, 64), generator=torch.Generator().manual_seed(bits)).byte()
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (2, 3, 8 * bits)
    assert torch.equal(unpack(packed, bits, 64), codes)


def test_codes_of_many_widths_are_read_back() -> None:
    widths = torch.tensor([[[1, 8, 3, 4], [5, 5, 5, 1]]]).byte()
    levels = (2 ** widths.int())[:, :, None, :, None]
    noise = torch.rand(1, 2, 3, 4, 32, generator=torch.Generator().manual_seed(0))
    codes = (noise * levels).byte()
    packed = pack_planes(codes, widths)
    assert packed.shape == (1, 2, 3, 16, 4)
    assert torch.equal(unpack_planes(packed, widths, 32), codes)


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("bits", BITS)
def test_keys_by_channel_are_rounded_to_the_nearest_code(bits: int, group: int) -> None:
    x = states(2, 2, 128, 16)
    codec = ChannelKeys(bits, group, 16)
    read = codec.decode(codec.encode(x))
    for start in range(0, 128, group):
        part = x[:, :, start : start + group].float()
        low, high = part.amin(2, keepdim=True), part.amax(2, keepdim=True)
        scale = ((high - low) / (2**bits - 1)).half().float()
        error = (read[:, :, start : start + group] - part).abs()
        # Half a step, and what a scale of 16 bits can miss at the far end.
        assert (error <= 0.5 * scale + (high - low) / 1024 + 1e-6).all()
        assert (
            ((read[:, :, start : start + group] - low) / scale).frac().abs() % 1 < 1e-2
        ).float().mean() > 0.4


@pytest.mark.parametrize("width", [16, 64, 96])
@pytest.mark.parametrize("bits", BITS)
def test_values_by_token_are_rounded_to_the_nearest_code(bits: int, width: int) -> None:
    x = states(2, 2, 64, width)
    codec = ChannelValues(bits, 64, width)
    read = codec.decode(codec.encode(x))
    channels = {16: 16, 64: 64, 96: 32}[width]
    for start in range(0, width, channels):
        part = x[..., start : start + channels].float()
        low, high = part.amin(-1, keepdim=True), part.amax(-1, keepdim=True)
        error = (read[..., start : start + channels] - part).abs()
        assert (error <= 0.5 * (high - low) / (2**bits - 1) + (high - low) / 1024 + 1e-6).all()


@pytest.mark.parametrize(("bits", "name"), [(8, "Q8_0"), (5, "Q5_0"), (4, "Q4_0")])
def test_blocks_are_those_of_llama_cpp(bits: int, name: str) -> None:
    x = states(3, 2, 50, 64)
    x[0, 0, 0] = 0  # a block without a scale
    x[0, 0, 1, :2] = torch.tensor([-9.5, 9.5])  # extremes of one size: the first of them counts
    codec = Blocks(bits)
    packed, scales = codec.encode(x)
    option = GgmlOption(name)
    theirs = quantize_ggml(x.float().reshape(-1, 64), option, None)
    assert packed.nbytes + scales.nbytes == theirs.nbytes
    expected = dequantize_ggml(theirs, option, 64).view(x.shape)
    assert torch.equal(codec.decode((packed, scales)), expected)


@pytest.mark.parametrize("bits", [4, 8])
def test_one_scale_per_token_makes_its_largest_value_the_largest_code(bits: int) -> None:
    x = states(2, 3, 7, 32)
    x[0, 0, 0] = 0
    codec = Tokens(bits, 32)
    packed, scales = codec.encode(x)
    assert scales.dtype == torch.float32
    assert torch.equal(scales, x.float().abs().amax(-1) / (2 ** (bits - 1) - 1))
    assert ((codec.decode((packed, scales)) - x.float()).abs() <= scales.unsqueeze(-1) * 0.5001).all()


def test_bits_follow_the_energy_of_rotary_pairs() -> None:
    # Deviations of pairs on top of means that do not count. The bits that save most: four times 64, 16, 4
    # and 1 for the first pair, 4 and 1 for the second, 0.36 for the third, another 0.25 for the first.
    signs = torch.tensor([1.0, -1.0]).repeat(16).view(1, 1, 32, 1)
    sizes = torch.tensor([8, 2, 0.6, 0.125]).repeat(2)
    x = signs * sizes + torch.tensor([100.0, 0, 0, -50, 3, 0, 0, 7])
    assert spread_bits(x, 3).tolist() == [[[6, 3, 2, 1]]]
    assert spread_bits(x, 8).tolist() == [[[8, 8, 8, 8]]]


def greedy(energy: list[float], bits: int) -> list[int]:
    """One bit after the other to the pair whose noise it lowers most."""
    widths = [1] * len(energy)
    for _ in range((bits - 1) * len(energy)):
        gains = [
            e * (4.0**-b - 4.0 ** -(b + 1)) if b < 8 else -1.0 for e, b in zip(energy, widths, strict=True)
        ]
        widths[gains.index(max(gains))] += 1
    return widths


@pytest.mark.parametrize("bits", BITS)
def test_spread_bits_are_the_greedy_ones_and_hold_the_mean(bits: int) -> None:
    x = states(2, 2, 64, 32)
    widths = spread_bits(x, bits)
    deviation = x.double() - x.double().mean(2, keepdim=True)
    squares = deviation.square().mean(2)
    energy = (squares[..., :16] + squares[..., 16:]) / 2
    for sequence in range(2):
        for head in range(2):
            chosen = widths[sequence, head].tolist()
            assert chosen == greedy(energy[sequence, head].tolist(), bits)
            assert sum(chosen) == bits * 16


def test_spread_keys_cost_the_same_and_lose_less() -> None:
    x = states(2, 2, 64, 32)
    even, spread = ChannelKeys(3, 32, 32), SpreadKeys(spread_bits(x, 3), 32)

    def error(codec: Codec) -> float:
        return float((codec.decode(codec.encode(x)) - x.float()).square().mean())

    assert error(spread) < 0.5 * error(even)
    assert [part.nbytes for part in spread.encode(x)] == [part.nbytes for part in even.encode(x)]


@pytest.mark.parametrize(
    "codec",
    [ChannelKeys(2, 32, 32), ChannelValues(3, 32, 32), Blocks(4), Tokens(8, 32)],
    ids=lambda codec: type(codec).__name__,
)
def test_constant_and_huge_values_stay_finite(codec: Codec) -> None:
    constant = torch.full((1, 1, 32, 32), 3.5).half()
    assert torch.allclose(codec.decode(codec.encode(constant)), constant.float(), atol=0.01)
    huge = torch.full((1, 1, 32, 32), 65504.0).half()
    huge[:, :, ::2, ::2] = -65504
    read = codec.decode(codec.encode(huge))
    assert read.isfinite().all()
    assert ((read - huge.float()).abs() < 10000).all()
    tiny = (states(1, 1, 32, 32).float() * 1e-7).half()
    assert ((codec.decode(codec.encode(tiny)) - tiny.float()).abs() < 1e-5).all()
