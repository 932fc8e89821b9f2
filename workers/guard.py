"""A small process that outlives its owner just long enough to end what the owner started.

Where a driver is killed, the kernel ends Ray's servers with it, and workers follow; but Ray's agents
wait a minute first, and a process that hangs follows nobody. This file is run by its path with the
mark of a pool, and waits for the end of its input, which comes however the owner ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "TIGHTFIT_POOL"
"""Environment variable that everything to be ended has inherited."""

_ROUNDS = 20  # a process may just be starting another one
_PAUSE = 0.1  # seconds


class Guard:
    """Ends every process that belongs to a pool, once this process closes it or ends.

    It finds them in ``/proc``, so it does nothing on systems without one. They have the mark in their
    environment, or a file open in the pool's folder: a process that sets its title, as Ray's agents do,
    writes over its environment.

    Args:
        mark: the pool's folder, also the value of :data:`MARK` in their environment.
    """

    def __init__(self, mark: str) -> None:
        # In a session of its own, so that Ctrl-C does not reach it, and without site-packages.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark], stdin=subprocess.PIPE, start_new_session=True
        )

    def close(self) -> None:
        """End the processes, and wait for it."""
        self._process.communicate()


def main(mark: str) -> None:
    """Wait for the end of the input, then end every process that belongs to the pool."""
    owner = os.getppid()  # keeps a file of the folder open too, and may only be closing this guard
    sys.stdin.buffer.read()
    for _ in range(_ROUNDS):
        found = _members(mark, {owner, os.getpid()})
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_PAUSE)


def _members(mark: str, spared: set[int]) -> list[int]:
    entry, found = f"{MARK}={mark}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) in spared:
            continue
        try:
            if entry in (process / "environ").read_bytes().split(b"\0") or _works_in(process, mark):
                found.append(int(process.name))
        except OSError:  # of another user, or gone
            continue
    return found


def _works_in(process: Path, folder: str) -> bool:
    """Whether a process has a file of this folder open."""
    for link in (process / "fd").iterdir():
        try:
            if os.readlink(link).startswith(f"{folder}/"):
                return True
        except FileNotFoundError:  # closed meanwhile
            continue
    return False


if __name__ == "__main__":
    main(sys.argv[1])
