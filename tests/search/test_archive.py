from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tightfit.compress import Replica, input_energy
from tightfit.search.archive import SENSING, Archive
from tightfit.search.store import Store
from tightfit.spaces import Plan, Space, WeightRules, build_space, get_target, read_geometry
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.option_cache import OptionCache
from tightfit.workers.text import Window

VOCAB = 96


@pytest.fixture(scope="module")
def replica() -> Replica:
    """A small Llama with random weights."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = LlamaForCausalLM(config).eval().requires_grad_(False)
    return Replica(model, read_geometry(config.to_dict()))


@pytest.fixture(scope="module")
def space(replica: Replica) -> Space:
    return build_space(replica.geometry, WeightRules(bits=(2, 4, 8), groups=(32,)), get_target("vllm"))


def draw_windows(documents: int, length: int, seed: int) -> list[Window]:
    rng = np.random.default_rng([seed, 51])
    tokens = rng.integers(0, VOCAB, (2, documents, length))
    return [Window(f"document {d}", tokens[turn, d]) for turn in range(2) for d in range(documents)]


@pytest.fixture(scope="module")
def splits() -> Mapping[str, list[Window]]:
    return {"selection": draw_windows(4, 17, 1), "validation": draw_windows(3, 17, 2)}


@pytest.fixture
def store(tmp_path: Path, space: Space) -> Iterator[Store]:
    with Store.open(tmp_path / "run" / "run.db") as store:
        store.add_space(space)
        yield store


@pytest.fixture
def archive_of(
    store: Store, space: Space, replica: Replica, splits: Mapping[str, list[Window]], tmp_path: Path
) -> Callable[..., Archive]:
    """An archive over the same store and model, as every process of a run would make it."""
    calibration = [torch.from_numpy(window.tokens) for window in splits["selection"]]
    replica.restore()
    importance = input_energy(replica.model, replica.geometry, calibration)

    def make(model: str = "a digest") -> Archive:
        replica.restore()  # as freshly loaded
        cache = OptionCache(tmp_path / "options", 2**30)
        evaluator = Evaluator(replica, importance, cache, tmp_path / "reference", {"model": model})
        return Archive(store, space, evaluator, splits)

    return make


def plan_of(space: Space, level: int) -> Plan:
    return space.plan([level] * len(space.decisions))


def test_a_plan_is_never_measured_twice(archive_of: Callable[..., Archive], space: Space) -> None:
    archive = archive_of()
    first = archive.measure(plan_of(space, 0), "selection", "exact")
    again = archive.measure(plan_of(space, 0), "selection", "greedy")
    assert again == first
    assert (archive.made, archive.reused, archive.tokens) == (1, 1, 8 * 16)
    other = archive_of()  # the run was stopped and is continued
    assert other.measure(plan_of(space, 0), "selection", "exact") == first
    assert (other.made, other.reused, other.tokens) == (0, 1, 0)
    assert len(archive.store.measurements()) == 1


def test_who_proposed_a_plan_first_is_kept(archive_of: Callable[..., Archive], space: Space) -> None:
    archive = archive_of()
    for source in ("exact", "greedy"):
        archive.measure(plan_of(space, 1), "selection", source)
    stored = archive.store.plans()[plan_of(space, 1).digest]
    assert stored.source == "exact"
    assert stored.bytes == space.weight_bytes(plan_of(space, 1))


@pytest.mark.parametrize("other", ["another text", "more tokens", "another plan", "another model"])
def test_whatever_a_loss_depends_on_makes_another_measurement(
    archive_of: Callable[..., Archive], space: Space, other: str
) -> None:
    archive_of().measure(plan_of(space, 0), "selection", "exact", tokens=64)
    archive = archive_of("another digest" if other == "another model" else "a digest")
    split = "validation" if other == "another text" else "selection"
    tokens = 80 if other == "more tokens" else 64
    level = 1 if other == "another plan" else 0
    archive.measure(plan_of(space, level), split, "exact", tokens=tokens)
    assert (archive.made, archive.reused) == (1, 0)


def test_the_measurement_is_what_the_evaluator_says(
    archive_of: Callable[..., Archive], space: Space, splits: Mapping[str, list[Window]]
) -> None:
    archive, plan = archive_of(), plan_of(space, 1)
    measured = archive.measure(plan, "validation", "exact")
    direct = archive.evaluator.measure(
        plan.digest, space.site_options(plan), "validation", splits["validation"]
    )
    assert measured.documents == direct.documents
    assert (measured.plan, measured.split, measured.tokens) == (plan.digest, "validation", 6 * 16)
    assert [document.document for document in measured.documents] == [f"document {i}" for i in range(3)]
    assert archive.measure(plan_of(space, 0), "validation", "exact").kl > measured.kl > 0


def test_fewer_tokens_take_the_first_windows_that_score_as_many(archive_of: Callable[..., Archive]) -> None:
    archive = archive_of()
    selection = archive.splits["selection"]
    for tokens, count in ((1, 1), (16, 1), (17, 2), (64, 4), (10**6, 8)):
        assert archive.windows("selection", tokens) == selection[:count]
    assert archive.windows("selection") == selection


def test_sensing_uses_the_text_that_the_search_may_see(archive_of: Callable[..., Archive]) -> None:
    archive = archive_of()
    assert archive.windows(SENSING, 32) == archive.splits["selection"][:2]


def test_a_partial_plan_has_the_bytes_of_the_model_with_only_these_options(
    archive_of: Callable[..., Archive], space: Space
) -> None:
    archive = archive_of()
    decision = space.decisions[1]
    partial = Plan(((decision.name, decision.options[0].name),))
    archive.measure(partial, SENSING, "marginal", tokens=32)
    stored = archive.store.plans()[partial.digest]
    options = dict.fromkeys(decision.sites, decision.options[0])
    assert stored.bytes == archive.evaluator.stored_bytes(options)
