from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from tightfit.compress import Replica, compress_matrix
from tightfit.proxies import relinearization as module
from tightfit.proxies.prescreen import LABELS, prescreen
from tightfit.proxies.relinearization import cost_tokens, swap_scores
from tightfit.spaces import (
    Decision,
    WeightOption,
    WeightRules,
    build_space,
    get_target,
    read_geometry,
)
from tightfit.workers.lab import TINY, train
from tightfit.workers.models import load_model

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
    "gpt2": ("gpt2", GPT2, "any"),
    "gemma, its embedding scaled": ("gemma3_text", SIZES, "any"),
}


@dataclass
class Case:
    """A model, its decisions and its text; the last option of every decision is the original matrix."""

    replica: Replica
    decisions: Sequence[Decision]
    windows: list[Tensor]

    def __post_init__(self) -> None:
        self.references = [self.log_probs(window) for window in self.windows]
        self._matrices: dict[tuple[str, WeightOption], Tensor] = {}

    @property
    def top(self) -> list[int]:
        return [len(decision.options) - 1 for decision in self.decisions]

    def read_back(self, site: str, option: WeightOption) -> Tensor:
        if option.bits == 8:
            return self.replica.original(site)
        if (site, option) not in self._matrices:
            packed = compress_matrix(self.replica.original(site).float(), option, None)
            self._matrices[site, option] = packed.dequantize().to(self.replica.dtype)
        return self._matrices[site, option]

    @torch.no_grad()
    def log_probs(self, window: Tensor) -> Tensor:
        logits = self.replica.model(input_ids=window[None], use_cache=False).logits[0, :-1]
        return logits.double().log_softmax(-1)

    def owned(self, index: int, level: int) -> dict[str, Tensor]:
        decision = self.decisions[index]
        owners = {self.replica.geometry.linear(site).tied_to or site for site in decision.sites}
        return {site: self.read_back(site, decision.options[level]) for site in owners}

    def losses(self, levels: Sequence[int], extra: dict[str, Tensor] | None = None) -> Tensor:
        """Mean KL of every window under a plan, with some matrices replaced."""
        for index, level in enumerate(levels):
            self.replica.apply(self.owned(index, level))
        self.replica.apply(extra or {})
        rows = [
            (r.exp() * (r - self.log_probs(w))).sum(-1).mean()
            for w, r in zip(self.windows, self.references, strict=True)
        ]
        self.replica.restore()
        return torch.stack(rows)

    def scores(self, levels: Sequence[int], **arguments: Any) -> list[Tensor]:
        read_back = arguments.pop("read_back", self.read_back)
        return swap_scores(
            self.replica,
            self.decisions,
            read_back,
            levels,
            self.windows,
            self.references,
            arguments.pop("seed", 0),
            **arguments,
        )


@cache
def small(name: str) -> Case:
    """A random model in float64, so that differences of losses can be taken."""
    family, sizes, target = MODELS[name]
    config = AutoConfig.for_model(family, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config).double().eval().requires_grad_(False)
    replica = Replica(model, read_geometry(config.to_dict()))
    rules = WeightRules(bits=(2, 3, 8), groups=(32,), zeros=("integer",))
    space = build_space(replica.geometry, rules, get_target(target))
    generator = torch.Generator().manual_seed(5)
    windows = [torch.randint(VOCAB, (length,), generator=generator) for length in (9, 6, 12)]
    return Case(replica, space.decisions, windows)


@cache
def trained() -> Case:
    loaded = load_model(str(train(TINY)))
    space = build_space(
        loaded.geometry, WeightRules(bits=(2, 3, 4, 8), groups=(32,), zeros=("float",)), get_target("any")
    )
    text = "\n".join(str(part.__doc__) for part in (torch.optim.SGD, torch.nn.Linear, torch.nn.Conv2d))
    ids = torch.tensor(loaded.tokenizer(text)["input_ids"])
    windows = list(ids[: len(ids) // 64 * 64].view(-1, 64))[:10]
    return Case(Replica(loaded.model, loaded.geometry), space.decisions, windows)


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    return small(request.param)


@pytest.fixture
def llama() -> Case:
    return small("tied llama")


def low(case: Case) -> list[int]:
    """A plan of 2 and 3 bits."""
    return [index % 2 for index in range(len(case.decisions))]


def test_the_first_order_term_is_the_slope_of_the_loss(case: Case) -> None:
    """Scores along ±α ΔW differ by twice the first-order term alone, and so do losses, for small α."""
    levels, alpha = low(case), 3e-3

    def along(sign: float) -> Callable[[str, WeightOption], Tensor]:
        def read_back(site: str, option: WeightOption) -> Tensor:
            index = next(i for i, d in enumerate(case.decisions) if site in d.sites)
            now = case.read_back(site, case.decisions[index].options[levels[index]])
            return now + sign * alpha * (case.read_back(site, option) - now)

        return read_back

    forward, backward = (case.scores(levels, read_back=along(sign)) for sign in (1.0, -1.0))
    for index, decision in enumerate(case.decisions):
        for column in range(len(decision.options)):
            slope = (forward[index][:, column] - backward[index][:, column]) / (2 * alpha)
            ends = []
            for sign in (1.0, -1.0):
                sites = case.owned(index, column)
                extra = {site: along(sign)(site, decision.options[column]) for site in sites}
                ends.append(case.losses(levels, extra))
            measured = (ends[0] - ends[1]) / (2 * alpha)
            torch.testing.assert_close(slope, measured, rtol=2e-2, atol=3e-4)


def test_at_the_reference_scores_are_those_of_the_pre_screen_with_the_same_labels(case: Case) -> None:
    scores = case.scores(case.top, seed=4, draws=LABELS)
    expected = prescreen(case.replica, case.decisions, case.read_back, case.windows, 4)
    for row, other in zip(scores, expected, strict=True):
        torch.testing.assert_close(row, other, rtol=1e-4, atol=1e-6)


def test_the_option_in_place_changes_exactly_nothing(case: Case) -> None:
    levels = low(case)
    for row, level, decision in zip(case.scores(levels), levels, case.decisions, strict=True):
        assert row.shape == (len(case.windows), len(decision.options))
        assert row.dtype == torch.float64
        assert row[:, level].count_nonzero() == 0
        others = [column for column in range(len(decision.options)) if column != level]
        assert row[:, others].all()


@pytest.mark.parametrize("level", [0, 1])
def test_at_low_bits_swaps_are_ordered_far_better_than_by_an_additive_model(level: int) -> None:
    """Measured on all single swaps, against differences of the scores made at the reference."""
    case = trained()
    levels = [level] * len(case.decisions)
    scores = [row.mean(0) for row in case.scores(levels)]
    screen = [row.mean(0) for row in prescreen(case.replica, case.decisions, case.read_back, case.windows, 0)]
    base = case.losses(levels).mean()
    measured, relinearized, additive = [], [], []
    for index, decision in enumerate(case.decisions):
        for column in range(len(decision.options)):
            if column != level:
                swapped = [*levels[:index], column, *levels[index + 1 :]]
                measured.append(float(case.losses(swapped).mean() - base))
                relinearized.append(float(scores[index][column]))
                additive.append(float(screen[index][column] - screen[index][level]))
    tau, other = kendalltau(relinearized, measured)[0], kendalltau(additive, measured)[0]
    assert tau > 0.75
    assert tau > other + 0.1


def test_the_seed_draws_the_labels_and_the_slope_needs_none(llama: Case) -> None:
    levels = low(llama)
    first, again, other = (llama.scores(levels, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("tokens", [1, 15, 10**6])
def test_how_much_is_traced_at_once_changes_no_score(
    llama: Case, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    plain = llama.scores(low(llama))
    monkeypatch.setattr(module, "_TRACED_TOKENS", tokens)
    ticks: list[tuple[int, int]] = []
    scores = llama.scores(low(llama), progress=lambda *done: ticks.append(done))
    assert all(torch.equal(a, b) for a, b in zip(plain, scores, strict=True))
    total = len(llama.decisions) * {1: 3, 15: 2, 10**6: 1}[tokens]
    assert ticks == [(done, total) for done in range(1, total + 1)]


def test_the_model_has_its_original_weights_afterwards(case: Case) -> None:
    model = case.replica.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    case.scores(low(case))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_and_after_a_pass_that_failed(llama: Case) -> None:
    before = {name: tensor.clone() for name, tensor in llama.replica.model.state_dict().items()}
    beyond, reference = torch.tensor([1, VOCAB + 5]), torch.zeros(1, VOCAB)
    with pytest.raises(IndexError):
        swap_scores(
            llama.replica, llama.decisions, llama.read_back, low(llama), [beyond], [reference], seed=0
        )
    after = llama.replica.model.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


def test_plans_and_references_must_be_whole(llama: Case) -> None:
    with pytest.raises(ValueError, match="1 levels for"):
        llama.scores([0])
    windows = llama.windows[:1]
    with pytest.raises(ValueError, match="one token less"):
        swap_scores(llama.replica, llama.decisions, llama.read_back, low(llama), windows, [], seed=0)


def test_the_cost_counts_passes_and_products() -> None:
    assert cost_tokens(100, [4, 2, 1], draws=3) == 100 * (1 + 1 + 3 + 3)
    assert cost_tokens(100, [1, 1], draws=1) == 100 * 3
