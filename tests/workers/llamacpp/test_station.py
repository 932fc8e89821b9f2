"""With a real Ray, local and joined."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from tests.workers.ray_head import running_head

from tightfit.spaces import InputError
from tightfit.workers.cluster import Cluster, WorkerError
from tightfit.workers.llamacpp import station
from tightfit.workers.llamacpp.speed import NoSpeed, Speed
from tightfit.workers.llamacpp.station import RESOURCE, Station, measure_speeds


@pytest.fixture(scope="module")
def local() -> Iterator[None]:
    """A local cluster that several benches can use."""
    with Cluster(1, resources={RESOURCE: 1}):
        yield


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a cluster that somebody else started, with a machine for the bench."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with running_head(tmp_path / "log", f'--resources={{"{RESOURCE}": 1}}') as address:
        yield address


def test_files_are_sent_to_the_machine_that_measures(
    running: str, float_file: Path, coarse_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station, "_PIECE", 50_000)
    paths = [tmp_path / "here" / name for name in ("same.gguf", "other.gguf")]
    for path, source in zip(paths, (float_file, coarse_file), strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(source.read_bytes())
    before = scratch_folders()

    def tick(done: int, total: int) -> None:
        assert total == 6
        for path in paths:  # whoever measures has its own by now
            path.unlink(missing_ok=True)

    found = measure_speeds(paths, 16, 8, 2, running, tick=tick)
    for speed, source in zip(found, (float_file, coarse_file), strict=True):
        assert isinstance(speed, Speed), speed
        assert speed.file_bytes == source.stat().st_size
        assert len(speed.samples) == 2
    assert not ray.is_initialized()
    assert scratch_folders() <= before


def scratch_folders() -> set[Path]:
    """Where files that were received may lie."""
    return {path.parent for path in Path(tempfile.gettempdir()).glob("tightfit-*/0.gguf")}


def test_a_local_cluster_is_started_and_ended(float_file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"nothing of the kind")
    before = ray.is_initialized()
    refused, fine = measure_speeds([broken, float_file], 16, 8, 1)
    assert isinstance(refused, NoSpeed)
    assert refused.reason.startswith("llama.cpp cannot load it")
    assert isinstance(fine, Speed)
    assert fine.file == "f32.gguf"
    assert ray.is_initialized() == before


def test_what_cannot_be_asked_for_is_refused_there_too(local: None, float_file: Path) -> None:
    with pytest.raises(InputError, match="it knows 64 positions, and 100 are asked for"):
        measure_speeds([float_file], 64, 36, 1)
    # The station that refused is gone, so that the next one finds its place.
    assert isinstance(measure_speeds([float_file], 16, 8, 1)[0], Speed)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the process of the station")
def test_a_station_that_dies_is_an_error_with_an_end(local: None, float_file: Path) -> None:
    with pytest.raises(WorkerError, match=f"the machine that has {RESOURCE} failed"):
        measure_speeds([float_file], 16, 8, 1, tick=lambda done, total: kill_station())


def kill_station() -> None:
    """Kill the station's process, which descends from this one."""
    found = [pid for pid in map(int, pids()) if name_of(pid).startswith("ray::Station") and descends(pid)]
    assert len(found) == 1
    os.kill(found[0], signal.SIGKILL)


def pids() -> list[str]:
    return [folder.name for folder in Path("/proc").glob("[0-9]*")]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def descends(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def test_a_machine_that_is_taken_is_not_waited_for_long(
    local: None, float_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station, "PLACED_WITHIN", 0.5)
    other = ray.remote(num_cpus=0, resources={RESOURCE: 1})(Station).remote()
    ray.get(other.describe.remote())
    with pytest.raises(WorkerError, match=r"did not answer within 0 s|did not answer within 1 s"):
        measure_speeds([float_file], 16, 8, 1)
    ray.kill(other)


def test_a_cluster_without_such_a_machine(
    local: None, float_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station, "RESOURCE", "bench:nowhere")
    with pytest.raises(WorkerError, match="has the resource bench:nowhere"):
        measure_speeds([float_file], 16, 8, 1)
