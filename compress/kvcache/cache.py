"""The compressed cache of a whole model, and a text continued on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from .attention import attention_of, leave
from .formats import CacheFormat
from .layer import PlanLayer
from .prompt import Prefilled, run
from .shared import SharedLayer


class PlanCache(Cache):
    """A cache with one layer object per decoder layer, each stored in its own format.

    It works inside :func:`attention_of` only, and a cache belongs to one thread at a time; threads with a
    cache each may run the same model side by side.
    """

    layers: list[PlanLayer | SharedLayer]  # type: ignore[assignment]

    @classmethod
    def from_prefill(cls, prefilled: Prefilled, formats: Sequence[CacheFormat | None]) -> PlanCache:
        """Compress what a prompt left behind; ``prefilled`` stays as it is.

        Args:
            prefilled: of :func:`prefill`.
            formats: one per layer; None stores what the model gave, in its own dtype.

        Raises:
            ValueError: the number of formats is not that of layers, a layout does not fit a layer's width,
                or a layer shares the cache of one that is not of its shape.
        """
        if len(formats) != len(prefilled.keys):
            raise ValueError(f"{len(formats)} formats were given for {len(prefilled.keys)} layers.")
        layers: list[PlanLayer | SharedLayer] = []
        for index, form in enumerate(formats):
            if form is None or not form.shared:
                layers.append(PlanLayer(prefilled, index, form))
            else:
                _check_shared(prefilled, index)
                below = layers[-1]
                layers.append(SharedLayer(below.owner if isinstance(below, SharedLayer) else below))
        return cls(layers=list(layers))

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append to a layer; return what its queries attend to, and leave the mask for the attention."""
        layer = self.layers[layer_idx]
        states = layer.update(key_states, value_states)
        owner = layer.owner if isinstance(layer, SharedLayer) else layer
        leave(owner.view)
        if layer_idx + 1 == len(self.layers) or not isinstance(self.layers[layer_idx + 1], SharedLayer):
            owner.lent = None  # nobody reads it any more
        return states

    @property
    def layer_bytes(self) -> list[int]:
        """Bytes that each layer holds for its tokens, counted from its tensors."""
        return [
            sum(tensor.numel() * tensor.element_size() for tensor in layer.tensors().values())
            for layer in self.layers
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all layers: codes, scales, minima, widths, positions and 16-bit tokens."""
        return sum(self.layer_bytes)

    def next_change(self) -> int | None:
        """Return how many tokens one forward may add and give what one token at a time gives.

        None means any number; see :meth:`PlanLayer.next_change`.
        """
        limits = [layer.next_change() for layer in self.layers if isinstance(layer, PlanLayer)]
        return min((limit for limit in limits if limit is not None), default=None)


def _check_shared(prefilled: Prefilled, index: int) -> None:
    """Refuse to share where there is no layer below, or one of another shape."""
    if index == 0:
        raise ValueError("Layer 0 has no layer below whose cache it could share.")
    for what, mine, below in (
        ("KV heads", prefilled.keys[index].shape[1], prefilled.keys[index - 1].shape[1]),
        ("head width", prefilled.keys[index].shape[3], prefilled.keys[index - 1].shape[3]),
        ("sliding window", prefilled.windows[index], prefilled.windows[index - 1]),
    ):
        if mine != below:
            raise ValueError(
                f"Layer {index} cannot share the cache of the layer below: its {what} is {mine}, not {below}."
            )


@torch.no_grad()
def continue_with(model: PreTrainedModel, cache: PlanCache, ids: Tensor) -> Tensor:
    """Let the model read a known continuation, as if one token came at a time.

    Args:
        model: the model of the prefill.
        cache: is updated.
        ids: (batch, tokens), what follows the prompt.

    Returns:
        Logits (batch, tokens, vocabulary); those at position i predict token i + 1.
    """
    pieces, start = [], 0
    with attention_of(model):
        while start < ids.shape[1]:
            size = cache.next_change() or ids.shape[1]
            pieces.append(run(model, ids[:, start : start + size], cache))
            start += size
    return torch.cat(pieces, 1)
