"""Doctor: what this machine has, and what is known to go wrong with it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tightfit.spaces import format_size
from tightfit.workers.sources import cache_folder

# Lowest version with which Tightfit is known to work; see pyproject.toml.
_FLOORS = {
    "torch": (2, 6),
    "transformers": (5, 5),
    "optuna": None,
    "ray": (2, 54),
    "gradio": (6, 22),
    "scikit-learn": (1, 4),
    "sqlite-utils": (4, 0),
}
_OPTIONAL = ("optuna", "ray", "gradio")
# The default model, its prepared copies and one run's option cache.
_DISK_NEEDED = 4 * 2**30
# Versions before this can lose committed pages when two connections write and checkpoint at once
# (https://sqlite.org/wal.html, "the WAL-reset bug"); these older ones have the fix.
_SQLITE_FIXED = (3, 51, 3)
_SQLITE_BACKPORTS = ((3, 44, 6), (3, 50, 7))


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Literal["ok", "warning", "error"]
    subject: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return asdict(self)


def examine() -> list[Finding]:
    """Look at libraries, SQLite, memory, disk and devices."""
    findings = [
        Finding("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    ]
    findings += [_library(name, floor) for name, floor in _FLOORS.items()]
    findings += [_sqlite(sqlite3.sqlite_version_info), _disk(), *_devices()]
    return findings


def render_findings(findings: Sequence[Finding]) -> str:
    """Return findings as aligned lines."""
    width = max(len(finding.subject) for finding in findings)
    return "\n".join(f"{f.level:<8} {f.subject:<{width}}  {f.text}" for f in findings)


def _library(name: str, floor: tuple[int, int] | None) -> Finding:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if name in _OPTIONAL:
            return Finding("ok", name, "not installed (not needed for a run on one machine)")
        return Finding("error", name, "not installed, but needed")
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if floor is not None and parts < floor:
        return Finding("error", name, f"{version} is older than {floor[0]}.{floor[1]}, the oldest that works")
    return Finding("ok", name, version)


def _sqlite(version: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, version))
    patched = any(version[:2] == fixed[:2] and version >= fixed for fixed in _SQLITE_BACKPORTS)
    if version >= _SQLITE_FIXED or patched:
        return Finding("ok", "sqlite", text)
    return Finding(
        "warning",
        "sqlite",
        f"{text}: before 3.51.3, two processes writing at once can lose data; Tightfit writes from one",
    )


def _disk() -> Finding:
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{format_size(free)} free for {folder}"
    if free < _DISK_NEEDED:
        return Finding("warning", "disk", f"{text}; the default run needs about {format_size(_DISK_NEEDED)}")
    return Finding("ok", "disk", text)


def _devices() -> list[Finding]:
    cores = Finding("ok", "cpu", f"{os.cpu_count()} logical cores")
    if importlib.util.find_spec("torch") is None:
        return [cores]
    import torch

    found = [Finding("ok", "cuda", torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append(Finding("ok", "mps", "available"))
    return [cores, *(found or [Finding("ok", "accelerator", "none found; runs use the CPU")])]
