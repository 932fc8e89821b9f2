"""What a Ray of one's own leaves behind, and a cluster of somebody else."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
import ray
from tests.workers.ray_head import running_head

from tightfit.spaces import InputError
from tightfit.workers.cluster import Cluster, WorkerError
from tightfit.workers.crew import Alone
from tightfit.workers.pool import RayPool

Bench = Any  # of conftest
MARK = "TIGHTFIT_TEST_DRIVER"
DRIVER = """
import pickle, sys
from tightfit.workers.pool import RayPool
with open(sys.argv[1], "rb") as file:
    recipe, jobs = pickle.load(file)
with RayPool(recipe, 1, recipe.build(1)) as pool:
    print(*pool.pids, flush=True)
    for position, outcome in pool.run(jobs):
        print(position, outcome.kl, flush=True)
"""


class Driver:
    """A process that measures for ever, and everything that it starts, in a home that cannot be written."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        two = [bench.job("plan", i) for i in range(2)]
        jobs = [replace(two[i % 2], plan=f"plan {i}") for i in range(50_000)]
        (folder / "work").write_bytes(pickle.dumps((bench.recipe, jobs)))
        self.mark = str(folder)
        self.stderr = folder / "stderr"
        with self.stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, str(folder / "work")],
                env={**os.environ, MARK: self.mark, "HOME": os.devnull, "HF_HOME": str(folder)},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )

    def line(self) -> str:
        out: IO[str] | None = self.process.stdout
        assert out is not None
        line = out.readline()
        assert line, self.stderr.read_text()
        return line

    def processes(self) -> list[int]:
        """Every process that has inherited the driver's environment and is not at its end."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()
                ended = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if f"{MARK}={self.mark}".encode() in environment.split(b"\0") and not ended:
                found.append(int(folder.name))
        return found

    def folders(self) -> list[Path]:
        """Temporary folders of Ray that belong to the driver."""
        return list(Path(tempfile.gettempdir()).glob(f"tightfit-*/session_*_{self.process.pid}"))

    def ends(self) -> None:
        end = time.monotonic() + 60
        while self.processes():
            assert time.monotonic() < end, self.processes()
            time.sleep(0.05)


@pytest.fixture
def driver(bench: Bench, tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(bench, tmp_path)
    yield driver
    for pid in driver.processes():
        os.kill(pid, signal.SIGKILL)
    driver.process.wait()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes by their environment")
def test_nothing_survives_a_driver_that_is_killed(driver: Driver) -> None:
    driver.line()
    driver.line()
    assert len(driver.processes()) > 3
    driver.process.kill()
    driver.process.wait()
    driver.ends()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes by their environment")
def test_an_interrupted_driver_ends_in_order_and_ray_says_nothing(driver: Driver) -> None:
    worker = int(driver.line())
    first = driver.line()
    os.kill(worker, signal.SIGKILL)
    lines = [driver.line() for _ in range(5)]
    assert [int(line.split()[0]) for line in [first, *lines]] == list(range(6))
    assert driver.folders()
    os.killpg(driver.process.pid, signal.SIGINT)  # as a terminal does
    rest = driver.process.communicate(timeout=60)[0]
    driver.ends()
    assert driver.folders() == []
    assert all(len(line.split()) == 2 for line in rest.splitlines())
    assert driver.stderr.read_text().strip().endswith("KeyboardInterrupt")
    assert driver.stderr.read_text().startswith("Traceback")


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a cluster that somebody else started."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with running_head(tmp_path / "log") as address:
        yield address


def test_a_cluster_is_joined_and_left_as_it_was(
    bench: Bench, running: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [bench.job("a", 0), bench.job("b", 1)]
    alone = dict(Alone(bench.evaluator, bench.recipe.texts).run(jobs))
    with RayPool(bench.recipe, 1, bench.evaluator, address=running) as pool:
        found = dict(pool.run(jobs))
    assert [found[i].documents for i in range(2)] == [alone[i].documents for i in range(2)]
    assert not ray.is_initialized()
    monkeypatch.setenv("RAY_ADDRESS", running)
    with Cluster(1, "auto"):
        assert ray.cluster_resources()["CPU"] == 1
        # The pool's worker is gone, so that others can use what it used.
        end = time.monotonic() + 30
        while ray.available_resources().get("CPU") != 1:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert not ray.is_initialized()
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(WorkerError, match="2 workers need a CPU each, but Ray has 1"):
        Cluster(2, running)


def test_an_address_where_nobody_is() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(WorkerError, match="nothing answers at"):
            Cluster(1, f"127.0.0.1:{taken.getsockname()[1]}")


def test_a_local_cluster_has_the_resources_that_are_asked_for() -> None:
    with Cluster(1, resources={"bench:a tool": 1}):
        assert ray.cluster_resources()["bench:a tool"] == 1
        Cluster(1, resources={"bench:a tool": 1}).close()
        for needed in ({"bench:a tool": 2}, {"bench:another": 1}):
            name, count = next(iter(needed.items()))
            with pytest.raises(WorkerError, match=rf"has the resource {name}.*\{{\"{name}\": {count}\}}"):
                Cluster(1, resources=needed)
        assert ray.is_initialized()


@pytest.mark.parametrize("address", ["", "somewhere", "host:", ":1", "ray://host:10001", "host:port"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InputError, match="must be auto or host:port"):
        Cluster(1, address)
