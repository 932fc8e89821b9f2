from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tightfit.search.control import ask, holding
from tightfit.search.store import Store
from tightfit.spaces import InputError
from tightfit.ui import runs
from tightfit.ui.runs import best_so_far, check_path, failure, find_runs, front_key, read, resume, version


def test_a_run_a_folder_of_runs_and_the_default_folder_are_all_good_paths(
    small_run: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_run("inspect").store.path.parent
    assert check_path(folder) == folder
    assert check_path(folder / "run.db") == folder
    assert check_path(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path / "runs" / "demo")
    assert check_path(Path("runs")) == Path("runs")  # the first search makes it


@pytest.mark.parametrize(("name", "what"), [("nowhere", "does not exist"), ("file.txt", "is a file")])
def test_any_other_path_is_refused(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(InputError, match=f"{re.escape(str(tmp_path / name))} {what}: name a run's folder"):
        check_path(tmp_path / name)


def test_runs_are_found_the_last_written_first(small_run: Callable[..., object], tmp_path: Path) -> None:
    assert find_runs(tmp_path / "runs") == []
    first, second = small_run("inspect", name="a").store, small_run("inspect", name="b").store
    (tmp_path / "runs" / "no-run").mkdir()
    assert [folder.name for folder in find_runs(tmp_path / "runs")] == ["b", "a"]
    first.add_event("sense", "started")
    assert [folder.name for folder in find_runs(tmp_path / "runs")] == ["a", "b"]
    assert find_runs(second.path.parent) == [second.path.parent]


def test_a_run_is_read_again_only_after_it_changed(small_run: Callable[..., object]) -> None:
    store = small_run("explore").store
    folder = store.path.parent
    before, known = version(folder), read(folder)
    assert read(folder) is known
    assert version(folder) == before  # reading is no change
    store.put("seen", 1)
    assert version(folder) != before
    assert read(folder) is not known


def test_the_state_of_the_process_is_part_of_what_is_read(small_run: Callable[..., object]) -> None:
    folder = small_run("explore").store.path.parent
    assert read(folder).state == "stopped"
    with holding(folder):
        assert read(folder).state == "running"
        ask(folder, "pause")
        assert read(folder).state == "paused"
    assert read(small_run("report", name="done").store.path.parent).state == "finished"


def test_the_best_so_far_keeps_the_budget(small_run: Callable[..., object]) -> None:
    run = small_run("explore")
    summary = read(run.store.path.parent).summary
    rows = summary.fronts[0].rows
    assert rows[-1].bytes > run.limit
    best = best_so_far(summary)
    assert best is not None
    assert best.bytes <= run.limit
    assert best.measured.kl == min(row.measured.kl for row in rows if row.bytes <= run.limit)


def test_a_front_is_found_again_after_more_was_measured_on_it(small_run: Callable[..., object]) -> None:
    run = small_run("report")
    folder = run.store.path.parent
    selection = next(front for front in read(folder).summary.fronts if front.split == "selection")
    assert read(folder).front(None).split == "holdout"
    mixed = (*run.levels(1)[:-1], 2)
    run.measure(mixed, "agent", "selection")
    found = read(folder).front(front_key(selection))
    assert found.split == "selection"
    assert len(found.rows) == len(selection.rows) + 1


@pytest.mark.parametrize(
    ("until", "low", "high"),
    [("inspect", 0.0, 0.0), ("sense", 0.09, 0.11), ("explore", 0.2, 0.3), ("report", 1, 1)],
)
def test_the_share_of_the_work_grows(
    small_run: Callable[..., object], until: str, low: float, high: float
) -> None:
    assert low <= read(small_run(until).store.path.parent).share <= high


def test_a_run_that_cannot_go_on_says_why(small_run: Callable[..., object]) -> None:
    folder = small_run("inspect").store.path.parent
    assert failure(folder) is None
    resume(folder)
    runs._STARTED[folder].wait(120)
    assert not runs.starting(folder)
    assert re.search(
        rf"\S.* \(exit code \d+; see {re.escape(str(folder / runs.LOG_FILE))}\)", failure(folder)
    )


def test_a_store_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("no database at all" * 100)
    with pytest.raises(InputError, match="cannot be opened as a Tightfit run"):
        read(tmp_path)


def test_nothing_is_written_by_reading(small_run: Callable[..., object]) -> None:
    store = small_run("report").store
    store.close()
    before = store.path.read_bytes()
    read(store.path.parent)
    assert store.path.read_bytes() == before
    with Store.open(store.path, mode="ro") as again:
        assert again.get("result")
