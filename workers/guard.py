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
    """Ends every process whose environment has a mark, once this process closes it or ends.

    It finds them in ``/proc``, so it does nothing on systems without one.

    Args:
        mark: value of :data:`MARK` in their environment.
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
    """Wait for the end of the input, then end every process with the mark."""
    sys.stdin.buffer.read()
    for _ in range(_ROUNDS):
        found = _marked(f"{MARK}={mark}".encode())
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_PAUSE)


def _marked(entry: bytes) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # of another user, or gone
            continue
    return found


if __name__ == "__main__":
    main(sys.argv[1])
