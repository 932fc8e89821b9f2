from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tightfit.search import control
from tightfit.search.store import Store
from tightfit.spaces import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "runs" / "demo" / "run.db"):
        pass
    return tmp_path / "runs" / "demo"


def hold(folder: Path, pipe: Connection) -> None:
    with control.holding(folder):
        pipe.send("held")
        pipe.recv()
        while True:
            control.check(folder, lambda text: pipe.send(text))
            time.sleep(0.01)


@pytest.fixture
def worker(folder: Path) -> Iterator[tuple[multiprocessing.Process, Connection]]:
    """Another process that works on the run, and looks at the wishes of others once told to."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(folder, theirs), daemon=True)
    process.start()
    assert ours.recv() == "held"
    yield process, ours  # type: ignore[misc]
    process.kill()
    process.join()


Worker = tuple[multiprocessing.Process, Connection]


def test_a_run_is_running_while_its_process_lives_however_it_ends(folder: Path, worker: Worker) -> None:
    assert control.state(folder) == "running"
    assert worker[0].pid is not None
    os.kill(worker[0].pid, signal.SIGKILL)
    worker[0].join()
    assert control.state(folder) == "stopped"
    with Store.open(folder) as store:
        store.put("result", {"chosen": "a plan"})
    assert control.state(folder) == "finished"


def test_two_processes_never_work_on_one_run(
    folder: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_PATIENCE", 0.1)
    with pytest.raises(InputError, match="another process is working on the run"), control.holding(folder):
        pass


def test_a_run_pauses_goes_on_and_stops_when_asked_to(folder: Path, worker: Worker) -> None:
    process, pipe = worker
    control.ask(folder, "pause")
    assert control.state(folder) == "paused"
    pipe.send("look")
    assert pipe.recv().startswith("paused")
    control.ask(folder, "run")
    assert control.state(folder) == "running"
    control.ask(folder, "stop")
    process.join(30)
    assert process.exitcode == 1  # the error that ends it is nobody's to catch in this test
    assert control.state(folder) == "stopped"


def test_wishes_of_before_do_not_stop_a_new_start(folder: Path) -> None:
    (folder / "wish").write_text("stop")
    with control.holding(folder):
        assert control.check(folder) == 0


@pytest.mark.parametrize("wish", ["run", "pause", "stop"])
def test_there_is_nothing_to_ask_of_a_run_that_no_process_works_on(folder: Path, wish: control.Wish) -> None:
    with pytest.raises(InputError, match="no process is working on the run"):
        control.ask(folder, wish)
    with pytest.raises(InputError, match="there is no run at"):
        control.ask(folder.parent, wish)


def test_a_wish_that_nobody_can_read_is_none(folder: Path) -> None:
    (folder / "wish").write_bytes(b"\xff\xfe stop")
    with control.holding(folder):
        assert control.check(folder) == 0
        (folder / "wish").mkdir()
        assert control.check(folder) == 0


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with (
        pytest.raises(InputError, match="cannot be used for this run"),
        control.holding(tmp_path / "runs" / "a"),
    ):
        pass


def test_those_who_look_do_not_take_one_another_for_the_run(folder: Path) -> None:
    with control.holding(folder):
        pass

    def look() -> set[str]:
        return {control.state(folder) for _ in range(100)}

    with ThreadPoolExecutor(2) as lookers:
        seen = [looker.result(60) for looker in [lookers.submit(look), lookers.submit(look)]]
    assert seen == [{"stopped"}, {"stopped"}]
