"""Calibration statistics: what the inputs of every matrix look like, in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor, nn

from tightfit.compress.hooks import input_hooks
from tightfit.spaces import EMBED, HEAD, Geometry


def input_energy(model: nn.Module, geometry: Geometry, windows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Mean square of every input feature of every matrix, over all calibration tokens.

    Args:
        model: causal LM in Transformers' module layout.
        geometry: its shape; says which modules to look at.
        windows: token ids, each of shape (tokens,).

    Returns:
        Per site a float32 tensor of shape (cols,). An untied embedding multiplies no input, so it
        has no entry; a tied one has the head's, whose matrix it is.
    """
    sums: dict[str, Tensor] = {}

    def record(site: str, x: Tensor) -> None:
        square = x.detach().reshape(-1, x.shape[-1]).float().square().sum(0)
        sums[site] = sums[site] + square if site in sums else square

    with torch.no_grad(), watch_inputs(model, geometry, record):
        for window in windows:
            model(input_ids=window.unsqueeze(0), use_cache=False)
    tokens = sum(window.numel() for window in windows)
    energy = {site: total / tokens for site, total in sums.items()}
    if geometry.tied:
        energy[EMBED] = energy[HEAD]
    return energy


def watch_inputs(
    model: nn.Module, geometry: Geometry, record: Callable[[str, Tensor], None]
) -> AbstractContextManager[None]:
    """Call ``record(site, input)`` at every forward of every matrix that multiplies an input."""

    def hook(site: str, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        record(site, args[0])

    return input_hooks(model, {x.path: partial(hook, x.site) for x in geometry.linears if x.site != EMBED})
