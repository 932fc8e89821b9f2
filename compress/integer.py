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

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from tightfit.compress.packed import PackedTensor, pack_codes
from tightfit.compress.ranges import codes_of, fit_ranges
from tightfit.compress.threads import one_thread
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
    h = torch.ones(cols) if importance is None else _finite(importance.float(), "importances")
    h = h.to(weight.device).contiguous().view(shape)
    stream = torch.empty(option.code_bytes(rows, cols), dtype=torch.uint8, device=weight.device)
    scales = torch.empty(rows, shape[1], dtype=torch.float16, device=weight.device)
    zeros = torch.empty_like(scales)

    def fill(start: int) -> None:
        part = slice(start, start + step)
        # Contiguous, because the order in which torch adds follows the order in memory.
        w = _finite(weight.detach()[part].float().contiguous(), "weights").view(shape)
        ranges = fit_ranges(w, h, option)
        packed = pack_codes(codes_of(w, ranges, option.bits), option.bits)
        first = start * cols * option.bits // 8
        stream[first : first + len(packed)] = packed
        scales[part] = ranges.scale
        zeros[part] = ranges.offset if option.zero == "float" else (ranges.offset / -ranges.scale).round_()

    # A multiple of 8 rows, so that the codes of every chunk start at a whole byte.
    step = max(1, _CHUNK // (8 * cols)) * 8
    with one_thread() as threads, ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, range(0, rows, step)))
    return PackedTensor(option, rows, cols, stream, scales, _stored(zeros, option))


def _finite(x: Tensor, what: str) -> Tensor:
    if not bool(torch.isfinite(x).all()):
        raise InputError(f"the {what} hold a value that is not finite.")
    return x


def _stored(zeros: Tensor, option: WeightOption) -> Tensor | None:
    if option.zero == "none":
        return None
    return zeros if option.zero == "float" else pack_codes(zeros.to(torch.uint8), option.bits)
