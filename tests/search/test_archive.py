from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tightfit.compress import Replica, input_energy
from tightfit.search.archive import SENSING, Archive, successes
from tightfit.search.store import Store
from tightfit.spaces import Plan, Space, WeightRules, build_space, get_target, read_geometry
from tightfit.workers.crew import Alone, Job, Outcome
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.measurement import Failure, Measurement
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
        store.set_space(space)
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


class Backwards:
    """A crew that finishes the last job first, and may fail or be stopped on the way."""

    def __init__(self, archive: Archive, broken: str = "") -> None:
        self.alone = Alone(archive.evaluator, archive.splits)
        self.broken = broken

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        for position in reversed(range(len(jobs))):
            job = jobs[position]
            if job.plan == self.broken:
                yield position, Failure(job.plan, job.split, "a protocol", "died", "its process died")
            else:
                yield from ((position, outcome) for _, outcome in self.alone.run([job]))

    def close(self) -> None:
        pass


def test_outcomes_come_in_the_order_that_was_asked_for_whoever_is_faster(
    archive_of: Callable[..., Archive], space: Space
) -> None:
    plans = [(plan_of(space, level), "exact") for level in (0, 1, 0, 2)]
    archive = archive_of()
    archive.crew = Backwards(archive)
    ticks: list[tuple[int, int]] = []
    outcomes = archive.measure_all(plans, "selection", tick=lambda *done: ticks.append(done))
    assert [outcome.plan for outcome in outcomes] == [plan.digest for plan, _ in plans]
    assert archive.made == 3  # one plan was asked for twice
    assert ticks == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert archive_of().measure_all(plans, "selection") == outcomes


def test_what_was_measured_before_a_stop_is_kept(archive_of: Callable[..., Archive], space: Space) -> None:
    archive = archive_of()
    plans = [(plan_of(space, level), "exact") for level in (0, 1, 2)]

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        archive.measure_all(plans, "selection", tick=stop)
    other = archive_of()
    other.measure_all(plans, "selection")
    assert (other.made, other.reused) == (1, 2)


def test_a_plan_that_cannot_be_measured_is_not_tried_again(
    archive_of: Callable[..., Archive], space: Space
) -> None:
    archive = archive_of()
    protocol = archive.evaluator.protocol("selection", archive.windows("selection"))
    failure = Failure(plan_of(space, 1).digest, "selection", protocol, "died", "its process died")
    plans = [(plan_of(space, level), "exact") for level in (0, 1, 2)]
    archive.store.add_plan(plans[1][0], space.weight_bytes(plans[1][0]), "exact")
    archive.store.add_failure(failure)
    outcomes = archive.measure_all(plans, "selection")
    assert outcomes[1] == failure
    assert [m.plan for m in successes(outcomes)] == [plans[0][0].digest, plans[2][0].digest]
    assert (archive.made, archive.reused) == (2, 1)


def test_a_loss_that_is_not_finite_is_a_failure_and_never_a_measurement(
    archive_of: Callable[..., Archive], space: Space
) -> None:
    archive = archive_of()
    norm = archive.evaluator.replica.model.get_parameter("model.norm.weight")
    kept = norm.data.clone()
    reference = archive.measure(plan_of(space, 2), "selection", "exact")  # with the reference in place
    assert isinstance(reference, Measurement)
    norm.data[0] = float("nan")
    try:
        outcome = archive.measure(plan_of(space, 0), "selection", "exact")
    finally:
        norm.data.copy_(kept)
    assert isinstance(outcome, Failure)
    assert outcome.kind == "not finite"
    assert "kl of document document 0 is nan" in outcome.reason
    assert archive.store.failures() == [outcome]
    assert [m.plan for m in archive.store.measurements()] == [plan_of(space, 2).digest]
    assert archive_of().measure(plan_of(space, 0), "selection", "greedy") == outcome
