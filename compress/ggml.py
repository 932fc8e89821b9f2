"""Quantizing with llama.cpp's own kernels, so that what is searched is what is shipped.

The kernels come from ``libgguf``, which holds llama.cpp's reference quantizers; the tests compare its
bytes with those of llama.cpp itself. A block never crosses rows and every row is quantized by itself, so
rows can be quantized in parallel and written in any order.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tightfit.compress.threads import one_thread
from tightfit.spaces import GgmlOption, InputError

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Weights that a thread quantizes at a time.
_CHUNK = 1 << 17


def quantize_ggml(weight: Tensor, option: GgmlOption, importance: Tensor | None) -> Tensor:
    """Quantize a rows × cols matrix.

    Args:
        weight: float tensor (rows, cols).
        option: the type.
        importance: mean square of each input feature, shape (cols,), which the kernels weigh errors
            with; None for equal weights.

    Returns:
        uint8 tensor (rows, bytes per row); for F32, F16 and BF16 a tensor (rows, cols) of that dtype.

    Raises:
        InputError: a weight is not finite or too large for the type, the blocks do not divide the width, or
            the type needs importances and has none.
    """
    rows, cols = weight.shape
    option.tensor_bytes(rows, cols)  # refuses a width that the blocks do not divide
    if not bool(torch.isfinite(weight).all()):
        raise InputError("the weights hold a value that is not finite.")
    if not option.quantized:
        stored = weight.detach().to(_DTYPES[option.type]).contiguous()
        if not bool(torch.isfinite(stored).all()):
            raise InputError(f"the weights are too large for {option.type}.")
        return stored
    if importance is None and option.needs_importance:
        raise InputError(
            f"{option.type} needs importances, and this matrix multiplies no input that has any."
        )
    return _quantized(weight, option, importance)


def dequantize_ggml(codes: Tensor, option: GgmlOption, cols: int) -> Tensor:
    """Return the float32 matrix (rows, cols) that llama.cpp reads from what :func:`quantize_ggml` made."""
    if not option.quantized:
        return codes.float()
    import libgguf

    values = libgguf.dequantize_rows(codes.cpu().numpy(), _kernel(option), n_per_row=cols)
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).view(-1, cols)


def _quantized(weight: Tensor, option: GgmlOption, importance: Tensor | None) -> Tensor:
    import libgguf

    rows, cols = weight.shape
    w = weight.detach().float().cpu().contiguous().numpy()
    h = None if importance is None else importance.float().cpu().contiguous().numpy()
    kernel = _kernel(option)
    codes = torch.empty(rows, cols // option.block * option.block_bytes, dtype=torch.uint8)
    step = max(1, _CHUNK // cols)

    def fill(start: int) -> None:
        part = libgguf.quantize_rows(w[start : start + step], kernel, imatrix=h)
        codes[start : start + step] = torch.from_numpy(part)

    fill(0)  # alone, since the first use of a codebook type builds its tables
    with one_thread() as threads, ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, range(step, rows, step)))
    return codes


def _kernel(option: GgmlOption) -> Any:
    import libgguf

    return libgguf.GGMLQuantizationType[option.type]
