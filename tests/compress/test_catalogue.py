from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tightfit.compress import compress_matrix
from tightfit.compress.integer import quantize
from tightfit.spaces import ZEROS, InputError, WeightOption

Draw = Callable[..., tuple[Tensor, Tensor]]


@pytest.mark.parametrize("option", [WeightOption(b, 32, z) for b in (2, 8) for z in ZEROS])
def test_integer_options_go_to_the_integer_quantizer(option: WeightOption, heavy_tailed: Draw) -> None:
    weight, h = heavy_tailed(3, 64)
    packed = compress_matrix(weight, option, h)
    assert packed.option == option
    assert torch.equal(packed.dequantize(), quantize(weight, option, h).dequantize())


def test_32_bits_lose_nothing(heavy_tailed: Draw) -> None:
    weight, _ = heavy_tailed(3, 5)
    packed = compress_matrix(weight.t(), WeightOption(32), None)
    assert packed.codes.dtype == torch.float32
    assert torch.equal(packed.dequantize(), weight.t())


def test_16_bits_keep_bfloat16_as_it_is_and_take_the_finer_format_otherwise(heavy_tailed: Draw) -> None:
    weight, _ = heavy_tailed(3, 5)
    coarse = compress_matrix(weight.bfloat16().float(), WeightOption(16), None)
    assert coarse.codes.dtype == torch.bfloat16
    assert torch.equal(coarse.dequantize(), weight.bfloat16().float())
    assert torch.equal(compress_matrix(weight.bfloat16(), WeightOption(16), None).codes, coarse.codes)
    fine = compress_matrix(weight, WeightOption(16), None)
    assert fine.codes.dtype == torch.float16
    torch.testing.assert_close(fine.dequantize(), weight, rtol=2**-11, atol=2**-25)


def test_16_bits_fall_back_to_bfloat16_where_float16_overflows(heavy_tailed: Draw) -> None:
    weight, _ = heavy_tailed(3, 5)
    weight[1, 2] = 1e6
    packed = compress_matrix(weight, WeightOption(16), None)
    assert packed.codes.dtype == torch.bfloat16
    torch.testing.assert_close(packed.dequantize(), weight, rtol=2**-8, atol=0)


@pytest.mark.parametrize("option", [WeightOption(16), WeightOption(32), WeightOption(4, 32, "float")])
def test_no_format_takes_weights_that_are_not_finite(option: WeightOption) -> None:
    with pytest.raises(InputError, match="not finite"):
        compress_matrix(torch.full((2, 32), torch.nan), option, None)
