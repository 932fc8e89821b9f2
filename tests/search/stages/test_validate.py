from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tightfit.search.agents import Proposal
from tightfit.search.settings import Settings
from tightfit.search.stages import Candidate, validate
from tightfit.search.store import Store
from tightfit.spaces import Plan, Space, WeightRules, build_space, get_target, read_geometry
from tightfit.workers.crew import Outcome
from tightfit.workers.measurement import DocumentLoss, Failure, Measurement

CONFIG = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
Losses = dict[str, tuple[float, ...]]


class Lab:
    """A bench whose losses are given: per label on validation and holdout text, document by document."""

    def __init__(self, store: Store, validation: Losses, holdout: Losses) -> None:
        self.store = store
        self.space: Space = build_space(
            read_geometry(CONFIG), WeightRules((3, 4), groups=(32,)), get_target("any")
        )
        self.limit = self.space.ceiling
        self.settings = Settings.from_dict({"budget": {"weights": "1MiB"}, "search": {"finalists": 2}})
        self.archive, self.evaluator, self.crew = self, self, None
        self.progress = SimpleNamespace(stage=lambda *_: _Quiet())
        self.losses = {"validation": validation, "holdout": holdout}
        self.read: list[tuple[str, str]] = []
        proposals = [self._proposal(i, label) for i, label in enumerate(validation)]
        self.digests = {p.label: p.plan.digest for p in proposals}
        self.candidates = [Candidate(p, self._measured(p.plan, (0.1,), "selection")) for p in proposals]
        store.put("predicted", dict.fromkeys(self.digests.values(), 0.25))

    def _proposal(self, index: int, label: str) -> Proposal:
        levels = [0] * len(self.space.decisions)
        levels[index] = 1
        kind: Any = label.split()[0] if label.startswith(("uniform", "mix")) else "searched"
        return Proposal(self.space.plan(levels), tuple(levels), self.space.bytes_of(levels), label, kind)

    def _measured(self, plan: Plan, losses: tuple[float, ...], split: str) -> Measurement:
        rows = [DocumentLoss(f"doc-{i}", 100, 100 * kl, 330, 320, 90) for i, kl in enumerate(losses)]
        return Measurement(plan.digest, split, "protocol", tuple(rows), 1.0, 1.0)

    def measure_all(self, plans: Sequence[tuple[Plan, str]], split: str, tick: Any) -> list[Outcome]:
        self.read += [(split, label) for _, label in plans]
        return [self._outcome(plan, self.losses[split][label], split) for plan, label in plans]

    def _outcome(self, plan: Plan, losses: tuple[float, ...], split: str) -> Outcome:
        if losses:
            return self._measured(plan, losses, split)
        return Failure(plan.digest, split, "protocol", "not finite", "kl is nan")

    def stored_bytes(self, options: Any) -> int:
        linears = {x.site: x for x in self.space.geometry.linears}
        packed = sum(o.tensor_bytes(linears[site].rows, linears[site].cols) for site, o in options.items())
        return self.space.fixed_bytes + packed

    def run(self) -> dict[str, Any]:
        validate(self, self.candidates)  # type: ignore[arg-type]
        return dict(self.store.get("result"))


class _Quiet:
    def __enter__(self) -> Callable[[int, int], None]:
        return lambda done, total: None

    def __exit__(self, *exc: object) -> None:
        pass


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    with Store.open(tmp_path / "my runs" / "demo" / "run.db") as store:
        yield lambda validation, holdout: Lab(store, validation, holdout)


def test_validation_text_picks_and_holdout_text_is_read_once(lab: Callable[..., Lab]) -> None:
    bench = lab(
        {"exact": (0.3, 0.3), "greedy": (0.2, 0.2), "late": (0.1, 0.1), "uniform 3b": (0.5, 0.5)},
        {"greedy": (0.25, 0.27), "uniform 3b": (0.5, 0.51)},
    )
    result = bench.run()
    assert result["chosen"] == result["offered"] == bench.digests["greedy"]
    assert result["agrees"]
    assert [label for split, label in bench.read if split == "holdout"] == ["greedy", "uniform 3b"]
    assert result["verdict"].startswith(f"fits: plan {bench.digests['greedy'][:12]} takes ")
    assert (
        "B predicted and recounted), holdout KL 0.2600 ± 0.0100 nats/token (predicted 0.2500)"
        in result["verdict"]
    )
    assert "× the best baseline, uniform 3b (" in result["verdict"]


def test_a_baseline_that_loses_less_on_holdout_is_offered_and_said_so(lab: Callable[..., Lab]) -> None:
    bench = lab(
        {"exact": (0.2, 0.2), "uniform 3b": (0.5, 0.5), "mix 3b/4b": (0.4, 0.4)},
        {"exact": (0.31, 0.29), "uniform 3b": (0.5, 0.5), "mix 3b/4b": (0.28, 0.3)},
    )
    result = bench.run()
    assert result["chosen"] == bench.digests["exact"]
    assert result["offered"] == result["best_baseline"] == bench.digests["mix 3b/4b"]
    assert not result["agrees"]
    assert result["verdict"].startswith(f"fits: plan {bench.digests['mix 3b/4b'][:12]} ")
    assert (
        f"this is the baseline mix 3b/4b: the plan of the search, {result['chosen'][:12]}, "
        in result["verdict"]
    )


def test_a_finalist_that_cannot_be_measured_is_out_of_the_race(lab: Callable[..., Lab]) -> None:
    bench = lab(
        {"exact": (), "greedy": (0.2, 0.2), "uniform 3b": (0.5, 0.5), "mix 3b/4b": ()},
        {"greedy": (0.25, 0.27), "uniform 3b": (0.5, 0.51)},
    )
    result = bench.run()
    assert result["chosen"] == result["offered"] == bench.digests["greedy"]
    assert [label for split, label in bench.read if split == "holdout"] == ["greedy", "uniform 3b"]


def test_a_run_of_baselines_only_has_a_verdict(lab: Callable[..., Lab]) -> None:
    losses = {"uniform 3b": (0.5, 0.5), "mix 3b/4b": (0.5, 0.5)}
    result = lab(losses, losses).run()
    assert result["agrees"]
    assert result["offered"] == result["chosen"] == result["best_baseline"]
    assert result["verdict"].endswith(": the search proposed no other plan")


def test_what_to_do_next_can_be_pasted_into_a_shell(lab: Callable[..., Lab]) -> None:
    losses = {"exact": (0.2, 0.2), "uniform 3b": (0.5, 0.5)}
    bench = lab(losses, losses)
    folder = str(bench.store.path.parent)
    assert " " in folder
    assert all(shlex.split(line)[2] == folder for line in bench.run()["next"])
