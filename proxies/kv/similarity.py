"""How little a decoder block changes its hidden states: cosine of what goes in and what comes out.

SqueezeAttention (Wang et al., *SqueezeAttention: 2D Management of KV-Cache in LLM Inference via Layer-wise
Optimal Budget*, ICLR 2025, arXiv:2404.04793) compares hidden states before and after the self-attention of a
prompt's tokens, and takes cache from layers whose attention changes little. The cosine over the whole block,
its MLP included, is given beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tightfit.spaces import Geometry, InputError

# The norm before the MLP: its input is the residual stream right after attention. Where a family
# also has a norm on the output of attention, that one is called post_attention_layernorm.
_NORMS = ("pre_feedforward_layernorm", "post_attention_layernorm", "ln_2")


@dataclass(frozen=True, eq=False)
class Similarity:
    """Cosines of every block, float64 of shape (layers,), at most 1: near 1 means little changed.

    Attributes:
        attention: of the residual stream before and after self-attention, as published.
        block: of the residual stream before and after the whole block.
    """

    attention: NDArray[np.float64]
    block: NDArray[np.float64]


def block_similarity(model: nn.Module, geometry: Geometry, windows: Sequence[Tensor]) -> Similarity:
    """Measure the mean cosine over all tokens, in one forward per window.

    Args:
        model: causal LM in Transformers' module layout.
        geometry: its shape.
        windows: token ids, each of shape (tokens,).

    Raises:
        InputError: there are no windows, or a block has no norm before its MLP.
    """
    if not windows:
        raise InputError("cosines of hidden states need at least one window of tokens.")
    blocks = [model.get_submodule(path) for path in block_paths(geometry)]
    watch = _Watch(len(blocks))
    handles = []
    try:
        for layer, block in enumerate(blocks):
            handles += watch.attach(layer, block)
        device = next(model.parameters()).device
        with torch.no_grad():
            for window in windows:
                model(input_ids=window.to(device).unsqueeze(0), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    tokens = sum(window.numel() for window in windows)
    attention, block = np.minimum(watch.sums.numpy() / tokens, 1.0)
    return Similarity(attention, block)


def block_paths(geometry: Geometry) -> list[str]:
    """Module path of every decoder block: ``model.layers.3`` of ``model.layers.3.self_attn.q_proj``."""
    found = {x.layer: x.path.rsplit(".", 2)[0] for x in geometry.linears if x.layer is not None}
    return [found[layer] for layer in range(geometry.layers)]


class _Watch:
    """Sums of cosines over tokens, shape (2, layers), filled while a model runs."""

    def __init__(self, layers: int) -> None:
        self.sums = torch.zeros(2, layers, dtype=torch.float64)
        self._entered: Tensor | None = None

    def attach(self, layer: int, block: nn.Module) -> list[torch.utils.hooks.RemovableHandle]:
        norm = next((getattr(block, name) for name in _NORMS if hasattr(block, name)), None)
        if norm is None:
            raise InputError(f"layer {layer}: no norm before its MLP is known ({', '.join(_NORMS)}).")

        def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._entered = inputs[0]

        def attended(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._add(0, layer, inputs[0])

        def leave(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            self._add(1, layer, output[0] if isinstance(output, tuple) else output)
            self._entered = None

        return [
            block.register_forward_pre_hook(enter),
            norm.register_forward_pre_hook(attended),
            block.register_forward_hook(leave),
        ]

    def _add(self, row: int, layer: int, after: Tensor) -> None:
        before = self._entered
        assert before is not None  # the block's own hook ran first
        cosines = nn.functional.cosine_similarity(before.double(), after.double(), dim=-1)
        self.sums[row, layer] += cosines.sum().cpu()
