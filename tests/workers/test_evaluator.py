from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from tightfit.compress import Replica, input_energy
from tightfit.spaces import (
    ZEROS,
    Space,
    WeightOption,
    WeightRules,
    build_space,
    get_target,
    read_geometry,
)
from tightfit.workers.evaluator import Evaluator, ReferenceWindow, add_losses, score_window
from tightfit.workers.measurement import DocumentLoss
from tightfit.workers.option_cache import OptionCache
from tightfit.workers.text import Window

VOCAB = 97
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "model_type": "llama", "tie_word_embeddings": False},
    "llama-tied": {**SIZES, "model_type": "llama", "tie_word_embeddings": True, "dtype": "bfloat16"},
    "qwen2": {**SIZES, "model_type": "qwen2", "tie_word_embeddings": False},
    "gpt2": {"model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4},
}
COARSE, FINE = WeightOption(2, 32, "integer"), WeightOption(6, 32, "float")
Options = dict[str, WeightOption]


def load(name: str) -> Replica:
    """A small model with random weights, in float32 whatever its base dtype."""
    sizes = dict(MODELS[name])
    config = AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(3)  # far from uniform predictions
    return Replica(model, read_geometry(MODELS[name]))


def draw_windows(seed: int, lengths: Mapping[str, tuple[int, ...]]) -> list[Window]:
    rng = np.random.default_rng([seed, 21])
    return [Window(name, rng.integers(0, VOCAB, n)) for name, parts in lengths.items() for n in parts]


WINDOWS = draw_windows(1, {"first": (12, 9), "second": (17,)})


@pytest.fixture(scope="module")
def replicas() -> Callable[[str], Replica]:
    """Each model, built once."""
    built: dict[str, Replica] = {}

    def get(name: str) -> Replica:
        if name not in built:
            built[name] = load(name)
        return built[name]

    return get


@pytest.fixture
def evaluator_of(replicas: Callable[[str], Replica], tmp_path: Path) -> Callable[..., Evaluator]:
    """An evaluator of a model; files of one name are shared by all evaluators of a test."""

    def build(name: str = "llama-tied", **identity: str) -> Evaluator:
        replica = replicas(name)
        replica.restore()
        importance = input_energy(replica.model, replica.geometry, [torch.arange(40)])
        cache = OptionCache(tmp_path / name / "options", 2**24)
        return Evaluator(replica, importance, cache, tmp_path / name / "reference", identity)

    return build


def everywhere(evaluator: Evaluator, option: WeightOption) -> Options:
    return dict.fromkeys(evaluator.replica.sites, option)


def log_probs(evaluator: Evaluator, window: Window) -> Tensor:
    ids = torch.from_numpy(window.tokens)[None]
    return torch.log_softmax(evaluator.replica.model(input_ids=ids).logits[0, :-1].double(), -1)


@pytest.mark.parametrize("name", MODELS)
def test_an_uncompressed_plan_loses_nothing(name: str, evaluator_of: Callable[..., Evaluator]) -> None:
    evaluator = evaluator_of(name)
    measured = evaluator.measure("plan", {}, "selection", WINDOWS)
    assert measured.kl == measured.kl_p99 == measured.delta_nll == 0.0
    assert measured.agreement == 1.0
    lossless = evaluator.measure("plan", everywhere(evaluator, WeightOption(32)), "selection", WINDOWS)
    assert (lossless.kl, lossless.agreement) == (0.0, 1.0)


@pytest.mark.parametrize("name", MODELS)
def test_losses_equal_a_direct_computation(name: str, evaluator_of: Callable[..., Evaluator]) -> None:
    evaluator = evaluator_of(name)
    expected = [log_probs(evaluator, window) for window in WINDOWS]
    options = everywhere(evaluator, COARSE)
    measured = evaluator.measure("digest", options, "selection", WINDOWS)
    for site, option in options.items():
        applied = evaluator.replica.model.get_parameter(
            f"{evaluator.replica.geometry.linear(site).path}.weight"
        )
        transposed = evaluator.replica.geometry.linear(site).transposed
        assert torch.equal(applied.t() if transposed else applied, evaluator.matrix(site, option))
    found = [log_probs(evaluator, window) for window in WINDOWS]
    divergence = [(p.exp() * (p - q)).sum(-1) for p, q in zip(expected, found, strict=True)]
    target = [torch.from_numpy(window.tokens[1:, None]) for window in WINDOWS]
    nll = [-q.gather(-1, t).sum() for q, t in zip(found, target, strict=True)]
    agree = [int((p.argmax(-1) == q.argmax(-1)).sum()) for p, q in zip(expected, found, strict=True)]

    assert (measured.plan, measured.split, measured.tokens) == ("digest", "selection", 11 + 8 + 16)
    assert [d.document for d in measured.documents] == ["first", "second"]
    first, second = measured.documents
    assert (first.tokens, second.tokens) == (19, 16)
    assert first.kl == pytest.approx(float(divergence[0].sum() + divergence[1].sum()), rel=1e-4)
    assert second.kl == pytest.approx(float(divergence[2].sum()), rel=1e-4)
    assert measured.kl == pytest.approx(float(torch.cat(divergence).mean()), rel=1e-4)
    assert measured.kl > 0.01
    assert measured.kl_p99 == pytest.approx(float(torch.cat(divergence).quantile(0.99)), rel=1e-4)
    assert second.nll == pytest.approx(float(nll[2]), rel=1e-5)
    assert (first.agree, second.agree) == (agree[0] + agree[1], agree[2])


def test_a_plan_measured_again_has_the_same_losses_to_the_last_bit(
    evaluator_of: Callable[..., Evaluator],
) -> None:
    evaluator = evaluator_of()
    a, b = everywhere(evaluator, FINE), everywhere(evaluator, COARSE)
    mixed = {**a, evaluator.replica.sites[2]: COARSE}
    first = evaluator.measure("a", a, "selection", WINDOWS)
    for between in (b, mixed, {}):
        assert evaluator.measure("between", between, "selection", WINDOWS).documents != first.documents
        again = evaluator.measure("a", a, "selection", WINDOWS)
        assert (again.documents, again.kl_p99) == (first.documents, first.kl_p99)
    fresh = evaluator_of().measure("a", a, "selection", WINDOWS)
    assert fresh.documents == first.documents


def test_sites_that_a_plan_leaves_out_are_not_compressed(evaluator_of: Callable[..., Evaluator]) -> None:
    evaluator = evaluator_of("llama")
    replica = evaluator.replica
    paths = {site: f"{replica.geometry.linear(site).path}.weight" for site in replica.sites}
    one, other = replica.sites[1], replica.sites[-1]
    for plan in ({one: COARSE}, everywhere(evaluator, COARSE), {other: FINE}, {}):
        evaluator.measure("plan", plan, "selection", WINDOWS)
        for site, path in paths.items():
            applied, original = replica.model.get_parameter(path), replica.original(site)
            if site in plan:
                assert torch.equal(applied, evaluator.matrix(site, plan[site]))
                assert not torch.equal(applied, original)
            else:
                assert applied.data_ptr() == original.data_ptr()


def test_clearing_puts_every_matrix_back(evaluator_of: Callable[..., Evaluator]) -> None:
    evaluator = evaluator_of()
    before = {name: tensor.clone() for name, tensor in evaluator.replica.model.state_dict().items()}
    evaluator.measure("plan", everywhere(evaluator, COARSE), "selection", WINDOWS)
    evaluator.clear()
    after = evaluator.replica.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


OFFERED = {
    "bits": (2, 3, 4, 5, 6, 8, 16, 32),
    "groups": (32, 64, 128, 0),
    "zeros": ZEROS,
}


def space_of(evaluator: Evaluator) -> Space:
    return build_space(evaluator.replica.geometry, WeightRules(**OFFERED), get_target("any"))


@pytest.mark.parametrize("name", MODELS)
def test_bytes_counted_from_packed_tensors_are_the_charged_ones(
    name: str, evaluator_of: Callable[..., Evaluator]
) -> None:
    evaluator = evaluator_of(name)
    space = space_of(evaluator)
    nothing = evaluator.stored_bytes({})
    assert nothing == space.geometry.parameters * space.geometry.dtype_bytes
    shapes = {decision.costs: decision for decision in space.decisions}
    for decision in list(shapes.values())[:2]:
        whole = nothing - decision.weights * space.geometry.dtype_bytes
        for option, cost in zip(decision.options, decision.costs, strict=True):
            sites = [x for x in decision.sites if space.geometry.linear(x).tied_to is None]
            assert evaluator.stored_bytes(dict.fromkeys(sites, option)) == whole + cost


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_of_whole_plans_are_the_charged_ones(
    name: str, evaluator_of: Callable[..., Evaluator], data: st.DataObject
) -> None:
    evaluator = evaluator_of(name)
    space = space_of(evaluator)
    levels = [data.draw(st.integers(0, len(decision.options) - 1)) for decision in space.decisions]
    plan = space.plan(levels)
    assert evaluator.stored_bytes(space.site_options(plan)) == space.weight_bytes(plan)


def test_the_content_key_changes_with_everything_that_losses_depend_on(
    evaluator_of: Callable[..., Evaluator], replicas: Callable[[str], Replica], tmp_path: Path
) -> None:
    evaluator = evaluator_of(model="abc", calibration="def")
    key = evaluator.protocol("selection", WINDOWS)
    assert evaluator_of(model="abc", calibration="def").protocol("selection", WINDOWS) == key
    keys = [key]
    keys.append(evaluator_of(model="other", calibration="def").protocol("selection", WINDOWS))
    keys.append(evaluator_of(model="abc", calibration="other").protocol("selection", WINDOWS))
    keys.append(evaluator.protocol("validation", WINDOWS))
    keys.append(evaluator.protocol("selection", WINDOWS[:2]))
    keys.append(evaluator.protocol("selection", WINDOWS[::-1]))
    shifted = WINDOWS[0].tokens.copy()
    shifted[3] += 1
    keys.append(evaluator.protocol("selection", [Window("first", shifted), *WINDOWS[1:]]))
    renamed = Window("renamed", WINDOWS[0].tokens)
    keys.append(evaluator.protocol("selection", [renamed, *WINDOWS[1:]]))
    half = Replica(load("llama-tied").model.bfloat16(), replicas("llama-tied").geometry)
    cache = OptionCache(tmp_path / "half", 2**20)
    identity = {"model": "abc", "calibration": "def"}
    keys.append(Evaluator(half, {}, cache, tmp_path / "half", identity).protocol("selection", WINDOWS))
    for (i, a), (j, b) in itertools.combinations(enumerate(keys), 2):
        assert a != b, (i, j)


def test_losses_depend_neither_on_the_number_of_threads_nor_on_the_windows_side_by_side(
    tmp_path: Path,
) -> None:
    """On one machine splitting a product over threads may happen to round alike, so keys are compared too."""
    found = []
    before = torch.get_num_threads()
    for side_by_side, threads in ((1, 1), (3, 1), (2, 4)):
        folder = tmp_path / f"{side_by_side}-{threads}"
        replica = load("llama-tied")
        evaluator = Evaluator(
            replica, {}, OptionCache(folder, 2**30), folder / "reference", {}, threads=side_by_side
        )
        options = {site: WeightOption(3, 32, "integer") for site in replica.sites}
        torch.set_num_threads(threads)
        try:
            measured = evaluator.measure("a" * 64, options, "selection", WINDOWS)
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
            evaluator.clear()
        found.append((measured.protocol, measured.documents, measured.kl_p99))
    assert found[0] == found[1] == found[2]


def count_forwards(evaluator: Evaluator) -> list[int]:
    calls: list[int] = []
    evaluator.replica.model.register_forward_pre_hook(lambda module, args: calls.append(1))
    return calls


def test_the_reference_of_a_window_is_computed_once(
    evaluator_of: Callable[..., Evaluator], tmp_path: Path
) -> None:
    folder, count = tmp_path / "llama-tied" / "reference", len(WINDOWS)
    evaluator = evaluator_of()
    calls = count_forwards(evaluator)
    first = evaluator.measure("a", everywhere(evaluator, COARSE), "selection", WINDOWS)
    assert len(calls) == 2 * count
    evaluator.measure("b", {}, "selection", WINDOWS)
    assert len(calls) == 3 * count
    later = evaluator_of()  # a run that goes on
    del calls[:]
    again = later.measure("a", everywhere(later, COARSE), "selection", WINDOWS)
    assert len(calls) == count
    assert again.documents == first.documents
    more = [*WINDOWS, *draw_windows(2, {"third": (6,)})]
    added = later.measure("a", everywhere(later, COARSE), "selection", more)
    assert len(calls) == count + 1 + len(more)
    assert added.documents[:2] == first.documents
    assert {file.suffix for file in folder.iterdir()} == {".safetensors"}
    assert len(list(folder.iterdir())) == len(more)
    evaluator_of(model="another").measure("a", {}, "selection", WINDOWS)
    assert len(list(folder.iterdir())) == len(more) + count


def test_half_a_reference_is_never_used(
    evaluator_of: Callable[..., Evaluator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = evaluator_of()
    options = everywhere(evaluator, COARSE)
    expected = evaluator.measure("a", options, "selection", WINDOWS).documents
    folder = tmp_path / "llama-tied" / "reference"
    for file in folder.iterdir():
        file.unlink()

    def die(named: dict[str, Tensor], path: Path) -> None:
        Path(path).write_bytes(b"half of a file")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tightfit.workers.tensor_files.save_file", die)
        with pytest.raises(KeyboardInterrupt):
            evaluator.measure("a", options, "selection", WINDOWS)
    assert all(file.name.startswith(".") for file in folder.iterdir())
    assert evaluator_of().measure("a", options, "selection", WINDOWS).documents == expected


def test_sums_of_the_windows_of_a_document_add_up() -> None:
    a, b = DocumentLoss("d", 3, 0.5, 4.0, 3.5, 2), DocumentLoss("d", 2, 0.25, 3.0, 3.0, 1)
    assert add_losses(a, b) == DocumentLoss("d", 5, 0.75, 7.0, 6.5, 3)


def test_scores_of_known_predictions() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    q = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.2, 0.7]])
    window = ReferenceWindow("d", torch.tensor([0, 1, 2]), p.log())
    loss, divergence = score_window(q.log(), window)
    expected = (p.double() * (p.double() / q.double()).log()).sum(-1)
    torch.testing.assert_close(divergence.double(), expected, rtol=1e-5, atol=1e-7)
    assert loss.kl == pytest.approx(float(expected.sum()), rel=1e-5)
    assert loss.nll == pytest.approx(-np.log(0.5) - np.log(0.7), rel=1e-6)
    assert loss.reference_nll == pytest.approx(-np.log(0.25) - np.log(0.8), rel=1e-6)
    assert (loss.document, loss.tokens, loss.agree) == ("d", 2, 1)
