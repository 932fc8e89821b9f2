"""The short form of ``make soak``: real runs, killed at random moments, must end as undisturbed ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("agent", ["exact", "evolution", "optuna:nsga2", "optuna:tpe", "relinearize"])
def test_a_run_that_is_killed_ends_as_if_nothing_had_happened(agent: str) -> None:
    command = [sys.executable, "benchmarks/soak.py", "--kills", "2", "--agents", agent]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    soak = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert soak.returncode == 0, soak.stdout + soak.stderr
    assert soak.stdout.splitlines()[-1].endswith("as undisturbed")
