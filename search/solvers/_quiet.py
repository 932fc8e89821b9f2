"""Keeping the standard output clean of what HiGHS prints, whatever it is told about printing."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# One thread at a time: the descriptor belongs to the whole process.
_TURN = threading.Lock()


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what C code prints on the standard output, where commands print tables and JSON.

    HiGHS leaves a line now and then, such as ``transformNewIntegerFeasibleSolution``, from a place that
    looks at no option. Where there is no C library to flush, it is let through.
    """
    if os.name != "posix":
        yield
        return
    library = ctypes.CDLL(None)
    with _TURN:
        sys.stdout.flush()
        library.fflush(None)
        own, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 1)
            yield
        finally:
            library.fflush(None)
            os.dup2(own, 1)
            os.close(own)
            os.close(nowhere)
