"""Grouped integer quantization.

A matrix of ``rows`` × ``cols`` is cut along its input dimension into groups of ``group`` weights.
Group weights become integer codes q in [0, 2^bits − 1] and are read back as

* ``float`` zero:   w ≈ scale · q + minimum, the minimum kept as a 16-bit float;
* ``integer`` zero: w ≈ scale · (q − zero), the zero point kept as an integer of ``bits`` bits;
* ``none``:         w ≈ scale · (q − 2^(bits−1)), symmetric. The scale may be negative, so that
  the one extra code of the range can serve either end.

Scales and zero points minimize Σⱼ hⱼ (wⱼ − ŵⱼ)² in every group, where hⱼ = E[xⱼ²] is the mean
square of the input feature that the weight multiplies: to first order this is the error of the
layer's output when inputs are uncorrelated (the diagonal of the Hessian that GPTQ uses, Frantar
et al. 2023, arXiv:2210.17323). :mod:`tightfit.compress.ranges` says how they are found.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tightfit.compress.packed import PackedTensor, pack_codes
from tightfit.compress.ranges import codes_of, fit_ranges
from tightfit.spaces import InputError, WeightOption

# Weights handled at once: few enough that every temporary stays in a core's cache.
_CHUNK = 1 << 17


def quantize(weight: Tensor, option: WeightOption, importance: Tensor | None = None) -> PackedTensor:
    """Quantize a rows × cols matrix.

    Args:
        weight: float tensor of shape (rows, cols), groups along cols.
        option: bits, group size and kind of zero point.
        importance: h of shape (cols,), mean square of each input feature; equal weights if None.

    Returns:
        The packed tensor: exactly ``option.tensor_bytes(rows, cols)`` bytes.

    Raises:
        InputError: a weight or an importance is not finite, a weight is too large for 16-bit
            scales, or the width is no multiple of the group.
    """
    rows, cols = weight.shape
    if not option.divides(cols):
        raise InputError(f"group {option.group} does not divide {cols} input weights.")
    shape = (-1, cols // (option.group or cols), option.group or cols)
    w = _finite(weight.detach().float(), "weights").reshape(shape)
    h = torch.ones(cols) if importance is None else _finite(importance.float(), "importances")
    h = h.to(w.device).reshape(shape)
    codes = torch.empty(w.shape, dtype=torch.uint8, device=w.device)
    scales = torch.empty(w.shape[:2], dtype=torch.float16, device=w.device)
    zeros = torch.empty_like(scales)
    for part in torch.arange(rows).split(max(1, _CHUNK // cols)):
        chunk = slice(int(part[0]), int(part[-1]) + 1)
        ranges = fit_ranges(w[chunk], h, option)
        codes[chunk] = codes_of(w[chunk], ranges, option.bits)
        scales[chunk] = ranges.scale
        zeros[chunk] = ranges.offset if option.zero == "float" else ranges.offset / -ranges.scale
    return PackedTensor(option, rows, cols, pack_codes(codes, option.bits), scales, _stored(zeros, option))


def _finite(x: Tensor, what: str) -> Tensor:
    if not bool(torch.isfinite(x).all()):
        raise InputError(f"the {what} hold a value that is not finite.")
    return x


def _stored(zeros: Tensor, option: WeightOption) -> Tensor | None:
    if option.zero == "none":
        return None
    return zeros if option.zero == "float" else pack_codes(zeros.round().to(torch.uint8), option.bits)
