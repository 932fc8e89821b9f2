"""The quantizers: which function carries which option out."""

from __future__ import annotations

import torch
from torch import Tensor

from tightfit.compress.ggml import quantize_ggml
from tightfit.compress.integer import quantize
from tightfit.compress.packed import PackedTensor
from tightfit.spaces import GgmlOption, InputError, Option, WeightOption

# Part of every content key: raise it whenever a change here or in a quantizer changes any stored byte.
QUANTIZER_VERSION = 2


def compress_matrix(weight: Tensor, option: Option, importance: Tensor | None) -> PackedTensor:
    """Store a rows × cols matrix as an option says.

    Args:
        weight: float tensor (rows, cols).
        option: the format.
        importance: mean square of each input feature, shape (cols,), or None.

    Raises:
        InputError: the matrix cannot be stored this way.
    """
    if isinstance(option, GgmlOption):
        rows, cols = weight.shape
        return PackedTensor(option, rows, cols, quantize_ggml(weight, option, importance))
    if option.quantized:
        return quantize(weight, option, importance)
    return _plain(weight, option)


def _plain(weight: Tensor, option: WeightOption) -> PackedTensor:
    """Keep a matrix as floats; 16 bits are float16, or bfloat16 where that is lossless or a must."""
    if not bool(torch.isfinite(weight).all()):
        raise InputError("the weights hold a value that is not finite.")
    stored = weight.detach().to(torch.float32 if option.bits == 32 else torch.bfloat16)
    if option.bits == 16 and not torch.equal(stored.to(weight.dtype), weight):
        half = weight.detach().half()
        stored = half if bool(torch.isfinite(half).all()) else stored
    rows, cols = weight.shape
    return PackedTensor(option, rows, cols, stored.contiguous())
