"""The bench on the machine that is meant for it, wherever it is in a Ray cluster.

A machine offers itself by a resource, one of which it has:

    ray start --address=host:port --resources='{"bench:llama.cpp": 1}'

Tightfit and llama.cpp have to be installed there; the files are sent to it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tightfit.spaces import TightfitError
from tightfit.workers.cluster import Cluster, WorkerError
from tightfit.workers.hand import PLACED_WITHIN
from tightfit.workers.llamacpp import bench
from tightfit.workers.llamacpp.speed import NoSpeed, Sample, Speed
from tightfit.workers.scratch import drop_scratch, make_scratch

RESOURCE = "bench:llama.cpp"
"""What a machine has one of that is meant to measure llama.cpp."""

_PIECE = 2**24  # bytes of a file that are sent at once
_ANSWERED_WITHIN = 60.0  # seconds, for whatever is no measurement
_POLL = 1.0  # seconds


class Station:
    """What runs inside the process of the worker. Errors of ours are returned, as Ray would wrap them."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def describe(self) -> bench.Host | TightfitError:
        """Say what this machine is."""
        try:
            return bench.describe_host()
        except TightfitError as error:
            return error

    def receive(self, name: str, piece: bytes) -> str:
        """Append to a file in a scratch folder, and return its path."""
        self._folder = self._folder or make_scratch()
        path = self._folder / name
        with path.open("ab") as file:
            file.write(piece)
        return str(path)

    def run(self, path: str, work: bench.Work) -> Sample | str | TightfitError:
        """Run a file once; see :func:`tightfit.workers.llamacpp.bench.run_once`."""
        try:
            return bench.run_once(Path(path), work)
        except TightfitError as error:
            return error

    def close(self) -> None:
        """Remove the files that were received."""
        if self._folder is not None:
            drop_scratch(self._folder)


def measure_speeds(
    files: Sequence[Path],
    prompt: int,
    generate: int,
    rounds: int,
    address: str | None = None,
    *,
    limit: float = bench.LIMIT,
    tick: bench.Tick = lambda done, total: None,
) -> list[Speed | NoSpeed]:
    """Measure files on the machine of a cluster that is meant for it.

    Args:
        files: GGUF files of one model, by which it is compared.
        prompt: tokens of the prompt, the same ones for every file.
        generate: tokens after it, one by one.
        rounds: how often every file is measured.
        address: ``auto`` or ``host:port`` of a cluster, see :class:`tightfit.workers.cluster.Cluster`; None
            starts a local one, which reads the files where they are.
        limit: seconds that one run may take.
        tick: called with (runs done, runs in all) after each; may raise to stop.

    Returns:
        One entry per file.

    Raises:
        InputError: a file is not there, that machine has no llama.cpp, or the model knows fewer positions.
        LlamaError: its llama.cpp is not one that can be called.
        WorkerError: there is no such machine, it is not free, or it was lost.
    """
    sizes = bench.check_files(files)
    work = bench.Work(prompt, generate, limit)
    with Cluster(1, address, resources={RESOURCE: 1}), _Line() as line:
        host = line.ask(_ANSWERED_WITHIN, "describe")
        here = [str(path.absolute()) for path in files]
        paths = here if address is None else [_send(line, i, path) for i, path in enumerate(files)]
        slack = limit + _ANSWERED_WITHIN
        found = bench.race(len(files), rounds, lambda i: line.ask(slack, "run", paths[i], work), tick)
    return [
        bench.speed_of(path.name, size, work, host, outcome)
        for path, size, outcome in zip(files, sizes, found, strict=True)
    ]


def _send(line: _Line, number: int, path: Path) -> str:
    """Send a file to the station, and return its path there."""
    there = ""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            there = line.ask(_ANSWERED_WITHIN, "receive", f"{number}.gguf", piece)
    return there


class _Line:
    """A station, and the way to it. Every wait has an end."""

    def __init__(self) -> None:
        import ray

        self._ray: Any = ray
        # It asks for no CPU, since the run's own workers may hold them all, and wait while it measures. Never
        # restarted by Ray: it would come back without its files.
        kind: Any = ray.remote(num_cpus=0, resources={RESOURCE: 1}, max_restarts=0, max_task_retries=0)(
            Station
        )
        self._actor: Any = kind.remote()
        try:
            self.ask(PLACED_WITHIN, "__ray_ready__")
        except BaseException:
            ray.kill(self._actor)
            raise

    def ask(self, limit: float, method: str, *arguments: Any) -> Any:
        """Call a method of the station and wait for its answer.

        Raises:
            TightfitError: what went wrong there.
            WorkerError: there was no answer in time, or there will be none.
        """
        from ray.exceptions import RayError

        call = getattr(self._actor, method).remote(*arguments)
        end = time.monotonic() + limit
        while not self._ray.wait([call], timeout=_POLL)[0]:
            if time.monotonic() > end:
                raise WorkerError(
                    f"workers.address: the machine that has {RESOURCE} did not answer within {limit:.0f} s; "
                    "others may be using it."
                )
        try:
            answer = self._ray.get(call)
        except RayError as error:
            raise WorkerError(
                f"workers.address: the machine that has {RESOURCE} failed: {_last_line(error)}."
            ) from error
        if isinstance(answer, TightfitError):
            raise answer
        return answer

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        # What it is at may be a run that nobody wants any more; then its files are swept by who comes next.
        self._ray.wait([self._actor.close.remote()], timeout=_POLL)
        self._ray.kill(self._actor)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip().rstrip(".")
