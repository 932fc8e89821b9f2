"""Speed and memory of GGUF files on this machine, each run in a process of its own."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.spaces import InputError
from tightfit.workers.llamacpp.library import find_library, library_version, unusable
from tightfit.workers.llamacpp.speed import NoSpeed, Sample, Speed

LIMIT = 1800.0
"""Seconds that one run of a file may take."""

Tick = Callable[[int, int], None]

_GOLDEN = (5**0.5 - 1) / 2
_CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Work:
    """What a file is run on.

    Attributes:
        prompt: tokens of the prompt.
        generate: tokens after it, one by one.
        limit: seconds that one run may take.

    Raises:
        InputError: a number of tokens is not positive.
    """

    prompt: int
    generate: int
    limit: float = LIMIT

    def __post_init__(self) -> None:
        for name in ("prompt", "generate"):
            if getattr(self, name) <= 0:
                raise InputError(f"validate.{name}: must be positive, but is {getattr(self, name)}.")


@dataclass(frozen=True)
class Host:
    """A machine with llama.cpp.

    Attributes:
        machine: its processor.
        version: version of the package that llama.cpp comes from.
    """

    machine: str
    version: str


def bench_files(
    files: Sequence[Path],
    prompt: int,
    generate: int,
    rounds: int,
    *,
    limit: float = LIMIT,
    tick: Tick = lambda done, total: None,
) -> list[Speed | NoSpeed]:
    """Measure files on this machine, on one thread.

    Args:
        files: GGUF files of one model, by which it is compared.
        prompt: tokens of the prompt, the same ones for every file.
        generate: tokens after it, one by one.
        rounds: how often every file is measured, see :func:`running_order`.
        limit: seconds that one run may take.
        tick: called with (runs done, runs in all) after each; may raise to stop.

    Returns:
        One entry per file. One that llama.cpp refuses, or whose process dies, is left out of later rounds.

    Raises:
        InputError: a file is not there, there is no llama.cpp, or the model knows fewer positions.
        LlamaError: llama.cpp is not one that can be called.
    """
    sizes = check_files(files)
    host, work = describe_host(), Work(prompt, generate, limit)
    found = race(len(files), rounds, lambda i: run_once(files[i], work), tick)
    return [
        speed_of(path.name, size, work, host, outcome)
        for path, size, outcome in zip(files, sizes, found, strict=True)
    ]


def check_files(files: Sequence[Path]) -> list[int]:
    """Return the sizes of files in bytes.

    Raises:
        InputError: one is not there.
    """
    for path in files:
        if not path.is_file():
            raise InputError(f"{path}: there is no such file to measure.")
    return [path.stat().st_size for path in files]


def speed_of(name: str, size: int, work: Work, host: Host, found: Sequence[Sample] | str) -> Speed | NoSpeed:
    """Put together what all rounds of a file gave."""
    if isinstance(found, str):
        return NoSpeed(name, found)
    return Speed(name, size, work.prompt, work.generate, host.machine, host.version, tuple(found))


def running_order(count: int, rounds: int) -> list[list[int]]:
    """Return who runs when: a round to warm up, then those that count.

    In a round every file has its turn, so that what else the machine does hits all alike. From round to round
    everybody moves up by about 0.62 of all places (the golden ratio spreads few rounds best), so that being
    early or late does too, however few rounds there are.
    """
    step = max(1, round(count * _GOLDEN))
    return [[(i + turn * step) % count for i in range(count)] for turn in range(rounds + 1)]


def race(
    count: int, rounds: int, once: Callable[[int], Sample | str], tick: Tick
) -> list[list[Sample] | str]:
    """Run files in turn.

    Args:
        count: how many there are.
        rounds: that count.
        once: runs one of them; what it returns is a sample or, in half a sentence, why there is none.
        tick: called with (runs done, runs in all).

    Returns:
        Per file its samples by round, or why there are none.
    """
    if rounds < 1:
        raise InputError(f"validate.rounds: must be at least 1, but is {rounds}.")
    found: list[list[Sample] | str] = [[] for _ in range(count)]
    turns = [i for order in running_order(count, rounds) for i in order]
    for done, i in enumerate(turns, 1):
        samples = found[i]
        if not isinstance(samples, str):
            outcome = once(i)
            if isinstance(outcome, str):
                found[i] = outcome
            elif done > count:  # warm by now
                samples.append(outcome)
        tick(done, len(turns))
    return found


def describe_host() -> Host:
    """Say what this machine is.

    Raises:
        InputError: there is no llama.cpp here.
    """
    find_library()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return Host(names[0] if names else platform.processor() or platform.machine(), library_version())


def run_once(path: Path, work: Work) -> Sample | str:
    """Run a file in a fresh process.

    Returns:
        What it took; or, in half a sentence, why there is nothing.

    Raises:
        InputError: there is no llama.cpp, or the model knows fewer positions.
        LlamaError: llama.cpp is not one that can be called.
    """
    what = [str(find_library()), str(path), str(work.prompt), str(work.generate)]
    try:
        done = _run([sys.executable, "-I", "-S", str(_CHILD), *what], work.limit)
    except subprocess.TimeoutExpired:
        return f"it took longer than {work.limit:g} s"
    answer = None if done.returncode else _answer(done.stdout)
    if answer is None:
        return f"its process {ending(done.returncode, done.stderr)}"
    if reason := answer.get("unusable"):
        raise unusable(reason)
    if reason := answer.get("too long"):
        raise InputError(f"validate.prompt and validate.generate: {path.name}: {reason}.")
    refusal: str | None = answer.get("refused")
    return refusal if refusal else Sample(**answer)


def _answer(printed: str) -> dict[str, Any] | None:
    """Return the last JSON object of what a process printed: llama.cpp may print lines of its own."""
    for line in reversed(printed.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            return answer
    return None


def _run(command: list[str], limit: float) -> subprocess.CompletedProcess[str]:
    """Run a command that ends when this process does: then its input comes to an end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GGML_NO_BACKTRACE": "1"}
    read, write = os.pipe()
    try:
        return subprocess.run(
            command,
            stdin=read,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    finally:
        os.close(read)
        os.close(write)


def ending(code: int, said: str) -> str:
    """Say in words that follow a subject how a process ended without an answer.

    Args:
        code: its exit code.
        said: what it wrote to its standard error.
    """
    lines = [line.strip().rstrip(".") for line in said.splitlines() if line.strip()]
    last = f": {lines[-1]}" if lines else ""
    if code > 0:
        return f"failed{last}"
    if not code:
        return f"ended without an answer{last}"
    name = signal.Signals(-code).name
    memory = ", as it happens when memory runs out" if name == "SIGKILL" else ""
    return f"was ended by {name}{memory}{last}"
