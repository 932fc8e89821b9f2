from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tightfit.search.connection import connect
from tightfit.spaces import InputError


def test_a_writer_makes_the_folder_and_a_reader_does_not(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "demo" / "run.db"
    with pytest.raises(InputError, match="cannot be opened as a Tightfit run"):
        connect(file, "ro")
    assert list(tmp_path.iterdir()) == []
    connect(file, "rw").close()
    connect(file, "ro").close()


@pytest.mark.parametrize("inside", ["demo/run.db", "run.db"])
def test_a_folder_that_is_a_file_is_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(InputError, match=r"the folder .*runs.* cannot be made for this run \("):
        connect(tmp_path / "runs" / inside, "rw")


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # Not by taking rights away: whoever runs the tests as root keeps them.
    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(InputError, match=r"cannot be made for this run \(Permission denied\)"):
        connect(tmp_path / "demo" / "run.db", "rw")


def test_a_reader_never_finds_a_file_that_is_half_made(tmp_path: Path) -> None:
    """Somebody who looks the moment that a run begins sees no file, or a whole one."""
    files = [tmp_path / str(i) / "run.db" for i in range(40)]
    found: list[int] = []

    def look() -> None:
        for file in files:
            while not file.exists():
                pass
            db = connect(file, "ro")
            found.append(len(db.table_names()))
            db.close()

    with ThreadPoolExecutor(1) as reader:
        looking = reader.submit(look)
        for file in files:
            connect(file, "rw").close()
        looking.result(60)
    assert len(set(found)) == 1
    assert [path.name for path in files[0].parent.iterdir() if path.suffix == ".db"] == ["run.db"]
