"""The pre-screen of caches, against models that really continue on caches with one layer compressed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tightfit.compress import Replica
from tightfit.compress.kvcache import CacheFormat, PlanCache, Prefilled, continue_with, prefill
from tightfit.proxies.kv.prescreen import kv_cost_tokens, kv_prescreen
from tightfit.proxies.prescreen import LABELS
from tightfit.spaces import Decision, InputError, KvOption, read_geometry
from tightfit.workers.models import load_model
from tightfit.workers.reading import PYTHON_DOCS
from tightfit.workers.text import load_text

VOCAB = 61
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.2,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SIZES),
    "mistral, sliding": ("mistral", {**SIZES, "sliding_window": 40}),
    "gemma2, capped, every other layer sliding": (
        "gemma2",
        {**SIZES, "sliding_window": 40, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0},
    ),
    "gpt2": (
        "gpt2",
        {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 2, "initializer_range": 0.2},
    ),
}
OPTIONS = (
    KvOption(2, 2, residual=4),
    KvOption(4, 8, layout="block", residual=0, sinks=0),
    KvOption(8, 4, layout="token", residual=5, sinks=2),
    KvOption(3, 16, spread=True, residual=8),
    KvOption(keep=0.3, residual=4),
    KvOption(4, 4, keep=0.7, residual=3),
    KvOption(cutoff=True),
    KvOption(),
)
SHARED = KvOption(shared=True)


def window(length: int, prefix: int) -> tuple[Tensor, int]:
    return torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(length)), prefix


# The continuations are long enough for steps of 32 tokens to be quantized on the way.
WINDOWS = [window(130, 70), window(60, 20)]


def decision(options: tuple[KvOption, ...], *layers: int) -> Decision:
    sites = tuple(f"layers.{layer}.kv" for layer in layers)
    return Decision(sites[0] if len(sites) == 1 else "kv", sites, options, (0,) * len(options), 0)


def replica_of(name: str) -> Replica:
    family, sizes = MODELS[name]
    config = AutoConfig.for_model(family, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    return Replica(model, read_geometry(config.to_dict()))


@pytest.fixture(params=MODELS)
def replica(request: pytest.FixtureRequest) -> Replica:
    return replica_of(request.param)


@pytest.fixture
def llama() -> Replica:
    return replica_of("llama")


def each_layer(replica: Replica, options: tuple[KvOption, ...]) -> list[Decision]:
    return [decision(options, layer) for layer in range(replica.geometry.layers)]


def projection(model: Any, layer: int) -> Any:
    if hasattr(model, "transformer"):
        return model.transformer.h[layer].attn.c_proj
    return model.model.layers[layer].self_attn.o_proj


@contextmanager
def outputs(model: nn.Module, layer: int) -> Iterator[list[Tensor]]:
    """Collect the outputs of a layer's attention, (tokens, hidden) each."""
    found: list[Tensor] = []
    handle = projection(model, layer).register_forward_hook(
        lambda module, args, output: found.append(output.requires_grad_() if output.is_leaf else output)
    )
    try:
        yield found
    finally:
        handle.remove()


def continued(model: Any, layer: int, ids: Tensor, prefix: int, form: CacheFormat | None) -> Tensor:
    """Outputs of a layer's attention where the model continues on a cache with that layer in some form."""
    state = prefill(model, ids[:, :prefix])
    formats = [form if index == layer else None for index in range(len(state.keys))]
    with outputs(model, layer) as found:
        continue_with(model, PlanCache.from_prefill(state, formats), ids[:, prefix:-1])
    return torch.cat(found, 1)[0]


def explicit_scores(replica: Replica, layer: int, options: tuple[KvOption, ...], seed: int) -> Tensor:
    """½ · mean over tokens and draws of (δ · Δy)², (windows, options), from whole forwards of the model."""
    model = replica.model
    scores = torch.zeros(len(WINDOWS), len(options), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for row, (tokens, prefix) in enumerate(WINDOWS):
        ids = tokens[None]
        with outputs(model, layer) as found:
            log_probs = model(input_ids=ids[:, :-1], use_cache=False).logits[0, prefix:].log_softmax(-1)
        labels = torch.multinomial(log_probs.detach().exp(), LABELS, replacement=True, generator=generator)
        losses = [-log_probs.gather(-1, column[:, None]).sum() for column in labels.t()]
        deltas = torch.cat(
            [torch.autograd.grad(loss, found[0], retain_graph=True)[0][:, prefix:] for loss in losses]
        )
        original = continued(model, layer, ids, prefix, None)
        for column, option in enumerate(options):
            form = CacheFormat(**option.to_dict())
            effects = (deltas * (continued(model, layer, ids, prefix, form) - original)).sum(-1)
            scores[row, column] = 0.5 * effects.double().square().mean()
    return scores


def test_scores_are_those_of_models_that_run_with_one_layer_compressed(replica: Replica) -> None:
    shareable = "gemma2" not in replica.geometry.family  # whose neighbours differ in their window
    for layer in range(replica.geometry.layers):
        # Plain 16-bit floats change next to nothing here, which is rounding more than anything else.
        options = (*OPTIONS[:-1], SHARED) if layer and shareable else OPTIONS[:-1]
        (scores,) = kv_prescreen(replica, [decision(options, layer)], WINDOWS, seed=4)
        explicit = explicit_scores(replica, layer, options, seed=4)
        torch.testing.assert_close(scores, explicit, rtol=1e-4, atol=1e-9)
        assert (explicit.mean(0) > 1e-6).all()


def test_a_cache_that_the_model_gives_itself_loses_nothing() -> None:
    config = AutoConfig.for_model("llama", **SIZES)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False).bfloat16()
    replica = Replica(model, read_geometry(config.to_dict()))
    for row in kv_prescreen(
        replica, each_layer(replica, (KvOption(), KvOption(2, 2, residual=0))), WINDOWS, seed=0
    ):
        assert row[:, 0].count_nonzero() == 0
        assert (row[:, 1] > 0).all()


def test_more_bits_and_more_tokens_lose_less(replica: Replica) -> None:
    bits = tuple(KvOption(b, b, residual=0) for b in (2, 4, 8, 16))
    keeps = tuple(KvOption(keep=keep, residual=0) for keep in (0.15, 0.4, 0.8))
    for row in kv_prescreen(replica, each_layer(replica, bits + keeps), WINDOWS, seed=0):
        two, four, eight, plain, *kept = row.mean(0).tolist()
        assert two > four > eight > 100 * plain
        assert kept[0] > kept[1] > kept[2] > plain


def test_a_joint_decision_is_the_sum_of_its_layers(llama: Replica) -> None:
    alone = kv_prescreen(llama, each_layer(llama, OPTIONS), WINDOWS, seed=2)
    (joint,) = kv_prescreen(llama, [decision(OPTIONS, 0, 1)], WINDOWS, seed=2)
    torch.testing.assert_close(joint, torch.stack(alone).sum(0), rtol=1e-12, atol=0)


def test_the_seed_draws_the_labels_and_nothing_else_does(llama: Replica) -> None:
    decisions = each_layer(llama, OPTIONS[:2])
    state = torch.get_rng_state()
    first = kv_prescreen(llama, decisions, WINDOWS, seed=1)
    torch.manual_seed(99)
    again, other = (kv_prescreen(llama, decisions, WINDOWS, seed) for seed in (1, 2))
    torch.set_rng_state(state)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_which_decisions_are_asked_changes_no_score(llama: Replica) -> None:
    rows = kv_prescreen(llama, each_layer(llama, OPTIONS), WINDOWS, seed=1)
    (last,) = kv_prescreen(llama, [decision(OPTIONS[::-1], 1)], WINDOWS, seed=1)
    assert torch.equal(last.flip(1), rows[1])


def test_the_model_is_left_as_it_was(replica: Replica) -> None:
    model: Any = replica.model
    attention = model.config._attn_implementation
    expected = model(WINDOWS[0][0][None]).logits
    state = torch.get_rng_state()
    kv_prescreen(replica, each_layer(replica, OPTIONS[:1]), WINDOWS, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.config._attn_implementation == attention
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert torch.equal(model(WINDOWS[0][0][None]).logits, expected)


def test_progress_counts_decisions_once_per_window(llama: Replica) -> None:
    ticks: list[tuple[int, int]] = []
    decisions = each_layer(llama, OPTIONS[-1:])
    kv_prescreen(llama, decisions, WINDOWS, 0, lambda *done: ticks.append(done))
    assert ticks == [(done, 4) for done in range(1, 5)]


@pytest.mark.parametrize(("length", "prefix"), [(20, 0), (20, 19), (20, 30)])
def test_a_window_without_a_prefix_or_a_prediction_is_refused(
    llama: Replica, length: int, prefix: int
) -> None:
    with pytest.raises(InputError, match=f"{length} tokens with a prefix of {prefix}"):
        kv_prescreen(llama, each_layer(llama, OPTIONS), [window(length, prefix)], seed=0)


def test_a_layer_without_a_like_one_below_cannot_share() -> None:
    mixed = replica_of("gemma2, capped, every other layer sliding")
    for layer in (0, 1):
        with pytest.raises(InputError, match=rf"layers\.{layer}\.kv cannot be shared"):
            kv_prescreen(mixed, [decision((SHARED,), layer)], WINDOWS, seed=0)


def test_backward_passes_are_charged_for_the_continuation_alone() -> None:
    assert kv_cost_tokens(WINDOWS) == (130 + 60) + 2 * LABELS * (60 + 40)


def predicted(model: Any, state: Prefilled, rest: Tensor, layer: int, form: CacheFormat | None) -> Tensor:
    """Log probabilities of a continuation read on a cache with one layer in some form."""
    formats = [form if index == layer else None for index in range(len(state.keys))]
    return continue_with(model, PlanCache.from_prefill(state, formats), rest)[0].log_softmax(-1)


def measured(
    model: Any, windows: list[tuple[Tensor, int]], layers: int, options: tuple[KvOption, ...]
) -> Tensor:
    """KL of models that continue with one layer compressed, (layers, options), in nats per token."""
    losses = torch.zeros(layers, len(options))
    for tokens, prefix in windows:
        state, rest = prefill(model, tokens[None, :prefix]), tokens[None, prefix:-1]
        original = predicted(model, state, rest, 0, None)
        for layer, column in product(range(layers), range(len(options))):
            changed = predicted(model, state, rest, layer, CacheFormat(**options[column].to_dict()))
            losses[layer, column] += (original.exp() * (original - changed)).sum(-1).mean() / len(windows)
    return losses


def test_scores_rank_options_as_measurements_do(tiny_model: str) -> None:
    loaded = load_model(tiny_model)
    replica = Replica(loaded.model, loaded.geometry)
    texts = [document.text[:1000] for document in load_text(PYTHON_DOCS)][:8]
    windows = [(torch.tensor(loaded.tokenizer(text).input_ids[:64]), 40) for text in texts]
    options = (
        *(KvOption(k, v, residual=0) for k, v in ((2, 2), (4, 4), (2, 16), (16, 2))),
        KvOption(4, 2, residual=0, spread=True),
        KvOption(4, 4, layout="block", residual=0, sinks=0),
        KvOption(8, 4, layout="token", residual=0, sinks=0),
        *(KvOption(keep=keep, residual=4) for keep in (0.3, 0.75)),
        KvOption(cutoff=True),
    )
    scores = kv_prescreen(replica, each_layer(replica, options), windows, seed=0)
    losses = measured(loaded.model, windows, loaded.geometry.layers, options)
    found = torch.stack(scores).mean(1)
    assert kendalltau(found.flatten().numpy(), losses.flatten().numpy()).statistic > 0.85
