from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState
from tests.search.conftest import FakeRun

from tightfit.search.records import StoredTrial
from tightfit.search.store import Store
from tightfit.search.study import METRICS, MIB, write_study
from tightfit.spaces import InputError
from tightfit.workers.measurement import Failure


class Searched(FakeRun):
    """A run that measured plans on its selection text, failed at one, and looked at others elsewhere."""

    def explore(self, plans: int = 6) -> None:
        self.solve()
        for step in range(plans):
            rng = np.random.default_rng([7, 6, step])
            levels = [int(rng.integers(len(decision.options))) for decision in self.space.decisions]
            self.add_plan(levels, f"agent no. {step}")
            self.measure(levels, "selection", 6, 100)
        self.measure(self.best, "validation", 9, 228)

    def fail(self) -> str:
        levels = [0] + [1] * (len(self.space.decisions) - 1)
        digest = self.add_plan(levels, "a plan too far")
        self.store.add_failure(Failure(digest, "selection", "protocol-selection", "not finite", "kl is nan"))
        return digest


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Searched]:
    with Store.open(tmp_path / "runs" / "demo" / "run.db") as store:
        made = Searched(store, layers=1)
        made.inspect()
        yield made


def load(file: Path, name: str = "demo") -> optuna.Study:
    return optuna.load_study(study_name=name, storage=f"sqlite:///{file}")


def test_every_whole_plan_of_the_selection_text_is_a_trial(run: Searched) -> None:
    run.explore()
    run.add_plan(run.best, "measured elsewhere only")
    file = write_study(run.store, run.store.path.parent)
    assert file == run.store.path.with_name("study.db")
    study = load(file)
    assert study.metric_names == list(METRICS)
    assert study.user_attrs["model"] == "smollm2-135m-offgrid"
    measured = {m.plan: m for m in run.store.measurements("selection")}
    plans = run.store.plans()
    assert [t.user_attrs["digest"] for t in study.trials] == [d for d in plans if d in measured]
    assert len(study.trials) == len(measured) == 6
    for trial in study.trials:
        digest = trial.user_attrs["digest"]
        of, stored = measured[digest], plans[digest]
        assert trial.state == TrialState.COMPLETE
        assert trial.values == [of.kl, stored.bytes / MIB]
        choices = dict(stored.plan.choices)
        assert choices.pop("embed") == "8b-g64-float"  # the one decision without a choice
        assert trial.params == choices
        assert trial.user_attrs["label"] == stored.source
        assert trial.user_attrs["perplexity"] == of.perplexity
        assert trial.user_attrs["kl_se"] == of.kl_se
        assert trial.user_attrs["effective bits"] == run.space.effective_bits(stored.bytes)
        assert trial.user_attrs["within budget"] is (stored.bytes <= run.limit)
    assert len({json.dumps(str(trial.distributions)) for trial in study.trials}) == 1


def test_a_trial_tells_which_agent_proposed_it_first(run: Searched) -> None:
    run.explore(plans=2)
    first = run.store.measurements("selection")[0].plan
    for agent, turn in (("optuna:tpe", 3), ("evolution", 0)):
        run.store.add_trials([StoredTrial(agent, turn, 0, first, f"by {agent}", "searched", {})])
    trials = {t.user_attrs["digest"]: t for t in load(write_study(run.store, run.store.path.parent)).trials}
    told = trials[first].user_attrs
    assert (told["agent"], told["round"], told["label"]) == ("optuna:tpe", 3, "by optuna:tpe")
    assert [("agent" in t.user_attrs) for t in trials.values()] == [True, False]


def test_a_failed_plan_is_a_failed_trial_without_values(run: Searched) -> None:
    run.explore()
    digest = run.fail()
    study = load(write_study(run.store, run.store.path.parent))
    (failed,) = [t for t in study.trials if t.state == TrialState.FAIL]
    assert failed.values is None
    assert failed.user_attrs["digest"] == digest
    assert failed.user_attrs["failed"] == "kl is nan"
    assert digest not in {t.user_attrs["digest"] for t in study.best_trials}


def test_losses_of_the_most_tokens_count_where_protocols_differ(run: Searched) -> None:
    run.explore(plans=1)
    (short,) = run.store.measurements("selection")
    longer = [replace(d, document=f"{d.document}, more", kl=2 * d.kl) for d in short.documents]
    whole = replace(short, protocol="a protocol of more tokens", documents=(*short.documents, *longer))
    run.store.add_measurement(whole)
    (trial,) = load(write_study(run.store, run.store.path.parent)).trials
    assert trial.values[0] == whole.kl != short.kl


def test_the_rows_are_the_ones_that_optuna_writes(run: Searched, tmp_path: Path) -> None:
    run.explore()
    run.fail()
    file = write_study(run.store, run.store.path.parent)
    again = tmp_path / "again.db"
    written = load(file)
    copy = optuna.create_study(study_name="demo", storage=f"sqlite:///{again}", directions=["minimize"] * 2)
    with pytest.warns(ExperimentalWarning):
        copy.set_metric_names(list(METRICS))
    for key, value in written.user_attrs.items():
        copy.set_user_attr(key, value)
    copy.add_trials(written.trials)
    assert dump(file) == dump(again)


def dump(file: Path) -> list[str]:
    """Every row of a database; in a table, those of one trial in any order and without their own numbers."""
    rows = []
    with sqlite3.connect(file) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            about = db.execute(f"PRAGMA table_info({table})").fetchall()
            columns = [name for _, name, *_, key in about if not key or name == "trial_id"] or ["1"]
            rows += [f"{table} {row}" for row in db.execute(f"SELECT {', '.join(columns)} FROM {table}")]
    return sorted(rows)


def test_writing_again_replaces_the_study_and_leaves_nothing_else(run: Searched) -> None:
    run.explore(plans=2)
    folder = run.store.path.parent
    before = {file.name for file in folder.iterdir()}
    assert len(load(write_study(run.store, folder)).trials) == 2
    run.explore(plans=6)
    with Store.open(folder, "ro") as reader:
        assert len(load(write_study(reader, folder / "study.db")).trials) == 6
    assert {file.name for file in folder.iterdir()} == before | {"study.db"}


def test_a_run_that_has_measured_nothing_yet_gives_an_empty_study(run: Searched) -> None:
    assert load(write_study(run.store, run.store.path.parent)).trials == []


def test_a_run_without_a_space_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run.db") as store, pytest.raises(InputError, match="no space yet"):
        write_study(store, tmp_path)
    assert not (tmp_path / "study.db").exists()


def test_a_failure_leaves_the_earlier_study_as_it_was(run: Searched) -> None:
    run.explore(plans=2)
    folder = run.store.path.parent
    before = write_study(run.store, folder).read_bytes()
    with pytest.raises(InputError, match="cannot be written"):
        write_study(run.store, folder / "missing" / "study.db")
    assert (folder / "study.db").read_bytes() == before


def test_any_path_will_do(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a b{x}?#100%" / "run.db") as store:
        made = Searched(store, layers=1)
        made.inspect()
        made.explore(plans=1)
        file = write_study(store, store.path.parent)
        plain = tmp_path / "plain.db"
        plain.write_bytes(file.read_bytes())
    assert len(load(plain, "a b{x}?#100%").trials) == 1


def test_optunas_log_and_warnings_stay_as_they_were(
    run: Searched, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    run.explore(plans=1)
    before = optuna.logging.get_verbosity()
    write_study(run.store, run.store.path.parent)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr().err == ""
    assert not recwarn.list


@pytest.fixture
def dashboard() -> Iterator[Callable[[Path], Callable[[str], Any]]]:
    """Starts optuna-dashboard on a study; gives a function that gets a path of its API."""
    started: list[subprocess.Popen[bytes]] = []

    def start(file: Path) -> Callable[[str], Any]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [Path(sys.executable).with_name("optuna-dashboard"), f"sqlite:///{file}"]
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(server)

        def get(path: str) -> Any:
            for _ in range(600):
                assert server.poll() is None
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                        return json.load(answer)
                except ConnectionRefusedError:
                    pass
                except urllib.error.URLError as error:
                    if not isinstance(error.reason, ConnectionRefusedError):
                        raise
                time.sleep(0.1)
            raise AssertionError("the dashboard never answered")

        return get

    yield start
    for server in started:
        server.terminate()
        server.wait()


def test_optuna_dashboard_opens_it(run: Searched, dashboard: Callable[[Path], Callable[[str], Any]]) -> None:
    run.explore()
    digest = run.fail()
    get = dashboard(write_study(run.store, run.store.path.parent))
    (study,) = get("/api/studies")["study_summaries"]
    assert study["study_name"] == "demo"
    shown = get(f"/api/studies/{study['study_id']}")
    assert shown["objective_names"] == list(METRICS)
    measured = {m.plan: m for m in run.store.measurements("selection")}
    trials = {attribute(t, "digest"): t for t in shown["trials"]}
    assert trials.keys() == {*measured, digest}
    for plan, of in measured.items():
        assert trials[plan]["values"] == [of.kl, run.store.plans()[plan].bytes / MIB]
        assert trials[plan]["state"] == "Complete"
    assert trials[digest]["state"] == "Fail"
    assert {p["name"] for p in shown["union_search_space"]} == {d.name for d in run.space.decisions[1:]}


def attribute(trial: dict[str, Any], key: str) -> str:
    """User attribute of a trial as the dashboard sends it."""
    (value,) = [a["value"] for a in trial["user_attrs"] if a["key"] == key]
    return str(value).strip('"')
