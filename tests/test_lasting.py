"""A run of the command line as a process of its own: paused, resumed, stopped, interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tightfit.cli import main
from tightfit.search import control
from tightfit.search.store import Store

SEARCH = {"agents": ["exact", "evolution"], "evaluations": 400, "batch": 4}
PATIENCE = 120.0


@pytest.fixture
def run(settings_of: Callable[..., Any], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that would go on for long, in its explore stage."""
    settings = settings_of(tmp_path / "runs", search=SEARCH).to_dict()
    (tmp_path / "search.yaml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "tightfit", "run", "search.yaml"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    until(lambda: stage(tmp_path / "runs" / "tiny") == "explore")
    yield process
    process.kill()
    process.communicate()


def stage(folder: Path) -> str | None:
    if not (folder / "run.db").is_file():
        return None
    with Store.open(folder, mode="ro") as store:
        events = store.events()
    return events[-1].stage if events else None


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


def measured(folder: Path) -> int:
    with Store.open(folder, mode="ro") as store:
        return len(store.measurements("selection"))


def tightfit(*arguments: str) -> str:
    answer = CliRunner().invoke(main, list(arguments))
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_a_run_is_paused_resumed_and_stopped_from_outside(run: subprocess.Popen[str], tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "tiny"
    assert "pauses" in tightfit("pause", str(folder))
    counts = [-1, 0]
    while counts[-1] != counts[-2]:  # it waits after what it was measuring
        time.sleep(1.0)
        counts.append(measured(folder))
    assert control.state(folder) == "paused"
    assert run.poll() is None
    assert "goes on" in tightfit("resume", str(folder))
    until(lambda: measured(folder) > counts[-1])
    assert "stops" in tightfit("stop", str(folder))
    output, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0
    assert "paused (go on with tightfit resume" in output
    assert f"tightfit: stopped; everything measured is kept. Go on with tightfit resume {folder}." in output
    assert "Traceback" not in output
    assert control.state(folder) == "stopped"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_run_keeps_everything_and_says_how_to_go_on(
    run: subprocess.Popen[str], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "runs" / "tiny"
    until(lambda: measured(folder) > 12)
    os.kill(run.pid, getattr(signal, name))
    output, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 130
    assert "tightfit: interrupted; everything measured is kept, and the same command goes on." in output
    assert "Traceback" not in output
    assert measured(folder) > 12
    assert (folder / "report.html").is_file()


def test_a_second_process_is_refused_while_the_first_one_works(
    run: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(control, "_PATIENCE", 0.1)
    answer = CliRunner().invoke(main, ["run", "search.yaml"])
    assert answer.exit_code == 2
    assert f"another process is working on the run in {tmp_path / 'runs' / 'tiny'}" in answer.output
    assert run.poll() is None
