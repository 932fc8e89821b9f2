"""Temporary folders that do not outlive their process by much, however it ends."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from pathlib import Path

from filelock import FileLock, Timeout

_PREFIX = "tightfit-"
_LOCK = "in-use.lock"
_NEWBORN = 60.0  # seconds in which a folder may not have its lock yet
_held: dict[Path, FileLock] = {}


def make_scratch(parent: Path | None = None) -> Path:
    """Make a temporary folder that only this user can read; it is removed when the process ends.

    A process that is killed cannot remove its own, so whoever comes next removes those that nobody
    holds any more.

    Args:
        parent: where to make it; the system's folder for temporary files if left out.
    """
    parent = parent or Path(tempfile.gettempdir())
    for folder in parent.glob(f"{_PREFIX}*"):
        if folder not in _held:
            _sweep(folder)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    lock = FileLock(folder / _LOCK)
    lock.acquire()
    _held[folder] = lock
    return folder


def drop_scratch(folder: Path) -> None:
    """Remove a temporary folder of this process; one that is gone already is none of its concern."""
    lock = _held.pop(folder, None)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _sweep(folder: Path) -> None:
    """Remove a folder if nobody holds it."""
    try:
        abandoned = (folder / _LOCK).is_file() and time.time() - folder.stat().st_mtime > _NEWBORN
        if abandoned:
            with FileLock(folder / _LOCK, timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
    except (OSError, Timeout):  # held, of another user, or swept by somebody else
        return


@atexit.register
def _drop_all() -> None:
    for folder in list(_held):
        drop_scratch(folder)
