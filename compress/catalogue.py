"""The quantizers: which function carries which option out."""

from __future__ import annotations

import torch
from torch import Tensor

from tightfit.compress.integer import quantize
from tightfit.compress.packed import PackedTensor
from tightfit.spaces import WeightOption

# Part of every content key: raise it whenever a change here or in a quantizer changes any stored byte.
QUANTIZER_VERSION = 1


def compress_matrix(weight: Tensor, option: WeightOption, importance: Tensor | None) -> PackedTensor:
    """Store a rows × cols matrix as an option says.

    Args:
        weight: float tensor (rows, cols).
        option: the format.
        importance: mean square of each input feature, shape (cols,), or None.

    Raises:
        InputError: the matrix cannot be stored this way.
    """
    if option.quantized:
        return quantize(weight, option, importance)
    return _plain(weight, option)


def _plain(weight: Tensor, option: WeightOption) -> PackedTensor:
    """Keep a matrix as floats; 16 bits are bfloat16 where that loses nothing, else float16."""
    dtype = torch.float32
    if option.bits == 16:
        lossless = torch.equal(weight.bfloat16().to(weight.dtype), weight)
        dtype = torch.bfloat16 if lossless else torch.float16
    rows, cols = weight.shape
    return PackedTensor(option, rows, cols, weight.detach().to(dtype).contiguous())
