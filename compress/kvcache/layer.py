"""One layer of a compressed cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention import View
from .base import BaseLayer
from .eviction import attention_scores, kept_tokens
from .formats import CacheFormat
from .prompt import Prefilled
from .store import Store, to_float16

_FOREVER = 2**62


class PlanLayer(BaseLayer):  # type: ignore[no-untyped-call]
    """The cache of one decoder layer, stored in one format.

    The tokens held are, oldest first: sinks in 16 bits, quantized tokens in whole steps, and a tail in 16
    bits. Once the tail has grown to ``residual + step`` tokens, its oldest step is quantized, each step once
    and never again. This happens after the token that completed the tail was processed: that token still sees
    16 bits, the next one integers. An update with many tokens gives every one of them what it would have
    seen alone, by returning tokens that are quantized meanwhile in both forms, masked by position.

    A layer with a sliding window of w tokens holds at most w. In 16 bits exactly the tokens that leave the
    window are dropped, or, where heads keep tokens of their own, those that have left it for every head. Of
    quantized tokens the whole oldest step is dropped as soon as more than w tokens are
    held, although the window still reaches most of it; the context lost is part of what is measured. Until
    the tail has grown by a step again, more of the w tokens are floats than right after a prompt. Updates
    must not reach past such a drop (:meth:`next_change`).

    Attributes:
        form: how the layer is stored.
        window: sliding window in tokens, or None.
        seen: tokens seen so far, which is the position of the next one.
        positions: int32 (batch, kv_heads, held), where a window needs them because tokens were evicted.
        view: what the queries of the last update see of what it returned.
        lent: what the last update returned, while a layer above may still read it.
    """

    def __init__(self, prefilled: Prefilled, index: int, form: CacheFormat | None) -> None:
        super().__init__()
        self.form = form or CacheFormat()
        self.window = prefilled.windows[index]
        self.seen = prefilled.tokens
        self.view = View(self.seen)
        self.lent: tuple[Tensor, Tensor] | None = None
        keys, values = (states[index][:, :, -self._reach :] for states in (prefilled.keys, prefilled.values))
        self.form.check(keys.shape[-1])
        chosen = self._chosen(prefilled, index)
        self.positions: Tensor | None = None
        if chosen is not None:
            keys, values = _take(keys, chosen), _take(values, chosen)
            if self.window is not None:
                self.positions = (chosen + (self.seen - self._reach)).to(torch.int32)
        held = keys.shape[2]
        self._sinks = min(self.form.sinks, held) if self.form.is_quantized else 0
        self._coded = self.form.quantized(held)
        self._tail = held - self._sinks - self._coded
        if form is not None:
            keys, values = to_float16(keys), to_float16(values)
        self._stores = tuple(
            Store(self.form, is_keys, states, self._sinks, self._coded)
            for is_keys, states in ((True, keys), (False, values))
        )

    @property
    def _reach(self) -> int:
        """Tokens of the prompt that the window reaches."""
        return self.seen if self.window is None else min(self.seen, self.window)

    def _chosen(self, prefilled: Prefilled, index: int) -> Tensor | None:
        """Return which of the tokens in reach every head keeps, (batch, heads, kept), or None for all."""
        form, keys, queries = self.form, prefilled.keys[index], prefilled.queries[index]
        if not form.evicts:
            return None
        kept = form.kept(self._reach)
        if form.cutoff or kept == self._reach:
            return torch.arange(kept, device=keys.device).expand(*keys.shape[:2], -1)
        scores = attention_scores(queries, keys, prefilled.scalings[index], self.seen, self.window)
        return kept_tokens(scores[..., -self._reach :], kept, form.sinks, form.residual)

    @property
    def _flushes(self) -> bool:
        """Whether tails are ever quantized: in a narrow window none becomes long enough."""
        form = self.form
        return form.is_quantized and (self.window is None or form.residual + form.step <= self.window)

    @property
    def held(self) -> int:
        """Tokens held, of each head."""
        return self._sinks + self._coded + self._tail

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is stored for the tokens, by name."""
        self.settle()
        keys, values = self._stores
        named = {f"keys.{name}": tensor for name, tensor in keys.tensors().items()}
        named |= {f"values.{name}": tensor for name, tensor in values.tensors().items()}
        return named if self.positions is None else {**named, "positions": self.positions}

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append tokens; return keys and values that their queries attend to, as :attr:`view` tells."""
        self.settle()
        new = key_states.shape[2]
        # Quantized within this update: all but what the last of its tokens does not see quantized yet.
        flushed = self._due(self._tail + new - 1)
        self.view = self._view(new, flushed)
        keys, values = (
            store.append(states, self._sinks + self._coded, flushed)
            for store, states in zip(self._stores, (key_states, value_states), strict=True)
        )
        self._coded += flushed
        self._tail += new - flushed
        self.seen += new
        self.lent = keys, values
        return self.lent

    def _view(self, new: int, flushed: int) -> View:
        """Build the view of an update with ``new`` tokens that quantizes ``flushed`` ones."""
        device = self._stores[0].device
        front, held = self._sinks + self._coded, self.held
        if self.positions is not None:
            added = torch.arange(self.seen, self.seen + new, dtype=torch.int32, device=device)
            self.positions = torch.cat([self.positions, added.expand(*self.positions.shape[:2], -1)], -1)
        if new == 1 and not flushed and self.window is None:
            return View(self.seen)
        arrival = torch.arange(self.seen - held, self.seen + new, device=device)
        first, last = arrival.clone(), torch.full_like(arrival, _FOREVER)
        if self.window is not None:
            last = (arrival if self.positions is None else self.positions) + self.window - 1
        if not flushed:
            return View(self.seen, first, last)
        # Tokens that are quantized come twice: integers from the query on that follows their step's
        # completion, floats until the query before it.
        step = torch.arange(flushed, device=device) // self.form.step + 1
        switch = self.seen + step * self.form.step + self.form.residual - self._tail
        until = last[..., front : front + flushed]
        return View(
            self.seen,
            torch.cat([first[:front], switch, first[front:]]),
            torch.cat(
                [last[..., :front], until, until.minimum(switch - 1), last[..., front + flushed :]], -1
            ),
        )

    def _due(self, tail: int) -> int:
        """Tokens that are quantized of a tail of so many."""
        if not self._flushes:
            return 0
        return max(0, tail - self.form.residual) // self.form.step * self.form.step

    def settle(self) -> None:
        """Do what the last update left to do: drop what left the window, then quantize full steps."""
        if self.window is not None:
            self._slide(self.window)
        flushed = self._due(self._tail)
        if flushed:
            for store in self._stores:
                store.flush(flushed)
            self._coded += flushed
            self._tail -= flushed

    def _slide(self, window: int) -> None:
        """Drop the oldest tokens that a window does not reach or has no room for."""
        excess = max(0, self.held - window)
        if self.positions is not None:
            gone = (self.positions < self.seen - window).sum(-1)
            excess = max(excess, int(gone.min()))
        sinks = min(excess, self._sinks)
        # A step is dropped whole: for want of room at once, otherwise when all of it has left.
        steps = -(-max(0, self.held - window - sinks) // self.form.step)
        steps = max(steps, (excess - sinks) // self.form.step)
        coded = min(steps * self.form.step, self._coded)
        tail = max(0, excess - sinks - coded) if coded == self._coded else 0
        dropped = sinks + coded + tail
        if not dropped:
            return
        for store in self._stores:
            store.drop(sinks, coded, tail)
        if self.positions is not None:
            self.positions = self.positions[..., dropped:].clone()
        self._sinks, self._coded, self._tail = self._sinks - sinks, self._coded - coded, self._tail - tail

    def next_change(self) -> int | None:
        """Return how many tokens one update may add and give what one token at a time gives.

        None means any number. Only where steps of quantized tokens leave a sliding window is there a limit.
        """
        self.settle()
        form, window = self.form, self.window
        # Single tokens are out of the window's reach when they are dropped.
        if window is None or not self._flushes or form.step == 1:
            return None
        limit = form.residual + form.step - self._tail
        return min(limit, window + self._sinks - self.held + 1) if self._coded else limit

    def get_seq_length(self) -> int:
        """Return the number of tokens seen, which is the position of the next one."""
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Choose sequences of the batch, for beam search."""
        for store in self._stores:
            store.select(beam_idx)
        if self.positions is not None:
            self.positions = self.positions.index_select(0, beam_idx.to(self.positions.device))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some sequences of the batch."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence of the batch."""
        batch = torch.arange(self._stores[0].batch, device=self._stores[0].device)
        self.reorder_cache(batch.repeat_interleave(repeats))


def _take(states: Tensor, chosen: Tensor) -> Tensor:
    """Gather tokens (batch, heads, kept) of states (batch, heads, tokens, width)."""
    return states.gather(2, chosen.unsqueeze(-1).expand(-1, -1, -1, states.shape[-1]))
