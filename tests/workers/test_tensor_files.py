from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tightfit.workers.tensor_files import DiskError, is_whole, read_tensors, sweep, write_tensors


def test_what_is_written_is_read_and_its_size_is_told(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6).reshape(2, 3).t(), "b": torch.ones(4)}
    path = tmp_path / "new" / "file.safetensors"
    assert write_tensors(path, tensors) == path.stat().st_size
    found = read_tensors(path)
    assert found is not None
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert is_whole(path)
    assert [file.name for file in path.parent.iterdir()] == ["file.safetensors"]


@pytest.mark.parametrize("length", [0, 4, 20, 100])
def test_a_damaged_file_is_none(tmp_path: Path, length: int) -> None:
    path = tmp_path / "file.safetensors"
    write_tensors(path, {"a": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:length])
    assert read_tensors(path) is None
    assert not is_whole(path)
    assert read_tensors(tmp_path / "nowhere") is None
    assert not is_whole(tmp_path / "nowhere")


def test_a_file_that_cannot_be_written_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(DiskError, match=r"file\.safetensors cannot be written \(.*\); everything .* is kept"):
        write_tensors(tmp_path / "a file" / "file.safetensors", {"a": torch.ones(1)})


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    """As a limit on the size of files, in a process of its own."""
    script = (
        "import resource, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from tightfit.workers.tensor_files import DiskError, write_tensors\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    write_tensors(Path(sys.argv[1]), {'a': torch.ones(1000)})\n"
        "except DiskError as error:\n"
        "    print('refused')\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "file.safetensors")]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "refused\n"
    assert list(tmp_path.iterdir()) == []


def test_only_what_dead_writers_left_is_swept(tmp_path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    dead = tmp_path / f".a.safetensors.1.{int(gone.stdout)}"
    alive = tmp_path / f".b.safetensors.1.{os.getpid()}"
    for partial in (dead, alive):
        partial.write_bytes(b"half of a file")
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [alive]
