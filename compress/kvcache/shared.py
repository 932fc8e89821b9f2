"""A layer without a cache of its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .base import BaseLayer
from .layer import PlanLayer


class SharedLayer(BaseLayer):  # type: ignore[no-untyped-call]
    """A layer that stores nothing: its queries attend to the keys and values of a layer below it.

    This holds for old and for new tokens, as in cross-layer attention (Brandon et al., *Reducing Transformer
    Key-Value Cache Size with Cross-Layer Attention*, 2024, arXiv:2405.12981).

    Attributes:
        owner: the nearest layer below that stores something.
    """

    def __init__(self, owner: PlanLayer) -> None:
        super().__init__()
        self.owner = owner

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Return what the owner returned in this forward; the layer's own states are not used."""
        if self.owner.lent is None:
            raise RuntimeError("A shared layer came before the layer that it reads.")
        return self.owner.lent

    def get_seq_length(self) -> int:
        """Return the number of tokens seen."""
        return self.owner.get_seq_length()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Nothing to reorder."""

    def batch_select_indices(self, indices: Tensor) -> None:
        """Nothing to select."""

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Nothing to repeat."""
