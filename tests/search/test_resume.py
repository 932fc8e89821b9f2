"""Runs that are stopped, changed and taken up again, on a tiny trained model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tightfit.cli import main
from tightfit.search import control
from tightfit.search.progress import Progress, Tick
from tightfit.search.run import run_search
from tightfit.search.settings import Settings
from tightfit.search.store import Store
from tightfit.spaces import InfeasibleError, InputError

SENSE = {
    "prescreen_tokens": 256,
    "marginals": 8,
    "marginal_tokens": 512,
    "fit_plans": 8,
    "fit_tokens": 512,
    "certificate_plans": 4,
}
VLLM_SPACE = {"weights": {"bits": [2, 3, 4], "pin": {"embed": "8b-g64-int"}}}
SEARCH = {"agents": ["exact", "evolution"], "evaluations": 10, "batch": 4, "finalists": 2}


@pytest.fixture(scope="session")
def quick(settings_of: Callable[..., Settings]) -> Callable[..., Settings]:
    def make(folder: Path, **changes: Any) -> Settings:
        return settings_of(folder, **{"sense": SENSE, "search": SEARCH, **changes})

    return make


@pytest.fixture(scope="session")
def whole(quick: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody disturbed."""
    return run_search(quick(tmp_path_factory.mktemp("whole")), say=lambda text: None)


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to change."""
    return Path(shutil.copytree(whole, tmp_path / "tiny"))


class StoppingProgress(Progress):
    """Progress that stops the run at the n-th step of a stage."""

    def __init__(self, stage: str, steps: int) -> None:
        super().__init__(StringIO())
        self._where, self._steps = stage, steps

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[Tick]:
        with super().stage(name, what) as tick:

            def counted(done: int, total: int) -> None:
                self._steps -= name == self._where
                if self._steps < 0:
                    raise control.StoppedError("stopped")
                tick(done, total)

            yield counted


def found(folder: Path) -> Any:
    """What a run found, and everything it proposed and measured."""
    with Store.open(folder, mode="ro") as store:
        losses = {(m.plan, m.split): m.kl for m in store.measurements()}
        result = {key: value for key, value in (store.get("result") or {}).items() if key != "next"}
        return result, losses, [(t.agent, t.round, t.plan) for t in store.trials()]


def stages(folder: Path) -> list[str]:
    with Store.open(folder, mode="ro") as store:
        return [event.stage for event in store.events() if event.kind == "started"]


def test_a_run_that_is_stopped_in_every_stage_ends_as_if_nothing_had_happened(
    quick: Callable[..., Settings], whole: Path, tmp_path: Path
) -> None:
    for stage in ("prepare", "sense", "fit", "certify", "explore", "validate"):
        with pytest.raises(control.StoppedError):
            run_search(quick(tmp_path), say=lambda text: None, progress=StoppingProgress(stage, 3))
        assert stages(tmp_path / "tiny")[-1] == stage
        assert control.state(tmp_path / "tiny") == "stopped"
    folder = run_search(quick(tmp_path), say=lambda text: None)
    assert found(folder) == found(whole)
    assert control.state(folder) == "finished"


def test_a_finished_run_shows_its_result_without_loading_anything(
    quick: Callable[..., Settings], copied: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    before = stages(copied)
    run_search(quick(tmp_path), say=said.append)
    assert "this run is finished; its result:\n" in said
    assert found(copied)[0]["verdict"] in "\n".join(said)
    assert stages(copied) == before


def test_agents_that_learn_keep_to_their_evaluations_and_go_on_when_there_are_more(
    quick: Callable[..., Settings], copied: Path, tmp_path: Path
) -> None:
    def proposed() -> list[str]:
        return [plan for agent, _, plan in found(copied)[2] if agent == "evolution"]

    first = proposed()
    assert len(first) == len(set(first)) == 10
    said: list[str] = []
    run_search(quick(tmp_path, search={**SEARCH, "evaluations": 14}), say=said.append)
    assert "changed: search.evaluations is now 14 (it was 10)" in said
    assert "changed: measurements and proposals are kept" in said
    assert proposed()[:10] == first
    assert len(set(proposed())) == 14


def test_when_the_time_is_up_no_agent_is_asked_for_more(
    quick: Callable[..., Settings], tmp_path: Path
) -> None:
    folder = run_search(quick(tmp_path, search={**SEARCH, "time": "1s"}), say=lambda text: None)
    result, _, trials = found(folder)
    assert result["fits"]
    assert {agent for agent, _, _ in trials} == {"uniform", "mix", "exact"}


def test_no_plan_is_measured_twice_and_repeated_proposals_are_counted(whole: Path) -> None:
    with Store.open(whole, mode="ro") as store:
        keys = [(m.plan, m.split, m.protocol) for m in store.measurements()]
        rounds = [event.data for event in store.events() if event.kind == "round"]
    assert len(set(keys)) == len(keys)
    assert rounds
    assert all(data["duplicates"] == 0 for data in rounds)


def test_the_best_plan_so_far_can_be_had_from_a_run_that_was_stopped(
    quick: Callable[..., Settings], whole: Path, tmp_path: Path
) -> None:
    """Wherever a run stops after solving, there is a plan within the budget to export."""
    with pytest.raises(control.StoppedError):
        run_search(quick(tmp_path), say=lambda text: None, progress=StoppingProgress("explore", 20))
    folder = tmp_path / "tiny"
    with Store.open(folder, mode="ro") as store:
        assert store.get("result") is None
        best = (store.get("best") or store.get("solution"))["digest"]
        assert store.plans()[best].bytes <= 90_000
    answer = CliRunner().invoke(main, ["export", str(folder), "--out", str(tmp_path / "plan.json")])
    assert answer.exit_code == 0, answer.output
    assert (folder / "report.html").is_file()
    assert CliRunner().invoke(main, ["resume", str(folder)]).exit_code == 0
    assert found(folder)[1] == found(whole)[1]


def test_other_options_keep_the_measurements_of_plans_that_are_still_possible(
    quick: Callable[..., Settings], copied: Path, tmp_path: Path
) -> None:
    space = {"weights": {"bits": [2, 3, 4], "pin": {"embed": "8b-g64-float"}}}
    said: list[str] = []
    before = found(copied)[1]
    run_search(quick(tmp_path, space=space), say=said.append)
    assert "changed: space.weights.bits is now [2, 3, 4] (it was [2, 3, 4, 6])" in said
    kept = [line for line in said if line.startswith("changed: the options on offer have changed: ")]
    assert len(kept) == 1
    result, after, trials = found(copied)
    assert result["fits"]
    assert before.items() <= after.items()
    with Store.open(copied, mode="ro") as store:
        offered = {o.name for d in store.decisions() for o in d.options}
        proposed = {option for t in trials for _, option in store.plans()[t[2]].plan.choices}
    assert proposed <= offered
    assert "6b-g64-int" not in offered


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 1}, "seed"),
        ({"threads": 2}, "threads"),
        ({"text": {"sequence": 32, "calibration": 512, "selection": 1024}}, "text.sequence"),
        ({"target": "vllm", "space": VLLM_SPACE}, "target"),
    ],
)
def test_an_incompatible_change_is_refused_with_the_field_named_and_nothing_lost(
    quick: Callable[..., Settings], copied: Path, tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    before = found(copied)
    with pytest.raises(InputError, match=f"holds a run with another {field} "):
        run_search(quick(tmp_path, **change), say=lambda text: None)
    assert found(copied) == before


def test_sites_that_fuse_otherwise_are_another_run(
    quick: Callable[..., Settings], copied: Path, tmp_path: Path
) -> None:
    """Only where the target is the same can options change under the measurements."""
    with Store.open(copied) as store:
        store.put("settings", {**store.get("settings"), "target": "vllm"})  # as if it had been so before
    with pytest.raises(InputError, match="whose decisions govern other matrices"):
        run_search(quick(tmp_path, target="vllm", space=VLLM_SPACE), say=lambda text: None)


def test_a_run_without_any_plan_that_can_be_measured_ends_as_infeasible(
    quick: Callable[..., Settings], copied: Path, tmp_path: Path
) -> None:
    protocol = found_protocol(copied, quick(tmp_path))
    with Store.open(copied) as store:
        for table in ("document_loss", "measurement"):
            store._db.execute(f"DELETE FROM {table}")
        store._db.execute(
            "INSERT INTO failure SELECT DISTINCT plan, 'selection', ?, 'not finite', 'kl is nan', 0 "
            "FROM trial",
            [protocol],
        )
        store._db.conn.commit()
    with pytest.raises(InfeasibleError, match=r"none of the \d+ proposed plans has a loss"):
        run_search(quick(tmp_path, search={**SEARCH, "agents": ["exact"]}), say=lambda text: None)


def found_protocol(folder: Path, settings: Settings) -> str:
    """The key under which a run measures on its selection text."""
    from tightfit.search.inspection import inspect_settings
    from tightfit.search.stages import prepare

    space = inspect_settings(settings).space
    with Store.open(folder) as store:
        bench = prepare(settings, store, space, space.ceiling, folder, Progress(StringIO()))
        return bench.evaluator.protocol("selection", bench.archive.windows("selection"))


def test_resume_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("search.yaml").write_text("model: nowhere\nbudget: {weights: 1MiB}\n")
    for command in (["run", "search.yaml", "--resume"], ["resume", "runs/search"]):
        answer = CliRunner().invoke(main, command)
        assert answer.exit_code == 2
        assert "there is no run at" in answer.output
    assert not Path("runs").exists()


def test_a_start_that_is_refused_after_loading_takes_nothing_away(
    quick: Callable[..., Settings], copied: Path, tmp_path: Path
) -> None:
    """Another budget alone would take the result out; another torch version must be noticed first."""
    with Store.open(copied) as store:
        store.put("identity", {**store.get("identity"), "torch version": "1.0"})
    before = found(copied)
    with pytest.raises(InputError, match="holds a run with another torch version"):
        run_search(quick(tmp_path, budget={"weights": "85000B"}), say=lambda text: None)
    assert found(copied) == before
    with Store.open(copied) as store:
        assert store.get("settings")["budget"]["weights"] == "90000B"


def test_agents_take_turns_in_the_same_order_wherever_a_run_is_stopped(
    quick: Callable[..., Settings], tmp_path: Path
) -> None:
    search = {**SEARCH, "agents": ["evolution", "optuna:qmc", "exact"], "evaluations": 9, "batch": 3}
    whole = run_search(quick(tmp_path / "whole", search=search), say=lambda text: None)
    for steps in (13, 3, 3):  # one turn further every time
        stopping = StoppingProgress("explore", steps)
        with pytest.raises(control.StoppedError):
            run_search(quick(tmp_path, search=search), say=lambda text: None, progress=stopping)
    folder = run_search(quick(tmp_path, search=search), say=lambda text: None)
    assert found(folder) == found(whole)
    turns = [agent for agent, _, _ in found(whole)[2] if agent in search["agents"][:2]]
    assert list(dict.fromkeys(turns)) == ["evolution", "optuna:qmc"]
    assert turns == ["evolution"] * 3 + ["optuna:qmc"] * 3 + ["evolution"] * 3


def test_another_loss_model_is_asked_again_for_its_solutions(
    quick: Callable[..., Settings], copied: Path, tmp_path: Path
) -> None:
    run_search(quick(tmp_path, sense={**SENSE, "fit_plans": 12}), say=lambda text: None)
    with Store.open(copied, mode="ro") as store:
        solution = store.get("solution")["digest"]
        assert solution in {trial.plan for trial in store.trials()}
        assert solution in {m.plan for m in store.measurements("selection")}


def test_a_folder_whose_run_never_got_past_loading_takes_any_settings(
    quick: Callable[..., Settings], whole: Path, tmp_path: Path
) -> None:
    nowhere = {"sequence": 64, "source": str(tmp_path / "nowhere.txt")}
    with pytest.raises(InputError, match="nowhere"):
        run_search(quick(tmp_path, target="vllm", space=VLLM_SPACE, text=nowhere), say=lambda text: None)
    assert found(run_search(quick(tmp_path), say=lambda text: None)) == found(whole)


@pytest.mark.parametrize("kind", ["prescreen", "reference", "options"])
def test_files_that_a_power_cut_has_damaged_are_made_again(
    quick: Callable[..., Settings], whole: Path, copied: Path, tmp_path: Path, kind: str
) -> None:
    for file in (copied / kind).rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    with Store.open(copied) as store:
        store.forget(["finished", "result"], [])
        store._db.execute(
            "DELETE FROM document_loss WHERE measurement IN "
            "(SELECT id FROM measurement WHERE split = 'holdout')"
        )
        store._db.execute("DELETE FROM measurement WHERE split = 'holdout'")
        store._db.conn.commit()
    assert found(run_search(quick(tmp_path), say=lambda text: None)) == found(whole)


def test_a_run_goes_on_from_within_its_own_folder(
    quick: Callable[..., Settings], copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(copied) as store:
        store.put("settings", quick(tmp_path).to_dict())
    monkeypatch.chdir(copied)
    answer = CliRunner().invoke(main, ["resume", "."])
    assert answer.exit_code == 0, answer.output
    assert "this run is finished" in answer.output
    assert not (copied / "tiny").exists()
