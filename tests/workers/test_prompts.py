"""Losses of plans that compress KV caches: against a computation by hand, and what plans share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from tightfit.compress import Replica
from tightfit.compress.kvcache import CacheFormat, PlanCache, continue_with, prefill
from tightfit.spaces import KvOption, WeightOption, read_geometry
from tightfit.workers.crew import Alone, Job
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.measurement import Measurement
from tightfit.workers.option_cache import OptionCache
from tightfit.workers.prompts import Prompts
from tightfit.workers.text import Window

VOCAB, LAYERS = 61, 3
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "model_type": "llama"},
    "mistral": {**SIZES, "model_type": "mistral", "sliding_window": 48},
}
CHANNEL = KvOption(2, 3, residual=8, sinks=2)
EVICTED = KvOption(4, 4, keep=0.4, residual=8, sinks=2)
BLOCK = KvOption(4, 8, layout="block", residual=0, sinks=0)
TOKEN = KvOption(8, 4, layout="token", residual=5, sinks=1)
SHARED = KvOption(shared=True)
PLAIN = KvOption()
PLANS: dict[str, dict[int, KvOption]] = {
    "channel": dict.fromkeys(range(LAYERS), CHANNEL),
    "mixed": {0: BLOCK, 1: EVICTED, 2: TOKEN},
    "shared": {0: EVICTED, 1: SHARED},
    "one layer": {1: CHANNEL},
    "cutoff": {0: PLAIN, 1: KvOption(cutoff=True), 2: KvOption(3, 16, spread=True, residual=0)},
}


def draw_windows(seed: int, lengths: tuple[tuple[str, int, int], ...]) -> list[Window]:
    rng = np.random.default_rng([seed, 22])
    return [Window(name, rng.integers(0, VOCAB, prefix + n), prefix) for name, prefix, n in lengths]


WINDOWS = draw_windows(1, (("first", 70, 40), ("first", 70, 9), ("second", 50, 30)))


def load(name: str) -> Replica:
    """A small model with random weights that are far from uniform predictions."""
    sizes = dict(MODELS[name])
    config = AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(3)
    return Replica(model, read_geometry(MODELS[name]))


@pytest.fixture(scope="module")
def replica() -> Replica:
    return load("llama")


@pytest.fixture
def evaluator_of(replica: Replica, tmp_path: Path) -> Callable[..., Evaluator]:
    """Evaluators of one model that share files, but no memory."""

    def build(threads: int = 1, of: Replica = replica) -> Evaluator:
        return Evaluator(
            of, {}, OptionCache(tmp_path / "options", 2**24), tmp_path / "reference", {}, threads
        )

    return build


def everywhere(replica: Replica, bits: int) -> dict[str, WeightOption]:
    return dict.fromkeys(replica.sites, WeightOption(bits, 32, "integer"))


def by_hand(model: Any, window: Window, kv: dict[int, KvOption]) -> Tensor:
    """Log-probabilities of the scored tokens, as the model has them that goes on from a compressed cache."""
    ids = torch.from_numpy(window.tokens)[None]
    formats = [CacheFormat(**kv[layer].to_dict()) if layer in kv else None for layer in range(LAYERS)]
    cache = PlanCache.from_prefill(prefill(model, ids[:, : window.prefix]), formats)
    return torch.log_softmax(continue_with(model, cache, ids[:, window.prefix : -1])[0].double(), -1)


def plain(model: Any, window: Window) -> Tensor:
    """The same, in one forward with nothing compressed."""
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(window.tokens)[None], use_cache=False).logits[0]
    return torch.log_softmax(logits[window.prefix : -1].double(), -1)


def losses(measured: Measurement) -> Any:
    return measured.documents, measured.kl_p99


def count_prefills(replica: Replica) -> tuple[list[int], Callable[[], None]]:
    """Count forwards over whole prefixes from now on, and how to stop counting."""
    calls: list[int] = []
    prefixes = {window.prefix for window in WINDOWS}

    def note(module: Any, args: Any, kwargs: Any) -> None:
        if kwargs["input_ids"].shape[1] in prefixes:
            calls.append(kwargs["input_ids"].shape[1])

    handle = replica.model.register_forward_pre_hook(note, with_kwargs=True)
    return calls, handle.remove


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PLANS)
def test_losses_equal_a_computation_by_hand(
    name: str, model: str, evaluator_of: Callable[..., Evaluator]
) -> None:
    replica, kv = load(model), PLANS[name]
    evaluator = evaluator_of(of=replica)
    expected = [plain(replica.model, window) for window in WINDOWS]
    measured = evaluator.measure("digest", everywhere(replica, 3), "selection", WINDOWS, kv)
    found = [by_hand(replica.model, window, kv) for window in WINDOWS]  # the weights are still applied
    divergence = [(p.exp() * (p - q)).sum(-1) for p, q in zip(expected, found, strict=True)]
    target = [torch.from_numpy(window.tokens[window.prefix + 1 :, None]) for window in WINDOWS]
    nll = [float(-q.gather(-1, t).sum()) for q, t in zip(found, target, strict=True)]
    before = [float(-p.gather(-1, t).sum()) for p, t in zip(expected, target, strict=True)]
    agree = [int((p.argmax(-1) == q.argmax(-1)).sum()) for p, q in zip(expected, found, strict=True)]

    assert [(d.document, d.tokens) for d in measured.documents] == [("first", 39 + 8), ("second", 29)]
    first, second = measured.documents
    assert first.kl == pytest.approx(float(divergence[0].sum() + divergence[1].sum()), rel=1e-4)
    assert second.kl == pytest.approx(float(divergence[2].sum()), rel=1e-4)
    assert first.nll == pytest.approx(nll[0] + nll[1], rel=1e-5)
    assert second.reference_nll == pytest.approx(before[2], rel=1e-5)
    assert (first.agree, second.agree) == (agree[0] + agree[1], agree[2])
    assert measured.kl_p99 == pytest.approx(float(torch.cat(divergence).quantile(0.99)), rel=1e-4)
    assert measured.kl > 1e-3


def test_no_options_for_caches_are_the_plain_path(
    replica: Replica, evaluator_of: Callable[..., Evaluator]
) -> None:
    evaluator, options = evaluator_of(), everywhere(replica, 4)
    without = evaluator.measure("a", options, "selection", WINDOWS)
    assert losses(evaluator.measure("a", options, "selection", WINDOWS, {})) == losses(without)
    assert evaluator.measure("a", {}, "selection", WINDOWS, {}).kl == 0.0
    # By way of a cache that keeps what the model gives it, up to rounding.
    for window in WINDOWS:
        logits = Prompts(replica.model).continued("a", window, {})
        torch.testing.assert_close(
            torch.log_softmax(logits.double(), -1), plain(replica.model, window), rtol=1e-4, atol=1e-4
        )


def test_plain_caches_of_16_bits_lose_next_to_nothing(evaluator_of: Callable[..., Evaluator]) -> None:
    kv = dict.fromkeys(range(LAYERS), PLAIN)
    assert 0 < evaluator_of().measure("a", {}, "selection", WINDOWS, kv).kl < 1e-4


def test_plans_with_equal_weights_share_their_prompts(
    replica: Replica, evaluator_of: Callable[..., Evaluator]
) -> None:
    evaluator = evaluator_of()
    evaluator.references(WINDOWS)
    calls, stop = count_prefills(replica)
    for name, kv in PLANS.items():
        evaluator.measure(name, {}, "selection", WINDOWS, kv)
    assert calls == [70, 70, 50]
    for name, kv in PLANS.items():
        evaluator.measure(name, everywhere(replica, 4), "selection", WINDOWS, kv)
    assert calls == [70, 70, 50] * 2
    # One window more has one prompt more to read.
    more = [*WINDOWS, Window("third", WINDOWS[0].tokens[::-1].copy(), 70)]
    evaluator.measure("more", everywhere(replica, 4), "selection", more, PLANS["mixed"])
    assert calls == [*[70, 70, 50] * 2, 70]
    stop()


def test_prompts_are_never_those_of_other_weights(
    replica: Replica, evaluator_of: Callable[..., Evaluator]
) -> None:
    evaluator = evaluator_of()
    coarse, fine = everywhere(replica, 2), everywhere(replica, 6)
    site = replica.sites[1]
    turns = [coarse, fine, {**fine, site: coarse[site]}, {}, coarse]
    found = []
    for options in turns:
        for kv in (PLANS["mixed"], PLANS["channel"]):
            found.append(losses(evaluator.measure("a", options, "selection", WINDOWS, kv)))
    fresh = [
        losses(evaluator_of().measure("a", options, "selection", WINDOWS, kv))
        for options in turns
        for kv in (PLANS["mixed"], PLANS["channel"])
    ]
    assert found == fresh
    assert found[0] == found[8]
    assert len({str(each) for each in found}) == len(found) - 2


def test_the_order_of_jobs_changes_no_loss(replica: Replica, evaluator_of: Callable[..., Evaluator]) -> None:
    jobs = [
        Job(f"{bits} {name}", everywhere(replica, bits) if bits else {}, "selection", "selection", 3, kv)
        for bits in (0, 3)
        for name, kv in [("none", {}), *PLANS.items()]
    ]
    results = []
    for order in (jobs, [jobs[i] for i in np.random.default_rng(5).permutation(len(jobs))]):
        crew = Alone(evaluator_of(), {"selection": WINDOWS})
        outcomes = [outcome for _, outcome in crew.run(order)]
        results.append({o.plan: losses(o) for o in outcomes if isinstance(o, Measurement)})
    assert results[0] == results[1]
    assert len(results[0]) == len(jobs)


def test_windows_side_by_side_lose_what_they_lose_alone(evaluator_of: Callable[..., Evaluator]) -> None:
    windows = draw_windows(3, tuple((f"doc-{i}", 60 + i, 20) for i in range(6)))
    measured = [
        [losses(evaluator.measure("a", {}, "selection", windows, kv)) for kv in PLANS.values()]
        for evaluator in (evaluator_of(1), evaluator_of(3))
    ]
    assert measured[0] == measured[1]


def test_threads_that_ask_for_one_window_get_the_same(replica: Replica) -> None:
    prompts, barrier = Prompts(replica.model), threading.Barrier(3)

    def ask(kv: dict[int, KvOption]) -> Tensor:
        barrier.wait()
        return prompts.continued("a", WINDOWS[0], kv)

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(ask, [PLANS["mixed"]] * 3))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_no_more_bytes_are_kept_than_the_cap_allows(replica: Replica) -> None:
    with torch.no_grad():
        sizes = [prefill(replica.model, torch.from_numpy(w.tokens[None, : w.prefix])).nbytes for w in WINDOWS]
    caps = {0: [70, 70, 50], sizes[0]: [70, 50], sizes[0] + sizes[1]: [50], sum(sizes): []}
    for cap, again in caps.items():
        prompts = Prompts(replica.model, cap)
        first = [prompts.continued("a", window, PLANS["mixed"]) for window in WINDOWS]
        kept = [read.nbytes for read in prompts._kept.values()]
        assert sum(kept) <= cap
        calls, stop = count_prefills(replica)
        second = [prompts.continued("a", window, PLANS["mixed"]) for window in WINDOWS]
        stop()
        assert calls == again
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        prompts.continued("b", WINDOWS[2], PLANS["mixed"])  # of the others nothing is left
        assert {weights for weights, _ in prompts._kept} <= {"b"}


def test_options_for_caches_need_a_prefix_to_fill_them(evaluator_of: Callable[..., Evaluator]) -> None:
    without = Window("third", WINDOWS[0].tokens)
    for windows in ([without], [*WINDOWS, without]):
        with pytest.raises(ValueError, match="KV options need windows with a prefix"):
            evaluator_of().measure("a", {}, "selection", windows, PLANS["mixed"])
    assert evaluator_of().measure("a", {}, "selection", [without], {}).kl == 0.0


def test_the_content_key_knows_prefixes(evaluator_of: Callable[..., Evaluator]) -> None:
    evaluator = evaluator_of()
    tokens = WINDOWS[0].tokens
    keys = [
        evaluator.protocol("selection", [Window("first", tokens, prefix)]) for prefix in (0, 1, 10, 69, 70)
    ]
    assert len(set(keys)) == len(keys)
    assert keys[4] == evaluator.protocol("selection", WINDOWS[:1])
