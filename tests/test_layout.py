"""The folders at the root are the package: what that promises, and what would break it silently."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("spaces", "compress", "proxies", "workers", "exporters", "search", "ui")
MAY_IMPORT: dict[str, set[str]] = {
    "spaces": set(),
    "compress": {"spaces"},
    "proxies": {"spaces", "compress"},
    "workers": {"spaces", "compress"},
    "exporters": {"spaces", "compress"},
    "search": {"spaces", "compress", "proxies", "workers", "exporters"},
    "ui": {"spaces", "exporters", "search"},
}
SHIPPED = ROOT / "compress" / "kvcache"
HEAVY = ("torch", "transformers", "ray", "gradio", "plotly")


def sources(folder: str) -> list[Path]:
    """Python files of a folder at the root, caches left out."""
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, lazily (``"module:object"``) or not, as an absolute name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module, colon, name = node.value.partition(":")
            if colon and name.isidentifier() and module.startswith("tightfit."):
                yield module


def run_python(code: str, **environment: str) -> str:
    """Run code in a fresh interpreter at the root of the repository."""
    clean = {key: value for key, value in os.environ.items() if key != "SPACES_ZERO_GPU"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT, env={**clean, **environment}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_every_folder_is_linked_into_the_package() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "src" / "tightfit").iterdir() if path.is_symlink()}
    assert links == {folder: ROOT / folder for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_says_what_belongs_there(folder: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text()))
    assert docstring is not None
    assert len(docstring.split()) >= 20


@pytest.mark.parametrize("folder", FOLDERS)
def test_dependencies_point_one_way(folder: str) -> None:
    allowed = MAY_IMPORT[folder] | {folder}
    for path in sources(folder):
        for name in imported(path):
            root, _, rest = name.partition(".")
            # This folder is shipped beside plans, where there is no package of ours around it.
            if not root and SHIPPED in path.parents and not name.startswith(".."):
                continue
            assert root, f"{path}: relative import {name}; write it as tightfit.…"
            if root == "tightfit":
                assert rest.split(".")[0] in {*allowed, "__version__"}, f"{path} imports {name}"


def test_no_folder_is_imported_by_its_bare_name() -> None:
    places = [*FOLDERS, "src/tightfit", "tests", "benchmarks"]
    found = [
        f"{path}: {name}"
        for path in {path for place in places for path in sources(place)}
        for name in imported(path)
        if name.split(".")[0] in FOLDERS
    ]
    assert found == []


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy so that no stale build folder can leak into it."""
    copy = tmp_path_factory.mktemp("wheel") / "tree"
    copy.mkdir()
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in (*FOLDERS, "src"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out", "."]
    run = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    (path,) = (copy / "out").glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_has_one_top_level_name(wheel: zipfile.ZipFile) -> None:
    names = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"tightfit"}


def test_the_wheel_holds_what_the_folders_hold(wheel: zipfile.ZipFile) -> None:
    expected = {
        f"tightfit/{path.relative_to(base)}"
        for base, start in [(ROOT / "src" / "tightfit", "."), *((ROOT, folder) for folder in FOLDERS)]
        for path in (base / start).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in wheel.namelist() if name.startswith("tightfit/")} == expected


def test_importing_the_app_leaves_no_foreign_spaces() -> None:
    gradio_does = "import sys\ntry:\n    import spaces\nexcept Exception:\n    spaces = None\n"
    seen = "print(sys.modules.get('spaces') is not None)"
    assert run_python(f"import tightfit.ui\n{gradio_does}{seen}") == "False\n"
    # Without the guard our folder is found through the current one, so the line above can fail.
    assert run_python(gradio_does + seen) == "True\n"


def test_the_app_leaves_the_name_to_zero_gpu_machines() -> None:
    code = "import sys, tightfit.ui; print('spaces' in sys.modules)"
    assert run_python(code, SPACES_ZERO_GPU="1") == "False\n"


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "tests/data/llama_70b"]])
def test_light_commands_load_no_heavy_library(arguments: list[str]) -> None:
    code = f"""
import runpy, sys
sys.argv = ["tightfit", *{arguments!r}]
try:
    runpy.run_module("tightfit", run_name="__main__")
except SystemExit as end:
    assert end.code in (0, None), end.code
print("HEAVY", [name for name in {HEAVY!r} if name in sys.modules])
"""
    assert run_python(code).endswith("HEAVY []\n")
