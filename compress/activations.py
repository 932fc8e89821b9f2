"""What llama.cpp does to the inputs of a matrix: it rounds them to 8 bits, so as to multiply integers.

Losses of plans for llama.cpp are measured with inputs rounded in the same way, so that they are those of the
file that is shipped. Formulas: ``quantize_row_q8_K_ref`` and ``quantize_row_q8_0_ref`` in llama.cpp's
``ggml-quants.c``; which type multiplies which: ``vec_dot_type`` in its ``ggml-cpu.c``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor, nn

from tightfit.compress.hooks import input_hooks
from tightfit.spaces import EMBED, HEAD, Geometry, GgmlOption, Option

Rounding = Callable[[Tensor], Tensor]

_BLOCK_K, _BLOCK = 256, 32
_LARGEST = 127


def round_blocks_of_256(x: Tensor) -> Tensor:
    """Round inputs as for K-quants and codebook types: a float32 scale for every 256 (``Q8_K``).

    The largest of a block in magnitude becomes −127, so that the scale has its opposite sign.

    Args:
        x: float32, its last dimension a multiple of 256.
    """
    blocks = x.view(*x.shape[:-1], -1, _BLOCK_K)
    at = blocks.abs().argmax(-1, keepdim=True)
    inverse = -_LARGEST / blocks.gather(-1, at)
    codes = (blocks * inverse).round().clamp(max=_LARGEST)
    return torch.where(inverse.isfinite(), codes * inverse.reciprocal(), 0.0).flatten(-2)


def round_blocks_of_32(x: Tensor) -> Tensor:
    """Round inputs as for the types with blocks of 32: a float16 scale for each (``Q8_0``).

    Args:
        x: float32, its last dimension a multiple of 32.
    """
    blocks = x.view(*x.shape[:-1], -1, _BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True)
    codes = (blocks * (_LARGEST / largest)).round()
    return torch.where(largest > 0, codes * (largest / _LARGEST).half().float(), 0.0).flatten(-2)


def round_to_half(x: Tensor) -> Tensor:
    """Round inputs as for ``F16``."""
    return x.half().float()


def round_to_bfloat16(x: Tensor) -> Tensor:
    """Round inputs as for ``BF16``."""
    return x.bfloat16().float()


def rounding_of(option: Option) -> Rounding | None:
    """Return how a format has the inputs rounded that it is multiplied with; None where it has not."""
    if not isinstance(option, GgmlOption) or option.type == "F32":
        return None
    if not option.quantized:
        return round_to_half if option.type == "F16" else round_to_bfloat16
    return round_blocks_of_256 if option.block == _BLOCK_K else round_blocks_of_32


def rounded_inputs(
    model: nn.Module, geometry: Geometry, options: Mapping[str, Option]
) -> AbstractContextManager[None]:
    """Round the inputs of every matrix as its option asks for, while the context lasts.

    Args:
        model: causal LM in Transformers' module layout.
        geometry: its shape.
        options: of the sites that own their bytes; a tied head follows the embedding.
    """
    hooks, last = {}, _Last()
    for linear in geometry.linears:
        option = options.get(EMBED if linear.site == HEAD and geometry.tied else linear.site)
        rounding = None if option is None or linear.site == EMBED else rounding_of(option)
        if rounding is not None:
            hooks[linear.path] = partial(_round, last, rounding)
    return input_hooks(model, hooks)


class _Last(threading.local):
    """What a thread rounded last: queries, keys and values multiply one and the same input."""

    rounding: Rounding | None = None
    given: Tensor | None = None
    rounded: Tensor | None = None


def _round(
    last: _Last, rounding: Rounding, module: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    x = inputs[0]
    if last.given is not x or last.rounding is not rounding or last.rounded is None:
        last.given, last.rounding, last.rounded = x, rounding, rounding(x.float()).to(x.dtype)
    return (last.rounded, *inputs[1:])
