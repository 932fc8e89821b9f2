from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tightfit.workers.scratch import drop_scratch, make_scratch

MAKE = "import sys, pathlib, os; from tightfit.workers.scratch import make_scratch as m; "
MAKE += "print(m(pathlib.Path(sys.argv[1])), flush=True); "


def made_by(ending: str, parent: Path) -> Path:
    """A folder made by a process that ended as told."""
    done = subprocess.run(
        [sys.executable, "-c", MAKE + ending, str(parent)], stdout=subprocess.PIPE, text=True
    )
    return Path(done.stdout.strip())


def age(folder: Path) -> None:
    os.utime(folder, (1e9, 1e9))


def test_a_folder_is_for_this_user_and_ends_with_its_process(tmp_path: Path) -> None:
    folder = make_scratch(tmp_path)
    assert folder.stat().st_mode & 0o077 == 0
    drop_scratch(folder)
    assert not folder.exists()
    drop_scratch(folder)
    assert not made_by("", tmp_path).exists()


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = made_by("os.kill(os.getpid(), 9)", tmp_path)
    (left / "file").touch()
    drop_scratch(make_scratch(tmp_path))
    assert left.exists()  # too young to be sure
    age(left)
    drop_scratch(make_scratch(tmp_path))
    assert not left.exists()


def test_what_is_in_use_or_somebody_elses_stays(tmp_path: Path) -> None:
    used, foreign = make_scratch(tmp_path), tmp_path / "tightfit-of-somebody"
    foreign.mkdir()
    age(used)
    age(foreign)
    assert not made_by("", tmp_path).exists()  # another process swept
    drop_scratch(make_scratch(tmp_path))
    assert used.exists()
    assert foreign.exists()
    drop_scratch(used)
