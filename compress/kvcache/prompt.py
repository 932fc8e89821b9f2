"""A prompt run through the model with nothing compressed, and all that caches are made of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from .attention import attention_of, leave
from .base import BaseLayer

OBSERVED = 32
"""Last positions of a prompt whose queries are kept, to judge by which tokens may be evicted."""


@dataclass
class Prefilled:
    """What a prompt leaves behind in a model.

    Attributes:
        keys, values: per layer (batch, kv_heads, tokens, width), keys after rotary embedding, in the model's
            dtype; of a layer with a sliding window only the last tokens that the window of the last position,
            or of one whose queries are kept, reaches.
        queries: per layer (batch, heads, min(tokens, :data:`OBSERVED`), width), of the last positions.
        windows: sliding window of each layer in tokens, or None.
        scalings: factor of each layer's attention logits.
        tokens: length of the prompt.
        logits: (batch, vocabulary), of the last position.
    """

    keys: list[Tensor]
    values: list[Tensor]
    queries: list[Tensor]
    windows: list[int | None]
    scalings: list[float]
    tokens: int
    logits: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = [*self.keys, *self.values, *self.queries, self.logits]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@torch.no_grad()
def prefill(model: PreTrainedModel, ids: Tensor) -> Prefilled:
    """Run prompts of one length, ids (batch, tokens), through the model.

    Raises:
        ValueError: the prompt is empty, or a layer of the model is neither full attention nor a sliding
            window of it.
    """
    if ids.shape[1] == 0:
        raise ValueError("A prompt needs at least one token.")
    layers = [_PromptLayer(window) for window in windows_of(model)]
    with attention_of(model):
        logits = run(model, ids, Cache(layers=list(layers)), only_last=True)
    return Prefilled(
        keys=[layer.keys for layer in layers],
        values=[layer.values for layer in layers],
        queries=[layer.queries for layer in layers],
        windows=[layer.window for layer in layers],
        scalings=[layer.scaling for layer in layers],
        tokens=ids.shape[1],
        logits=logits[:, -1].clone(),
    )


def run(model: PreTrainedModel, ids: Tensor, cache: Cache, only_last: bool = False) -> Tensor:
    """Return the logits of ids (batch, tokens) that continue what the cache has seen.

    Args:
        model: a causal language model.
        ids: (batch, tokens).
        cache: is updated.
        only_last: whether only the last position's logits are wanted, where the model can do less for it.
    """
    known = inspect.signature(model.forward).parameters
    # Later releases of transformers call it `cache`.
    options: dict[str, Any] = {"cache" if "cache" in known else "past_key_values": cache}
    if only_last and "logits_to_keep" in known:
        options["logits_to_keep"] = 1
    logits: Tensor = model(input_ids=ids, use_cache=True, **options).logits
    return logits


def windows_of(model: PreTrainedModel) -> list[int | None]:
    """Return the sliding window of every decoder layer, None for full attention.

    Raises:
        ValueError: a layer is of another kind.
    """
    config = model.config.get_text_config(decoder=True)
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        raise ValueError("Chunked attention is not supported by compressed caches.")
    windows: list[int | None] = []
    for index, layer in enumerate(DynamicCache(config=config).layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise ValueError(
                f"Layer {index} has a {type(layer).__name__}: only full attention and sliding "
                "windows are supported by compressed caches."
            )
        windows.append(getattr(layer, "sliding_window", None))
    return windows


class _PromptLayer(BaseLayer):  # type: ignore[no-untyped-call]
    """Keeps keys, values and the last queries of one layer as the model gives them."""

    keys: Tensor
    values: Tensor
    queries: Tensor
    scaling: float

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = self._held(key_states), self._held(value_states)
        leave(self._record)
        return key_states, value_states

    def _held(self, states: Tensor) -> Tensor:
        reach = states.shape[2] if self.window is None else self.window + OBSERVED - 1
        # A copy, since what the model gives is often a view of something larger.
        return states[:, :, -reach:].clone(memory_format=torch.contiguous_format)

    def _record(self, queries: Tensor, scaling: float) -> None:
        self.queries, self.scaling = queries[:, :, -OBSERVED:].contiguous(), scaling

    def get_seq_length(self) -> int:
        """Return 0: a prompt comes at once."""
        return 0
