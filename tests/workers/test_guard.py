"""Which processes a guard ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tightfit.workers.guard import MARK, Guard

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="a guard finds processes in /proc")

SLEEP = "import sys, time; kept = open(sys.argv[1]); print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    processes: list[subprocess.Popen[str]] = []

    def run(file: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SLEEP, str(file)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()


def test_the_marked_and_those_that_work_in_the_folder_end_and_no_others(
    start: object, tmp_path: Path
) -> None:
    run = start
    assert callable(run)
    folder, beside = tmp_path / "pool", tmp_path / "pool-of-another"
    for place in (folder, beside):
        place.mkdir()
        (place / "log").touch()
    plain = {key: value for key, value in os.environ.items() if key != MARK}
    marked = run(beside / "log", {**plain, MARK: str(folder)})
    untitled = run(folder / "log", {})  # as if its title had been written over its environment
    other = run(beside / "log", {**plain, MARK: str(beside)})
    with (folder / "in-use").open("w"):  # as the process that has the pool, which lives on
        Guard(str(folder)).close()
    assert marked.wait(10) == untitled.wait(10) == -9
    assert other.poll() is None
