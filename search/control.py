"""Pausing, resuming and stopping a run from outside, and telling whether one is going on.

A run holds a lock on its folder, which the operating system takes back however its process ends. What
others wish for lies in a file beside the store, since only the run itself writes into the store; the run
looks there at every step.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from filelock import FileLock, Timeout

from tightfit.search.store import RUN_FILE, Store
from tightfit.spaces import InputError
from tightfit.spaces.errors import TightfitError

Wish = Literal["run", "pause", "stop"]
State = Literal["running", "paused", "stopped", "finished"]

_LOCK_FILE, _WISH_FILE = "run.lock", "wish"
# A reader that looks whether a run is going on holds the lock for a moment.
_PATIENCE = 5.0
_POLL = 0.2
# Readers look at one another too.
_LOOKS = 8


class StoppedError(TightfitError):
    """A run was asked to stop; everything it has measured is kept."""

    exit_code = 0


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Hold a run's folder, so that no other process works in it; earlier wishes are forgotten.

    Raises:
        InputError: another process holds it.
    """
    lock = FileLock(folder / _LOCK_FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_PATIENCE)
    except Timeout as error:
        raise InputError(
            f"another process is working on the run in {folder}: wait for it, or end it with "
            f"tightfit stop {folder}."
        ) from error
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be used for this run ({error.strerror}).") from error
    try:
        _forget_wish(folder)
        yield
    finally:
        lock.release()


def ask(folder: str | Path, wish: Wish) -> None:
    """Leave a wish for a run that is going on.

    Raises:
        InputError: there is no run in this folder, or no process is working on it.
    """
    folder = Path(folder)
    if state(folder) not in ("running", "paused"):
        raise InputError(f"no process is working on the run in {folder}: there is nothing to {wish}.")
    partial = folder / f".{_WISH_FILE}.{os.getpid()}"
    partial.write_text(wish, encoding="utf-8")
    partial.replace(folder / _WISH_FILE)


def state(folder: str | Path) -> State:
    """Say how a run is.

    Raises:
        InputError: there is no run in this folder.
    """
    folder = Path(folder)
    if not (folder / RUN_FILE).is_file():
        raise InputError(f"there is no run at {folder} (a run is a folder with a {RUN_FILE}).")
    if _held(folder):
        return "paused" if _wish(folder) == "pause" else "running"
    with Store.open(folder, mode="ro") as store:
        return "finished" if store.get("result") else "stopped"


def check(folder: Path, say: Callable[[str], None] = lambda text: None) -> float:
    """Obey the wishes of others; called by the run itself at every step.

    Returns:
        Seconds spent paused.

    Raises:
        StoppedError: somebody asked the run to stop.
    """
    start = time.monotonic()
    paused = False
    while (wish := _wish(folder)) == "pause":
        if not paused:
            say(f"paused (go on with tightfit resume {folder})")
        paused = True
        time.sleep(_POLL)
    if wish == "stop":
        raise StoppedError(f"stopped; everything measured is kept. Go on with tightfit resume {folder}.")
    return time.monotonic() - start if paused else 0.0


def _held(folder: Path) -> bool:
    if not (folder / _LOCK_FILE).exists():
        return False
    lock = FileLock(folder / _LOCK_FILE)
    for _ in range(_LOOKS):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            time.sleep(random.uniform(0.001, 0.01))  # it may be another reader, who holds it for a moment
        except OSError:  # a folder that may only be read: nobody can be working in it
            return False
        else:
            lock.release()
            return False
    return True


def _wish(folder: Path) -> Wish:
    try:
        text = (folder / _WISH_FILE).read_bytes()
    except OSError:  # there is none, or nothing that anybody could mean
        return "run"
    return next((wish for wish in get_args(Wish) if wish.encode() == text.strip()), "run")


def _forget_wish(folder: Path) -> None:
    with suppress(IsADirectoryError):
        (folder / _WISH_FILE).unlink(missing_ok=True)
