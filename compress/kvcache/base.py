"""What the cache layers of this package have in common."""

from __future__ import annotations

from torch import Tensor
from transformers.cache_utils import CacheLayerMixin


class BaseLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """A cache layer that grows without limit, makes its own masks and cannot go back."""

    is_croppable = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is stored for the tokens, by name."""
        return {}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the mask that the model makes; the layer's own one replaces it."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1

    get_max_cache_shape = get_max_length  # its name in earlier releases of transformers

    def reset(self) -> None:
        """Refuse: what was compressed cannot be taken back."""
        raise RuntimeError("A compressed cache cannot be reset; make a new one from its prefill.")

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: what was compressed cannot be taken back."""
        raise RuntimeError("A compressed cache cannot be cropped; make a new one from its prefill.")
