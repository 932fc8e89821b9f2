from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tightfit.search import doctor
from tightfit.search.doctor import Finding, examine, render_findings
from tightfit.workers.llamacpp.library import load_library

ROOT = Path(__file__).parents[2]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make packages known to the interpreter by their metadata alone."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, version: str, *requirements: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requirements)]
        (folder / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")

    return write


def test_this_machine_can_run_the_tests_so_nothing_is_an_error() -> None:
    findings = examine()
    assert [f for f in findings if f.level == "error"] == []
    subjects = [finding.subject for finding in findings]
    assert subjects[0] == "python"
    assert {"torch", "transformers", "sqlite", "disk", "cpu"} <= set(subjects)


def test_every_dependency_of_a_plain_install_is_looked_at(install: Callable[..., None]) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    plain = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert plain
    requirements = re.findall(r'"([\w-]+)([>=]=[\d.]+)"', plain[1])
    assert len(requirements) == len(plain[1].strip().splitlines()) > 8
    install("probe-host", "1.0", *map("".join, requirements), 'ruff>=0.9; extra == "dev"')
    findings = doctor._libraries("probe-host")
    # Developers' tools are not what a run needs.
    assert [finding.subject for finding in findings] == [name for name, _ in requirements]
    assert [finding for finding in findings if finding.level != "ok"] == []


@pytest.mark.parametrize(
    ("version", "level", "text"),
    [
        ("2.6", "ok", "2.6"),
        ("2.13.0+cpu", "ok", "2.13.0+cpu"),
        ("2.6.0rc1", "ok", "2.6.0rc1"),
        ("3", "ok", "3"),
        ("2.5.9", "error", "2.5.9 is older than 2.6, the oldest that works"),
        ("1.99", "error", "1.99 is older than 2.6, the oldest that works"),
        (None, "error", "not installed, but needed: pip install 'probe-needed>=2.6'"),
    ],
)
def test_a_library_that_is_missing_or_too_old_is_an_error(
    install: Callable[..., None], version: str | None, level: str, text: str
) -> None:
    install("probe-host", "1.0", "probe-needed>=2.6")
    if version is not None:
        install("probe-needed", version)
    assert doctor._libraries("probe-host") == [Finding(level, "probe-needed", text)]


@pytest.mark.parametrize(
    ("version", "level", "text"),
    [
        ("1.2.0", "ok", "1.2.0"),
        ("1.1.9", "error", "1.1.9 is not 1.2.0, the one that was tested: pip install 'probe-pinned==1.2.0'"),
        ("1.2.1", "error", "1.2.1 is not 1.2.0, the one that was tested: pip install 'probe-pinned==1.2.0'"),
        (None, "error", "not installed, but needed: pip install 'probe-pinned==1.2.0'"),
    ],
)
def test_what_is_pinned_has_to_be_that_version(
    install: Callable[..., None], version: str | None, level: str, text: str
) -> None:
    install("probe-host", "1.0", "probe-pinned==1.2.0")
    if version is not None:
        install("probe-pinned", version)
    assert doctor._libraries("probe-host") == [Finding(level, "probe-pinned", text)]


def test_another_llama_cpp_is_an_error_that_says_what_it_means(install: Callable[..., None]) -> None:
    install("probe-host", "1.0", "xllamacpp==1.0", "libgguf==1.0")
    llama, quantizers = doctor._libraries("probe-host")
    assert llama.level == quantizers.level == "error"
    assert llama.text.endswith("(it is llama.cpp itself, so that running and verifying files depend on it)")
    assert "searches and exports for llama.cpp depend on it" in quantizers.text


def test_llama_cpp_is_loaded_to_see_whether_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor._llamacpp().level == "ok"
    package = tmp_path / "xllamacpp"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "xllamacpp.so").write_bytes(b"not a library")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)  # another test may have imported it
    load_library.cache_clear()
    finding = doctor._llamacpp()
    load_library.cache_clear()
    assert (finding.level, finding.subject) == ("error", "llama.cpp")
    assert "its shared object cannot be used" in finding.text
    assert finding.text.endswith("no file can be run or verified")


def test_what_only_an_extra_needs_may_be_missing(install: Callable[..., None]) -> None:
    install("probe-host", "1.0", 'probe-data>=3.0; extra == "data"', 'probe-tool>=1; extra == "dev"')
    (finding,) = doctor._libraries("probe-host")
    assert finding.level == "ok"
    assert finding.text == "not installed (only needed for tightfit[data])"


def test_running_without_being_installed_is_said() -> None:
    (finding,) = doctor._libraries("probe-nowhere")
    assert (finding.level, finding.subject) == ("error", "probe-nowhere")


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ((3, 40, 1), "warning"),
        ((3, 44, 5), "warning"),
        ((3, 44, 6), "ok"),
        ((3, 45, 0), "warning"),
        ((3, 50, 7), "ok"),
        ((3, 51, 2), "warning"),
        ((3, 51, 3), "ok"),
        ((3, 52, 0), "ok"),
        ((4, 0, 0), "ok"),
    ],
)
def test_versions_of_sqlite_that_can_lose_data_are_named(version: tuple[int, ...], level: str) -> None:
    finding = doctor._sqlite(version)
    assert finding.level == level
    assert finding.text.startswith(".".join(map(str, version)))


def test_the_library_that_python_uses_is_the_one_looked_at() -> None:
    (finding,) = [finding for finding in examine() if finding.subject == "sqlite"]
    assert finding.text.startswith(sqlite3.sqlite_version)


def test_free_space_is_looked_up_where_the_cache_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "not" / "made" / "yet"
    monkeypatch.setenv("TIGHTFIT_CACHE", str(cache))
    finding = doctor._disk()
    assert str(cache) in finding.text
    assert not cache.exists()
    monkeypatch.setattr(doctor, "_DISK_NEEDED", 2**62)
    assert doctor._disk().level == "warning"
    assert "the default run needs about" in doctor._disk().text


def test_a_torch_that_cannot_be_imported_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so is missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    findings = doctor._devices()
    assert findings[-1] == Finding(
        "error", "torch", "is installed but cannot be imported: libcudart.so is missing"
    )


def test_findings_are_written_one_a_line_and_aligned() -> None:
    findings = [Finding("ok", "sqlite", "3.51.3"), Finding("warning", "a long subject", "beware")]
    lines = render_findings(findings).splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "warning"]
    assert lines[0].index("3.51.3") == lines[1].index("beware")
    assert findings[1].to_dict() == {"level": "warning", "subject": "a long subject", "text": "beware"}
