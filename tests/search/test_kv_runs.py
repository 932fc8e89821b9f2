"""Whole runs that decide about weights and KV caches together, on a tiny trained model."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tightfit.search import control
from tightfit.search.inspection import inspect_settings
from tightfit.search.probes import COPY, HALF
from tightfit.search.progress import Progress, Tick
from tightfit.search.resolve import resolve, size_budget, stored_space
from tightfit.search.run import run_search
from tightfit.search.settings import Settings
from tightfit.search.store import Store
from tightfit.search.summary import summarize
from tightfit.spaces import Budget, InfeasibleError, InputError, KvOption
from tightfit.workers.measurement import compare

TOTAL, CONTEXT = 92_000, 40
SHORT: dict[str, Any] = {
    "budget": {"total": f"{TOTAL}B", "context": CONTEXT},
    "space": {
        "weights": {"bits": [2, 3, 4, 6], "pin": {"embed": "8b-g64-float"}},
        # 34 of 40 tokens are neither sinks nor recent: one group of them is quantized.
        "kv": {"bits": [2, 4, 16], "keep": [0.5, 1.0], "residual": 4, "sinks": 2},
    },
    "text": {
        "sequence": 24,
        "prefix": CONTEXT,
        "calibration": 46,
        "selection": 46,
        "validation": 46,
        "holdout": 69,
    },
    "sense": {
        "prescreen_tokens": 46,
        "marginals": 4,
        "kv_marginals": 6,
        "pairs": 2,
        "marginal_tokens": 46,
        "fit_plans": 6,
        "fit_tokens": 46,
        "certificate_plans": 4,
    },
    "search": {"agents": ["exact", "evolution"], "evaluations": 4, "batch": 2, "finalists": 2},
}


@pytest.fixture(scope="module")
def kv_settings(settings_of: Callable[..., Settings]) -> Callable[..., Settings]:
    def make(folder: Path, **changes: Any) -> Settings:
        return settings_of(folder, **{**SHORT, **changes})

    return make


@pytest.fixture(scope="module")
def joint(kv_settings: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody disturbed."""
    return quietly(kv_settings(tmp_path_factory.mktemp("joint")))


def quietly(settings: Settings, progress: Progress | None = None) -> Path:
    return run_search(settings, say=lambda text: None, progress=progress or Progress(StringIO()))


def found(folder: Path) -> Any:
    """What a run found, and everything that it proposed and measured, to the last bit."""
    with Store.open(folder, mode="ro") as store:
        documents = {(m.plan, m.split, m.protocol): (m.documents, m.kl_p99) for m in store.measurements()}
        result = {key: value for key, value in store.get("result").items() if key != "next"}
        return result, documents, [(t.agent, t.round, t.plan) for t in store.trials()]


def check_plan(folder: Path) -> dict[int, KvOption]:
    """Check the bytes of the plan that a run settled on; return the caches that it chose."""
    with Store.open(folder, mode="ro") as store:
        result, space = store.get("result"), stored_space(store)
        stored = store.plans()[result["offered"]]
        limit = store.get("budget")["limit"]
        report = summarize(store)
    assert result["fits"]
    assert result["recounted_bytes"] == stored.bytes == space.bytes_of(space.levels(stored.plan)) <= limit
    weights = stored.bytes - stored.cache_bytes
    assert stored.cache_bytes == space.cache_bytes(stored.plan) > 0
    assert weights == space.weight_bytes(stored.plan) > 0
    assert report.result is not None
    assert f"({stored.bytes:,} B predicted and recounted)" in report.result.verdict
    return space.kv_options(stored.plan)


def test_a_joint_run_keeps_one_budget_for_weights_and_caches(joint: Path) -> None:
    assert sorted(check_plan(joint)) == [0, 1, 2]
    with Store.open(joint, mode="ro") as store:
        assert store.get("budget")["limit"] == TOTAL
        assert (joint / "report.html").is_file()
        for stored in store.plans().values():
            assert 0 <= stored.cache_bytes < stored.bytes


def test_weights_and_caches_of_the_front_are_told_apart(joint: Path) -> None:
    with Store.open(joint, mode="ro") as store:
        space, plans = stored_space(store), store.plans()
        for row in store.get("front"):
            plan = plans[row["digest"]].plan
            assert row["cache_bytes"] == space.cache_bytes(plan) == plans[row["digest"]].cache_bytes
            assert row["bytes"] - row["cache_bytes"] == space.weight_bytes(plan)


def test_uniform_weights_with_uniform_caches_are_in_the_race(joint: Path) -> None:
    with Store.open(joint, mode="ro") as store:
        baselines, space = store.get("baselines"), stored_space(store)
        uniform = {row["digest"]: row["label"] for row in baselines if row["kind"] == "uniform"}
        assert len(uniform) > 1
        for digest, label in uniform.items():
            plan = store.plans()[digest].plan
            caches = {option.name for option in space.kv_options(plan).values()}
            free = [d for d in space.matrix_decisions if len(d.options) > 1]
            formats = {dict(plan.choices)[decision.name] for decision in free}
            assert [label] == [f"uniform {a} + {b}" for a in formats for b in caches]
        assert {row["kind"] for row in baselines} == {"uniform", "mix"}


def test_what_is_measured_of_weights_and_of_caches_pairs(joint: Path) -> None:
    """Plans of weights alone run in one forward, those of caches go on from a prompt."""
    with Store.open(joint, mode="ro") as store:
        space, plans = stored_space(store), store.plans()
        for split in ("sensing", "selection", "holdout"):
            measured = store.measurements(split)
            by_protocol: dict[str, list[Any]] = {}
            for m in measured:
                by_protocol.setdefault(m.protocol, []).append(m)
            for group in by_protocol.values():
                for other in group[1:]:
                    compare(group[0], other)  # raises where documents or tokens differ
        sensed = [plans[m.plan].plan for m in store.measurements("sensing")]
        kinds = {(bool(space.site_options(plan)), bool(space.kv_options(plan))) for plan in sensed}
        assert kinds == {(True, False), (False, True), (True, True)}
        assert len({m.protocol for m in store.measurements("sensing")}) == 1


def test_scores_pairs_and_probes_are_stored(joint: Path) -> None:
    with Store.open(joint, mode="ro") as store:
        space = stored_space(store)
        for kind in ("prescreen", "calibrated", "loss_model"):
            names = [(score.decision, score.option) for score in store.scores(kind)]
            assert names == [(d.name, o.name) for d in space.decisions for o in d.options]
        pairs = store.get_fit("pairs")
        assert pairs is not None
        assert pairs["blocks"] == ["layers.0.kv", "layers.2.kv"]
        assert set(store.get("probes")) == {HALF}  # the prompts are too short to plant anything in them
        half = {m.plan: m for m in store.measurements(HALF)}
        whole = {m.plan: m for m in store.measurements("holdout")}
        assert not store.measurements(COPY)
        assert half.keys() == whole.keys()
        assert all(half[plan].tokens == whole[plan].tokens for plan in half)


def test_a_finished_run_is_found_finished(
    joint: Path, kv_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    shutil.copytree(joint, tmp_path / "tiny")
    said: list[str] = []
    run_search(kv_settings(tmp_path), say=said.append)
    assert "this run is finished; its result:\n" in said
    assert found(tmp_path / "tiny") == found(joint)


def test_other_budgets_are_solved_without_measuring(joint: Path) -> None:
    with Store.open(joint, mode="ro") as store:
        space = stored_space(store)
        assert resolve(store, size_budget(store, TOTAL)).plan.digest == store.get("solution")["digest"]
        least = [sum(d.costs[0] for d in part) for part in (space.matrix_decisions, space.kv_decisions)]
        for size in (space.floor, TOTAL - 5000, TOTAL + 5000, 2 * space.ceiling):
            answer = resolve(store, size_budget(store, size))
            assert answer.size == space.bytes_of(space.levels(answer.plan)) <= size
            assert answer.cache == space.cache_bytes(answer.plan)
            data = answer.to_dict()
            assert data["bytes"] == data["weight_bytes"] + data["kv_bytes"]
        loose = resolve(store, size_budget(store, TOTAL))
        tight = resolve(store, Budget(total=TOTAL, kv=least[1], context=CONTEXT))
        assert tight.cache == least[1] <= loose.cache
        weights = space.fixed_bytes + least[0] + 2000
        narrow = resolve(store, Budget(total=TOTAL, weights=weights, context=CONTEXT))
        assert narrow.size - narrow.cache <= weights
        with pytest.raises(InfeasibleError, match=r"budget\.kv allows"):
            resolve(store, Budget(kv=least[1] - 1, context=CONTEXT))


def test_two_workers_find_the_same_plan_and_the_same_losses(
    joint: Path, kv_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    assert found(quietly(kv_settings(tmp_path, workers={"count": 2}))) == found(joint)


class StoppingProgress(Progress):
    """Progress that stops the run at the n-th step of a stage, or kills its process there."""

    def __init__(self, stage: str, steps: int, kill: bool = False) -> None:
        super().__init__(StringIO())
        self._where, self._steps, self._kill = stage, steps, kill

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[Tick]:
        with super().stage(name, what) as tick:

            def counted(done: int, total: int) -> None:
                self._steps -= name == self._where
                if self._steps < 0 and self._kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                if self._steps < 0:
                    raise control.StoppedError("stopped")
                tick(done, total)

            yield counted


def test_a_run_that_is_stopped_measures_nothing_twice_and_ends_with_the_same_plan(
    joint: Path, kv_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    for stage, steps in (("sense", 30), ("explore", 10), ("explore", 3)):
        with pytest.raises(control.StoppedError):
            quietly(kv_settings(tmp_path), StoppingProgress(stage, steps))
    folder = quietly(kv_settings(tmp_path))
    assert found(folder) == found(joint)
    with Store.open(folder, mode="ro") as store:
        assert store.get("work")["measured"] == len(store.measurements())


def killed(settings: dict[str, Any]) -> None:
    quietly(Settings.from_dict(settings), StoppingProgress("explore", 5, kill=True))


def test_a_run_that_is_killed_goes_on_where_it_was(
    joint: Path, kv_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=killed, args=(kv_settings(tmp_path).to_dict(),)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with Store.open(tmp_path / "tiny") as store:
        kept = {(m.plan, m.split): m.seconds for m in store.measurements()}
    assert kept
    assert found(quietly(kv_settings(tmp_path))) == found(joint)
    with Store.open(tmp_path / "tiny", mode="ro") as store:
        seconds = {(m.plan, m.split): m.seconds for m in store.measurements()}
    assert kept.items() <= seconds.items()  # clocks never agree twice


def test_bounds_on_weights_on_caches_and_on_both_are_all_kept(
    kv_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    bounds = {"total": 91_000, "weights": 86_000, "kv": 6_500}
    budget = {**{key: f"{size}B" for key, size in bounds.items()}, "context": CONTEXT}
    settings = kv_settings(tmp_path, budget=budget)
    folder = quietly(settings)
    check_plan(folder)
    with Store.open(folder, mode="ro") as store:
        proposed = [store.plans()[trial.plan] for trial in store.trials()]
        proposed.append(store.plans()[store.get("solution")["digest"]])
        assert len({trial.agent for trial in store.trials()}) == 4
        for plan in proposed:
            assert plan.bytes <= bounds["total"]
            assert plan.cache_bytes <= bounds["kv"]
            assert plan.bytes - plan.cache_bytes <= bounds["weights"]
        # Each of the first two leaves plans that the third forbids, and the other way round.
        assert bounds["weights"] + bounds["kv"] > bounds["total"]


def test_a_fused_target_has_one_decision_for_all_that_a_cache_stores(
    kv_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    space = {
        "weights": {"bits": [2, 3, 4], "pin": {"embed": "8b-g64-int"}},
        "kv": {"bits": [8, 16]},
    }
    budget = {"total": "80000B", "context": CONTEXT}
    folder = quietly(kv_settings(tmp_path, target="vllm", space=space, budget=budget))
    caches = check_plan(folder)
    assert {option.name for option in caches.values()} <= {"k8v8-token", "k16v16"}
    with Store.open(folder, mode="ro") as store:
        names = [decision.name for decision in store.decisions()]
        pairs = store.get_fit("pairs")
    assert [name for name in names if "qkv" in name] == [f"layers.{i}.attn.qkv_proj" for i in range(3)]
    assert [name for name in names if name.endswith(".kv")] == [f"layers.{i}.kv" for i in range(3)]
    assert pairs is not None
    assert len(pairs["correlations"]) == 2


def test_llama_cpp_has_one_decision_for_all_caches(
    kv_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    space = {
        "weights": {"types": ["Q4_0", "Q5_0", "Q8_0"], "pin": {"embed": "Q8_0"}},
        "kv": {"bits": [4, 8, 16]},
    }
    budget = {"total": "125000B", "context": CONTEXT}
    folder = quietly(kv_settings(tmp_path, target="llama.cpp", space=space, budget=budget))
    caches = check_plan(folder)
    assert len(caches) == 3
    assert len(set(caches.values())) == 1
    with Store.open(folder, mode="ro") as store:
        joint = store.decisions()[-1]
        assert store.get_fit("pairs") is None
    assert joint.name == "kv"
    assert {option.name for option in joint.options} == {"k4v4-block", "k8v8-block", "k16v16"}


def test_another_context_keeps_what_was_measured_and_counts_its_bytes_anew(
    joint: Path, kv_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(joint, tmp_path / "tiny"))
    with Store.open(folder, mode="ro") as store:
        before = {(m.plan, m.split): m.documents for m in store.measurements()}
    budget = {"total": f"{TOTAL}B", "context": 48, "batch": 2}
    assert quietly(kv_settings(tmp_path, budget=budget)) == folder
    check_plan(folder)
    with Store.open(folder, mode="ro") as store:
        assert stored_space(store).load == Budget(total=TOTAL, context=48, batch=2).load
        after = {(m.plan, m.split): m.documents for m in store.measurements()}
        assert before.items() <= after.items()
        for stored in store.plans().values():
            assert (stored.bytes, stored.cache_bytes) == stored_space(store).charge(stored.plan)


# What is refused

MORE = dict.fromkeys(("calibration", "selection", "validation", "holdout"), 92)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ({"prefix": 41}, r"text\.prefix: 41 tokens and windows of 24 .* longest context of .*, 64\."),
        ({**MORE, "sequence": 65}, r"text\.sequence: windows of 65 tokens .* 64\."),
        ({"prefix": 0}, r"text\.prefix: .* after 1 to 40 tokens \(budget\.context\), not after 0"),
        ({**MORE, "sequence": 64, "prefix": None}, r"text\.prefix: .* a smaller text\.sequence leaves room"),
    ],
)
def test_windows_that_the_model_cannot_hold_are_refused_before_anything_is_loaded(
    text: dict[str, int], words: str, kv_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = kv_settings(tmp_path, text={**SHORT["text"], **text})
    with pytest.raises(InputError, match=words):
        run_search(settings, dry=True, say=lambda text: None)


def test_a_prefix_beyond_the_context_of_the_budget_is_refused(
    kv_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = kv_settings(
        tmp_path, budget={"total": f"{TOTAL}B", "context": 20}, text={**SHORT["text"], "prefix": 21}
    )
    with pytest.raises(InputError, match=r"after 1 to 20 tokens \(budget\.context\), not after 21"):
        run_search(settings, dry=True, say=lambda text: None)


def test_caches_without_a_context_are_refused(kv_settings: Callable[..., Settings], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"space\.kv: also give budget\.context"):
        kv_settings(tmp_path, budget={"weights": "90000B"})


def test_where_caches_alone_do_not_fit_the_context_at_which_they_would_is_named(
    kv_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    space = inspect_settings(kv_settings(tmp_path)).space
    weights = space.fixed_bytes + sum(decision.costs[0] for decision in space.matrix_decisions)
    # Plain caches of 3 layers, one head of 32 channels: 384 bytes a token.
    pinned = {**SHORT["space"], "kv": {"bits": [16], "pin": {"*": "k16v16"}}}
    budget = {"total": f"{weights + 9 * 384 + 100}B", "context": CONTEXT}
    with pytest.raises(InfeasibleError, match="KV cache fits up to a context of 9 tokens"):
        run_search(kv_settings(tmp_path, space=pinned, budget=budget), dry=True, say=lambda text: None)
    budget["total"] = f"{weights + 383}B"
    with pytest.raises(InfeasibleError, match="KV cache does not fit at any context"):
        run_search(kv_settings(tmp_path, space=pinned, budget=budget), dry=True, say=lambda text: None)
