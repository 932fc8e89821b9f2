from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tightfit.compress import PackedTensor, compress_matrix, pack_codes, unpack_codes
from tightfit.spaces import WeightOption
from tightfit.spaces.options import GROUPS, QUANTIZED_BITS, ZEROS

OPTIONS = [WeightOption(*x) for x in itertools.product(QUANTIZED_BITS, GROUPS, ZEROS)]
OPTIONS += [WeightOption(16), WeightOption(32)]
# Rows and columns whose codes, scales and zero points end inside a byte.
SHAPES = [(1, 128), (5, 384), (13, 128), (1, 1), (7, 129), (17, 31)]


def bits_of(stream: Tensor, bits: int, count: int) -> np.ndarray:
    """Codes of a stream read bit by bit, least significant first."""
    flat = np.unpackbits(stream.numpy(), bitorder="little")[: count * bits]
    return flat.reshape(count, bits).astype(np.int64) @ (1 << np.arange(bits))


def read_slowly(packed: PackedTensor) -> np.ndarray:
    """Values of a packed tensor, one weight at a time, in float64."""
    rows, cols, option = packed.rows, packed.cols, packed.option
    if packed.scales is None:
        return packed.codes.double().numpy()
    codes = bits_of(packed.codes, option.bits, rows * cols).reshape(rows, cols)
    scales = packed.scales.double().numpy()
    values = np.empty((rows, cols))
    for row, col in itertools.product(range(rows), range(cols)):
        group = col // (option.group or cols)
        scale = scales[row, group]
        if option.zero == "float":
            values[row, col] = scale * codes[row, col] + packed.zeros.double().numpy()[row, group]
            continue
        zero = 2 ** (option.bits - 1)
        if option.zero == "integer":
            zero = bits_of(packed.zeros, option.bits, scales.size).reshape(scales.shape)[row, group]
        values[row, col] = scale * (codes[row, col] - zero)
    return values


def draw(rows: int, cols: int) -> Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(rows * 1000 + cols))


@given(bits=st.integers(1, 8), count=st.integers(0, 300), seed=st.integers(0, 2**32 - 1), top=st.booleans())
def test_codes_come_back_and_lie_least_significant_bit_first(
    bits: int, count: int, seed: int, top: bool
) -> None:
    drawn = np.random.default_rng([seed, 1]).integers(0, 2**bits, count)
    codes = np.full(count, 2**bits - 1) if top else drawn
    tensor = torch.from_numpy(codes.astype(np.uint8))
    stream = pack_codes(tensor, bits)
    assert len(stream) == -(-count * bits // 8)
    assert torch.equal(unpack_codes(stream, bits, count), tensor)
    assert np.array_equal(bits_of(stream, bits, count), codes)
    padding = np.unpackbits(stream.numpy(), bitorder="little")[count * bits :]
    assert not padding.any()


@pytest.mark.parametrize("bits", range(1, 9))
def test_packing_reads_any_memory_layout(bits: int) -> None:
    codes = (torch.arange(7 * 9) % 2**bits).to(torch.uint8)
    matrix = codes.view(7, 9)
    unaligned = torch.cat([codes[:1], codes])[1:]  # starts inside a 64-bit word
    assert torch.equal(pack_codes(matrix.t(), bits), pack_codes(matrix.t().contiguous(), bits))
    assert torch.equal(pack_codes(unaligned, bits), pack_codes(codes, bits))


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_stored_bytes_are_the_charged_ones(option: WeightOption) -> None:
    for rows, cols in SHAPES:
        if option.divides(cols):
            packed = compress_matrix(draw(rows, cols), option, None)
            assert packed.nbytes == option.tensor_bytes(rows, cols), (rows, cols)
            assert set(packed.tensors()) <= {"codes", "scales", "zeros"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_what_is_read_back_is_what_the_bytes_say(option: WeightOption) -> None:
    rows, cols = (3, 128) if option.group else (3, 7)
    packed = compress_matrix(draw(rows, cols) + 0.3, option, None)
    matrix = packed.dequantize()
    assert matrix.shape == (rows, cols)
    assert matrix.dtype == torch.float32
    expected = read_slowly(packed)
    np.testing.assert_allclose(matrix.numpy(), expected, rtol=3e-7, atol=1e-7 * abs(expected).max())


def test_reading_back_changes_nothing_that_is_stored() -> None:
    packed = compress_matrix(draw(4, 64), WeightOption(4, 32, "float"), None)
    before = {name: tensor.clone() for name, tensor in packed.tensors().items()}
    first, second = packed.dequantize(), packed.dequantize()
    assert torch.equal(first, second)
    first.zero_()
    assert torch.equal(packed.dequantize(), second)
    assert all(torch.equal(tensor, before[name]) for name, tensor in packed.tensors().items())
