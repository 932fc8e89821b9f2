"""Grouped integer quantization whose clipping minimizes the activation-weighted weight error.

A matrix of ``rows`` × ``cols`` is cut along its input dimension into groups of ``group`` weights.
Group weights become integer codes q in [0, 2^bits − 1] and are read back as

* ``float`` zero:   w ≈ scale · q + minimum, the minimum kept as a 16-bit float;
* ``integer`` zero: w ≈ scale · (q − zero), the zero point kept as an integer of ``bits`` bits;
* ``none``:         w ≈ scale · (q − 2^(bits−1)), symmetric. The scale may be negative, so that
  the group's largest weight, whatever its sign, can use the one extra code of the range.

Min–max scales waste codes on outliers. For every group a grid of shrunken ranges is tried and the
one with the least Σⱼ hⱼ (wⱼ − ŵⱼ)² kept, where hⱼ = E[xⱼ²] is the mean square of the input
feature that the weight multiplies: to first order this is the error of the layer's output when
inputs are uncorrelated (the diagonal of the Hessian that GPTQ uses, Frantar et al. 2023,
arXiv:2210.17323; the range search is that of AWQ's clipping, Lin et al. 2024, arXiv:2306.00978).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tightfit.compress.packed import PackedTensor, pack_codes
from tightfit.spaces import InputError, WeightOption

# Range shrinkage tried per group. Fewer bits gain from harder clipping.
_SHRINK = {
    2: (1.0, 0.92, 0.84, 0.77, 0.70, 0.63, 0.56, 0.49),
    3: (1.0, 0.95, 0.90, 0.85, 0.80, 0.74, 0.68, 0.60),
    4: (1.0, 0.96, 0.92, 0.88, 0.84, 0.79),
    5: (1.0, 0.97, 0.94, 0.91, 0.87),
    6: (1.0, 0.98, 0.96, 0.93),
    8: (1.0,),
}
# Weights handled at once: small enough that every temporary stays in a core's cache.
_CHUNK = 1 << 18


def quantize(weight: Tensor, option: WeightOption, importance: Tensor | None = None) -> PackedTensor:
    """Quantize a rows × cols matrix.

    Args:
        weight: float tensor of shape (rows, cols), groups along cols.
        option: bits, group size and kind of zero point.
        importance: h of shape (cols,), mean square of each input feature; equal weights if None.

    Returns:
        The packed tensor: exactly ``option.tensor_bytes(rows, cols)`` bytes.

    Raises:
        InputError: the weight holds a value that is not finite or too large for 16-bit scales, or
            its width is no multiple of the group.
    """
    rows, cols = weight.shape
    if not option.divides(cols):
        raise InputError(f"group {option.group} does not divide {cols} input weights.")
    if not bool(torch.isfinite(weight).all()):
        raise InputError("the weights hold a value that is not finite.")
    group = option.group or cols
    grouped = weight.detach().float().reshape(rows, cols // group, group)
    h = torch.ones(cols, device=weight.device) if importance is None else importance.float()
    h = h.to(weight.device).reshape(1, cols // group, group)
    codes = torch.empty(rows, cols // group, group, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(rows, cols // group, dtype=torch.float16, device=weight.device)
    zeros = torch.empty_like(scales)
    step = max(1, _CHUNK // cols)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        codes[part], scales[part], zeros[part] = _quantize_groups(grouped[part], h, option)
    if not bool(torch.isfinite(scales).all()) or not bool(torch.isfinite(zeros).all()):
        raise InputError("the weights are too large for 16-bit group scales.")
    return PackedTensor(option, rows, cols, pack_codes(codes, option.bits), scales, _stored(zeros, option))


def _stored(zeros: Tensor, option: WeightOption) -> Tensor | None:
    if option.zero == "none":
        return None
    return zeros if option.zero == "float" else pack_codes(zeros.to(torch.uint8), option.bits)


def _quantize_groups(w: Tensor, h: Tensor, option: WeightOption) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, scales and zeros of the best candidate per group of w (rows, groups, group)."""
    best_error = torch.full(w.shape[:2], torch.inf, device=w.device)
    best_scale, best_offset = torch.zeros_like(best_error), torch.zeros_like(best_error)
    best_zero = torch.zeros_like(best_error)
    for scale, offset, zero in _candidates(w, option):
        error = _reconstruct(w, scale, offset, option)[1].square_().mul_(h).sum(-1)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, scale, best_scale)
        best_offset = torch.where(better, offset, best_offset)
        best_zero = torch.where(better, zero, best_zero)
    codes = _reconstruct(w, best_scale, best_offset, option)[0]
    return codes.to(torch.uint8), best_scale.half(), best_zero.half()


def _reconstruct(w: Tensor, scale: Tensor, offset: Tensor, option: WeightOption) -> tuple[Tensor, Tensor]:
    """Return codes and error (ŵ − w) for w ≈ scale · q + offset, scales given per group."""
    inverse = torch.where(scale == 0, 0.0, 1.0 / scale)
    codes = torch.addcmul((-offset * inverse).unsqueeze(-1), w, inverse.unsqueeze(-1))
    codes.round_().clamp_(0, 2**option.bits - 1)
    error = torch.addcmul(offset.unsqueeze(-1), codes, scale.unsqueeze(-1)).sub_(w)
    return codes, error


def _candidates(w: Tensor, option: WeightOption) -> Sequence[tuple[Tensor, Tensor, Tensor]]:
    """Return (scale, offset, zero) per shrinkage, rounded to what will be stored."""
    levels = 2**option.bits - 1
    low, high = torch.aminmax(w, dim=-1)
    result = []
    if option.zero == "none":
        largest = torch.where(high > -low, high, low)
        for shrink in _SHRINK[option.bits]:
            scale = _half(largest * (-shrink / 2 ** (option.bits - 1)))
            result.append((scale, scale * -(2 ** (option.bits - 1)), torch.zeros_like(scale)))
        return result
    if option.zero == "integer":
        # The range must hold 0, or its zero point would not be one of the codes.
        low, high = low.clamp(max=0), high.clamp(min=0)
    for shrink in _SHRINK[option.bits]:
        scale = _half((high - low) * (shrink / levels))
        if option.zero == "float":
            centre = (high + low) * ((1 - shrink) / 2)
            minimum = _half(low * shrink + centre)
            result.append((scale, minimum, minimum))
        else:
            inverse = torch.where(scale == 0, 0.0, 1.0 / scale)
            zero = (-low * shrink * inverse).round_().clamp_(0, levels)
            result.append((scale, scale * -zero, zero))
    return result


def _half(x: Tensor) -> Tensor:
    """Round to what a 16-bit float can hold, so that the search sees the stored scale."""
    return x.half().float()
