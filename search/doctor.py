"""Doctor: what this machine has, and what is known to go wrong with it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tightfit.spaces import TightfitError, format_size
from tightfit.workers.llamacpp.library import load_library
from tightfit.workers.sources import cache_folder

# A requirement as the package's own metadata writes it: torch>=2.6, libgguf==0.2.2,
# datasets>=3.0; extra == "data".
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?P<sign>>=|==)\s*(?P<version>[\d.]+)(.*extra == ['\"](?P<extra>\w+)['\"])?"
)
# What is pinned, and what does not work without it.
_PINNED = {
    "libgguf": "it quantizes to llama.cpp's types, so that searches and exports for llama.cpp depend on it",
    "xllamacpp": "it is llama.cpp itself, so that running and verifying files depend on it",
}
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
    """Look at libraries, SQLite, disk and devices."""
    findings = [
        Finding("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    ]
    findings += _libraries("tightfit")
    findings += [_llamacpp(), _sqlite(sqlite3.sqlite_version_info), _disk(), *_devices()]
    return findings


def render_findings(findings: Sequence[Finding]) -> str:
    """Return findings as aligned lines."""
    width = max(len(finding.subject) for finding in findings)
    return "\n".join(f"{f.level:<8} {f.subject:<{width}}  {f.text}" for f in findings)


def _libraries(package: str) -> list[Finding]:
    """Look at everything that a package requires; what only its developers need is left out."""
    try:
        requirements = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding("error", package, "runs from a folder that is not installed: pip install -e .")]
    matches = [match for text in requirements if (match := _REQUIREMENT.match(text))]
    return [_library(match) for match in matches if match["extra"] != "dev"]


def _library(requirement: re.Match[str]) -> Finding:
    name, wanted, extra = requirement["name"], requirement["version"], requirement["extra"]
    means = f" ({_PINNED[name]})" if name in _PINNED else ""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if extra:
            return Finding("ok", name, f"not installed (only needed for tightfit[{extra}])")
        command = f"pip install '{name}{requirement['sign']}{wanted}'"
        return Finding("error", name, f"not installed, but needed: {command}{means}")
    if requirement["sign"] == "==" and _release(version) != _release(wanted):
        command = f"pip install '{name}=={wanted}'"
        return Finding("error", name, f"{version} is not {wanted}, the one that was tested: {command}{means}")
    if _release(version) < _release(wanted):
        return Finding("error", name, f"{version} is older than {wanted}, the oldest that works")
    return Finding("ok", name, version)


def _llamacpp() -> Finding:
    """Look whether llama.cpp can be loaded and is laid out as it is known."""
    try:
        version = load_library().version()
    except TightfitError as error:
        return Finding("error", "llama.cpp", f"{str(error).rstrip('.')}: no file can be run or verified")
    return Finding("ok", "llama.cpp", f"{version}, can be loaded")


def _release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: 2.13.0+cpu is (2, 13, 0), 4.0rc1 is (4, 0)."""
    return tuple(map(int, re.findall(r"(?:^|(?<=\d)\.)(\d+)", version.partition("+")[0])))


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
    try:
        import torch
    except (ImportError, OSError) as error:
        return [cores, Finding("error", "torch", f"is installed but cannot be imported: {error}")]
    found = [Finding("ok", "cuda", torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append(Finding("ok", "mps", "available"))
    return [cores, *(found or [Finding("ok", "accelerator", "none found; runs use the CPU")])]
