"""Pre-screen of KV caches: the loss of every option of every layer from a few backward passes per window.

As for matrices (:mod:`tightfit.proxies.prescreen`), the leading term of KL(p_reference ‖ p_plan) is half
the Fisher information along the error, with labels drawn from the model itself (Kunstner et al. 2019,
arXiv:1905.12558). Here the error is one of attention: with a the heads' outputs that a layer's output
projection W_o reads, a' the same from a stored cache, and δ the gradient of −log p(label) at the
projection's output, a sample of that term is ½ (δ · W_o (a' − a))².

A prompt is read once and stays uncompressed, as when plans are measured, and the tokens after it are read on
top of it. Earlier tokens do not depend on later ones, so backward passes are needed over the continuation
alone. a' comes from the cache layers of :mod:`tightfit.compress.kvcache` themselves, what is quantized on
the way and what leaves a sliding window included. As for matrices, cross terms between tokens are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from tightfit.compress import Replica
from tightfit.compress.kvcache import CacheFormat, Prefilled, attention_of, prefill
from tightfit.compress.kvcache.attention import leave
from tightfit.compress.kvcache.layer import PlanLayer
from tightfit.compress.kvcache.prompt import run
from tightfit.proxies.prescreen import LABELS
from tightfit.proxies.tracing import sampled_losses
from tightfit.spaces import Decision, Geometry, InputError, KvOption

KV_PRESCREEN_VERSION = 1
"""Raised whenever a change here or in the compressed caches changes any score: scores are kept by content."""

_BACKWARD = 2  # a backward pass in forward passes


def kv_prescreen(
    replica: Replica,
    decisions: Sequence[Decision],
    windows: Sequence[tuple[Tensor, int]],
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Tensor]:
    """Score every option of every decision about KV caches.

    Args:
        replica: the model, with its original weights in place.
        decisions: D decisions about KV caches; one about several layers scores the sum over them.
        windows: token ids of shape (tokens,), each with the length of its prefix. The caches of the prefix
            are compressed; predictions after it are scored but for the first, which the uncompressed prefix
            makes.
        seed: of the labels drawn from the model.
        progress: called with (done, total) as decisions are finished, once per window.

    Returns:
        D float64 tensors of shape (windows, options), in nats per token that is scored.

    Raises:
        InputError: a window has no prefix or nothing to score after it, or a layer is to read the cache of
            a layer below that does not exist or has another shape.
    """
    _check(windows)
    scores = [torch.zeros(len(windows), len(d.options), dtype=torch.float64) for d in decisions]
    generator = torch.Generator().manual_seed(seed)
    done = 0
    for row, (tokens, prefix) in enumerate(windows):
        trace = _trace(replica, tokens, prefix, generator)
        for decision, table in zip(decisions, scores, strict=True):
            for layer in decision.kv_layers:
                table[row] += _layer_scores(trace, layer, decision.kv_options)
            done += 1
            progress(done, len(windows) * len(decisions))
    return scores


def kv_cost_tokens(windows: Sequence[tuple[Tensor, int]]) -> int:
    """Return what the pre-screen costs in tokens of a forward pass.

    Every token is read once; a backward pass per draw of labels, worth two forward passes, covers the
    tokens after the prefix.
    """
    return sum(tokens.numel() + LABELS * _BACKWARD * (tokens.numel() - prefix) for tokens, prefix in windows)


def _check(windows: Sequence[tuple[Tensor, int]]) -> None:
    for tokens, prefix in windows:
        if not 0 < prefix < tokens.numel() - 1:
            raise InputError(
                f"a window of {tokens.numel()} tokens with a prefix of {prefix} cannot be scored: the prefix "
                "needs at least one token, and what follows it two."
            )


@dataclass(frozen=True)
class _Trace:
    """One window: the caches of its prefix, and what its continuation of n tokens does with them.

    Attributes:
        geometry: of the model.
        prefilled: caches and all else that the prefix left behind.
        layers: what the continuation brought, per layer.
        gradients: of −Σ log p(label) at what output projections read, per layer (draws, n, heads · width).
        softcap: bound on attention logits that some models have.
    """

    geometry: Geometry
    prefilled: Prefilled
    layers: list[_Continuation]
    gradients: list[Tensor]
    softcap: float | None


def _trace(replica: Replica, tokens: Tensor, prefix: int, generator: torch.Generator) -> _Trace:
    """Read a window, and differentiate what it predicts after its prefix."""
    model: Any = replica.model
    ids = tokens.to(replica.device).unsqueeze(0)
    prefilled = prefill(model, ids[:, :prefix])
    layers = [_Continuation(prefilled, layer) for layer in range(len(prefilled.keys))]
    with attention_of(model), torch.enable_grad(), _projected(replica) as read:
        # Nothing is predicted from the last token.
        logits = run(model, ids[:, prefix:-1], Cache(layers=list(layers)))[0].float()
        draws = [
            torch.autograd.grad(loss, read, retain_graph=True)
            for loss in sampled_losses(logits, generator, LABELS)
        ]
    gradients = [torch.cat([draw[layer] for draw in draws]).float() for layer in range(len(layers))]
    config = model.config.get_text_config(decoder=True)
    softcap = getattr(config, "attn_logit_softcapping", None)
    return _Trace(replica.geometry, prefilled, layers, gradients, softcap)


@contextmanager
def _projected(replica: Replica) -> Iterator[list[Tensor]]:
    """Collect what output projections read, (1, tokens, heads · width), layer by layer.

    The gradient g there is W_oᵀδ, so that δ · W_o (a' − a) is g · (a' − a).
    """
    read: list[Tensor] = []

    def hook(module: object, args: tuple[Tensor]) -> None:
        # The graph starts in the first layer, as no parameter requires a gradient.
        read.append(args[0] if args[0].requires_grad else args[0].requires_grad_())

    handles = [
        replica.model.get_submodule(linear.path).register_forward_pre_hook(hook)
        for linear in replica.geometry.linears
        if linear.site.endswith((".attn.o_proj", ".attn.c_proj"))
    ]
    try:
        yield read
    finally:
        for handle in handles:
            handle.remove()


def _layer_scores(trace: _Trace, layer: int, options: Sequence[KvOption]) -> Tensor:
    """Score the options of one layer: float64 (options,)."""
    original = _attended(trace, layer, layer, None)
    found = []
    for option in options:
        if option.shared:
            _check_shared(trace.geometry, layer)
            stored = _attended(trace, layer, layer - 1, None)
        else:
            stored = _attended(trace, layer, layer, CacheFormat(**option.to_dict()))
        effects = (trace.gradients[layer] * (stored - original)).sum(-1)
        found.append(effects.double().square().mean() / 2)
    return torch.stack(found).cpu()


def _check_shared(geometry: Geometry, layer: int) -> None:
    if layer == 0 or geometry.attention[layer - 1] != geometry.attention[layer]:
        raise InputError(f"layers.{layer}.kv cannot be shared: there is no cache like its own below it.")


def _attended(trace: _Trace, layer: int, owner: int, form: CacheFormat | None) -> Tensor:
    """What a layer's attention gives if it reads a cache stored in this form.

    Args:
        trace: of the window.
        layer: whose queries are asked.
        owner: the layer whose cache it is, its own or the one below.
        form: how the cache is stored; None is as the model gives it.

    Returns:
        float32 (n, heads · width), of the continuation.
    """
    asking, new = trace.layers[layer], trace.layers[owner]
    cache = PlanLayer(trace.prefilled, owner, form)
    pieces: list[Tensor] = []
    start, end = 0, new.keys.shape[2]
    while start < end:
        stop = start + (cache.next_change() or end)
        keys, values = cache.update(new.keys[:, :, start:stop], new.values[:, :, start:stop])
        queries = asking.queries[:, :, start:stop].float()
        shares = queries.shape[1] // keys.shape[1]
        logits = queries @ keys.float().repeat_interleave(shares, 1).transpose(-1, -2) * asking.scaling
        if trace.softcap is not None:
            logits = (logits / trace.softcap).tanh() * trace.softcap
        seen = cache.view.mask(queries.shape[2], queries.shape[1])
        if seen is not None:
            logits = logits.masked_fill(~seen, -torch.inf)
        heads = logits.softmax(-1) @ values.float().repeat_interleave(shares, 1)
        pieces.append(heads[0].transpose(0, 1).flatten(1))
        start = stop
    return torch.cat(pieces)


class _Continuation(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """An uncompressed cache of a prompt, which records the tokens that are read after it, all at once.

    Attributes:
        keys, values: of these tokens (1, kv_heads, n, width).
        queries: of these tokens (1, heads, n, width).
        scaling: factor of the attention logits.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor
    scaling: float

    def __init__(self, prefilled: Prefilled, layer: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True
        self._before = prefilled.keys[layer], prefilled.values[layer]
        self._seen = prefilled.tokens
        # The model makes one mask for its sliding layers and one for the others.
        self.is_sliding = prefilled.windows[layer] is not None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Return the prompt's and the new keys and values."""
        self.keys, self.values = key_states.detach(), value_states.detach()
        leave(self._record)
        keys, values = self._before
        return torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)

    def _record(self, queries: Tensor, scaling: float) -> None:
        self.queries, self.scaling = queries.detach(), scaling

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare."""

    def get_seq_length(self) -> int:
        return self._seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        held = self._before[0].shape[2]
        return held + query_length, self._seen - held

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in earlier releases of transformers
