"""Another Python process, in which Tightfit cannot be imported."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path

_START = """
import importlib, sys
sys.path[:0] = [{folder!r}]
sys.path += {packages!r}
try:
    importlib.import_module("tightfit")
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("tightfit can be imported")
"""


def run_elsewhere(code: str, folder: Path, cwd: Path) -> str:
    """Run code that can import what lies in a folder and what is installed, and return what it prints.

    Without ``site`` no path file is read, and it is by one that a working copy of Tightfit is installed.
    """
    start = _START.format(folder=str(folder), packages=site.getsitepackages())
    command = [sys.executable, "-I", "-S", "-c", start + code]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
