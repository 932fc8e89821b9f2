"""The model's attention, led through a function of ours while a compressed cache is in use.

Layers of a compressed cache differ in how many tokens they hold, and the heads of a layer in which, so the
one mask that a model makes for all layers does not fit. A layer's ``update`` is called by the attention
module right before the attention function and in the same thread: it leaves a :class:`View` of what it
returned, and the attention function takes it, builds the layer's own mask and passes on to the implementation
that the model had before. Where no view was left (a plain forward) everything passes through untouched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_SUPPORTED = ("sdpa", "eager")
# Its own name for every copy of this package, so that two of them can be used side by side.
_PREFIX = __name__.replace(".", "_") + "_"


@dataclass
class View:
    """What a query of the tokens just added may see of the keys that a cache layer returned.

    Query i is at position ``start + i`` and sees a key if first ≤ position ≤ last of the key.

    Attributes:
        start: position of the first query.
        first, last: int64, (keys,), or (batch, kv_heads, keys) where heads differ; None if all is seen.
    """

    start: int
    first: Tensor | None = None
    last: Tensor | None = None

    def mask(self, queries: int, heads: int) -> Tensor | None:
        """Return what is seen: bool (batch or 1, heads or 1, queries, keys), or None for everything."""
        if self.first is None or self.last is None:
            return None
        at = torch.arange(self.start, self.start + queries, device=self.first.device).unsqueeze(-1)
        seen = (self.first.unsqueeze(-2) <= at) & (at <= self.last.unsqueeze(-2))
        if seen.dim() == 2:
            return seen[None, None]
        return seen.repeat_interleave(heads // seen.shape[1], 1)


Recorder = Callable[[Tensor, float], None]
"""Takes the queries (batch, heads, tokens, width) of a layer and the scaling of its logits."""


class _Pending(threading.local):
    """What a cache layer left for the attention function of the same thread."""

    note: View | Recorder | None = None


_pending = _Pending()
_lock = threading.Lock()
_users: WeakKeyDictionary[PreTrainedModel, int] = WeakKeyDictionary()


def leave(note: View | Recorder) -> None:
    """Leave a note for the attention function that this thread calls next.

    Raises:
        RuntimeError: nobody took the last one, so the model's attention is not led through us.
    """
    if _pending.note is not None:
        _pending.note = None
        raise RuntimeError("A compressed cache was used outside of `with attention_of(model):`.")
    _pending.note = note


@contextmanager
def attention_of(model: PreTrainedModel) -> Iterator[None]:
    """Lead the attention of a model through ours while the context lasts.

    Contexts may be nested and opened by several threads: the last one that closes restores the model.

    Raises:
        ValueError: the model's attention is neither ``sdpa`` nor ``eager``.
    """
    with _lock:
        if model not in _users:
            _switch(model)
        _users[model] = _users.get(model, 0) + 1
    _pending.note = None  # of a forward that failed halfway
    try:
        yield
    finally:
        _pending.note = None
        with _lock:
            _users[model] -= 1
            if not _users[model]:
                del _users[model]
                name: str = model.config._attn_implementation
                model.set_attn_implementation(name.removeprefix(_PREFIX))


def _switch(model: PreTrainedModel) -> None:
    name = model.config._attn_implementation
    if name not in _SUPPORTED:
        raise ValueError(f"Attention {name!r} takes no masks per layer; load the model with sdpa or eager.")
    model.set_attn_implementation(_PREFIX + name)
    if model.config._attn_implementation != _PREFIX + name:
        raise ValueError(f"{type(model).__name__} does not use transformers' attention interface.")


def _attention(
    base: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend with the mask of the layer's view, or record queries, or simply pass on.

    The arguments but the first are those of every attention function of transformers: query (batch, heads,
    queries, width), key and value (batch, kv_heads, keys, width).
    """
    note, _pending.note = _pending.note, None
    if isinstance(note, View):
        attention_mask = note.mask(query.shape[2], query.shape[1])
        if attention_mask is not None and base == "eager":
            seen = torch.zeros((), dtype=query.dtype, device=query.device)
            attention_mask = torch.where(attention_mask, seen, torch.finfo(query.dtype).min)
    elif note is not None:
        note(query, _scaling(query, kwargs.get("scaling")))
    result: tuple[Tensor, Tensor | None] = _base(base, module)(
        module, query, key, value, attention_mask, **kwargs
    )
    return result


def _scaling(query: Tensor, given: float | None) -> float:
    return query.shape[-1] ** -0.5 if given is None else float(given)


def _base(name: str, module: nn.Module) -> Callable[..., Any]:
    """Return the implementation the model had before; the eager one is in its modeling file."""
    if name != "eager":
        found: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS[name]
        return found
    for kind in type(module).__mro__:
        eager = getattr(sys.modules[kind.__module__], "eager_attention_forward", None)
        if eager is not None:
            return eager  # type: ignore[no-any-return]
    raise ValueError(f"{type(module).__name__} has no eager attention function in its modeling file.")


def _sdpa(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    return _attention("sdpa", *args, **kwargs)


def _eager(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    return _attention("eager", *args, **kwargs)


for _name, _function in (("sdpa", _sdpa), ("eager", _eager)):
    AttentionInterface.register(_PREFIX + _name, _function)
    AttentionMaskInterface.register(_PREFIX + _name, ALL_MASK_ATTENTION_FUNCTIONS[_name])
