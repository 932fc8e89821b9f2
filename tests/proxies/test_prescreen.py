from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tightfit.compress import Replica, compress_matrix
from tightfit.proxies import prescreen as module
from tightfit.proxies.prescreen import LABELS, prescreen
from tightfit.spaces import (
    EMBED,
    Decision,
    Space,
    WeightOption,
    WeightRules,
    build_space,
    get_target,
    read_geometry,
)

VOCAB = 61
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "tied llama": ("llama", {**SIZES, "tie_word_embeddings": True}, "any"),
    "untied llama, fused": ("llama", {**SIZES, "tie_word_embeddings": False}, "vllm"),
    "qwen with biases": ("qwen2", {**SIZES, "tie_word_embeddings": True}, "vllm"),
    "gpt2": ("gpt2", GPT2, "any"),
    "gemma, its embedding scaled": ("gemma3_text", SIZES, "any"),
}
RULES = WeightRules(bits=(3, 8), groups=(32,), zeros=("integer",))
WINDOWS = [
    torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(length)) for length in (9, 6, 12)
]


class Case:
    """A small random model with its space and the matrices that options would store."""

    def __init__(self, name: str) -> None:
        family, sizes, target = MODELS[name]
        config = AutoConfig.for_model(family, **sizes)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
        self.replica = Replica(model, read_geometry(config.to_dict()))
        self.space: Space = build_space(self.replica.geometry, RULES, get_target(target))

    def read_back(self, site: str, option: WeightOption) -> Tensor:
        return compress_matrix(self.replica.original(site), option, None).dequantize()

    def scores(self, read_back: Callable[..., Tensor] | None = None, seed: int = 0) -> list[Tensor]:
        return prescreen(self.replica, self.space.decisions, read_back or self.read_back, WINDOWS, seed)

    def decision(self, name: str) -> tuple[int, Decision]:
        """Position and decision of a name."""
        return next((i, d) for i, d in enumerate(self.space.decisions) if d.name == name)


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.fixture
def llama() -> Case:
    return Case("tied llama")


@contextmanager
def nudged(case: Case, errors: dict[str, Tensor], nudge: Tensor) -> Iterator[None]:
    """Let every output y_t of these matrices become y_t + nudge_t · ΔW x_t."""
    handles = []
    for site, error in errors.items():
        linear = case.replica.geometry.linear(site)

        def hook(
            part: nn.Module, args: Any, output: Tensor, site: str = site, error: Tensor = error
        ) -> Tensor:
            if site == EMBED:
                scale = getattr(part, "embed_scale", torch.ones(()))
                return output + nudge[None, :, None] * error[args[0]] * scale
            return output + nudge[None, :, None] * (args[0] @ error.t())

        handles.append(case.replica.model.get_submodule(linear.path).register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def explicit_scores(case: Case, decision: Decision, option: WeightOption, seed: int) -> list[float]:
    """½ · mean over tokens and draws of (d(−Σ log p(label)) / d nudge_t)², window by window."""
    geometry = case.replica.geometry
    owners = {site: geometry.linear(site).tied_to or site for site in decision.sites}
    errors = {
        site: case.read_back(owner, option) - case.replica.original(owner) for site, owner in owners.items()
    }
    generator = torch.Generator().manual_seed(seed)
    scores = []
    for window in WINDOWS:
        nudge = torch.zeros(len(window), requires_grad=True)
        with nudged(case, errors, nudge):
            log_probs = case.replica.model(input_ids=window[None]).logits[0].log_softmax(-1)
        drawn = torch.multinomial(log_probs.detach().exp(), LABELS, replacement=True, generator=generator)
        effects = []
        for labels in drawn.t():
            loss = -log_probs.gather(-1, labels[:, None]).sum()
            effects += torch.autograd.grad(loss, nudge, retain_graph=True)
        scores.append(0.5 * torch.stack(effects).double().square().mean().item())
    return scores


def test_scores_are_those_of_autograd_with_the_same_labels(case: Case) -> None:
    scores = case.scores(seed=4)
    for row, decision in zip(scores, case.space.decisions, strict=True):
        assert row.shape == (len(WINDOWS), len(decision.options))
        assert row.dtype == torch.float64
        for column, option in enumerate(decision.options):
            explicit = explicit_scores(case, decision, option, seed=4)
            assert row[:, column].tolist() == pytest.approx(explicit, rel=1e-3), decision.name


def test_an_unchanged_matrix_loses_nothing(case: Case) -> None:
    for row in case.scores(lambda site, option: case.replica.original(site).clone()):
        assert row.count_nonzero() == 0


def test_scores_grow_with_the_square_of_the_error(case: Case) -> None:
    def scaled(site: str, option: WeightOption) -> Tensor:
        original = case.replica.original(site)
        return original + 3.0 * (case.read_back(site, option) - original)

    for once, thrice in zip(case.scores(), case.scores(scaled), strict=True):
        torch.testing.assert_close(thrice, 9.0 * once, rtol=1e-3, atol=0)


def test_fewer_bits_lose_more(case: Case) -> None:
    for row in case.scores():
        three, eight = row.mean(0).tolist()
        assert three > 10 * eight > 0


def test_a_tied_matrix_is_scored_for_both_of_its_uses(llama: Case) -> None:
    index, decision = llama.decision(EMBED)
    assert decision.sites == (EMBED, "head")
    both = llama.scores()[index][:, 0].tolist()
    for site in decision.sites:
        alone = Decision(site, (site,), decision.options, decision.costs, decision.weights)
        one = explicit_scores(llama, alone, decision.options[0], seed=0)
        assert both != pytest.approx(one, rel=0.05)


def test_the_seed_draws_the_labels_and_nothing_else_does(llama: Case) -> None:
    state = torch.get_rng_state()
    first = llama.scores(seed=1)
    torch.manual_seed(99)
    again, other = llama.scores(seed=1), llama.scores(seed=2)
    torch.set_rng_state(state)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("tokens", [1, 15, 10**6])
def test_how_much_is_traced_at_once_changes_no_score(
    llama: Case, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    plain = llama.scores()
    monkeypatch.setattr(module, "_TRACED_TOKENS", tokens)
    assert all(torch.equal(a, b) for a, b in zip(plain, llama.scores(), strict=True))


@pytest.mark.parametrize(
    ("tokens", "chunks"), [(1, [[0], [1], [2]]), (15, [[0, 1], [2]]), (18, [[0, 1], [2]]), (27, [[0, 1, 2]])]
)
def test_windows_are_traced_together_as_far_as_the_limit_goes(
    monkeypatch: pytest.MonkeyPatch, tokens: int, chunks: list[list[int]]
) -> None:
    monkeypatch.setattr(module, "_TRACED_TOKENS", tokens)
    assert module._chunks(WINDOWS) == chunks


def hooks_of(model: nn.Module) -> list[object]:
    return [
        hook
        for part in model.modules()
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks)
        for hook in hooks.values()
    ]


def test_the_model_is_left_as_it_was(case: Case) -> None:
    model = case.replica.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    case.scores()
    assert hooks_of(model) == []
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training


def test_a_failed_pass_leaves_no_hooks_behind(llama: Case) -> None:
    beyond = torch.tensor([1, VOCAB + 5])
    with pytest.raises(IndexError):
        prescreen(llama.replica, llama.space.decisions, llama.read_back, [beyond], seed=0)
    assert hooks_of(llama.replica.model) == []


def test_progress_counts_decisions_once_per_stretch_of_text(
    llama: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TRACED_TOKENS", 15)
    ticks: list[tuple[int, int]] = []
    decisions = llama.space.decisions
    prescreen(llama.replica, decisions, llama.read_back, WINDOWS, 0, lambda *done: ticks.append(done))
    assert ticks == [(done, 2 * len(decisions)) for done in range(1, 2 * len(decisions) + 1)]
