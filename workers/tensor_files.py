"""Tensors on disk, whole or not at all: a killed run or a power cut leaves no half file that is believed."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tightfit.spaces.errors import TightfitError


class DiskError(TightfitError):
    """A file cannot be written: the disk is full, or the folder is gone or may not be written."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> int:
    """Write a safetensors file aside and rename it; return its bytes.

    Raises:
        DiskError: it cannot be written; nothing of it stays.
    """
    # Another process, or another thread of this one, may be at the same file.
    partial = path.with_name(f".{path.name}.{threading.get_ident()}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        size = partial.stat().st_size
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):  # the folder is gone, or was never there
            partial.unlink()
        raise DiskError(f"{path} cannot be written ({error}); everything stored before is kept.") from error
    return size


def read_tensors(path: Path) -> dict[str, Tensor] | None:
    """Read a safetensors file, memory-mapped; None where there is none or it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (FileNotFoundError, SafetensorError):
        return None


def is_whole(path: Path) -> bool:
    """Whether a file is there and as long as its header says."""
    try:
        with safe_open(path, framework="pt"):
            return True
    except (FileNotFoundError, SafetensorError):
        return False


def sweep(folder: Path) -> None:
    """Delete what writers that have ended did not finish."""
    for partial in folder.glob(".*.safetensors.*"):
        writer = partial.name.rpartition(".")[2]
        if writer.isdigit() and not _is_running(int(writer)):
            partial.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return True
