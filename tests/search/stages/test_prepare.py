from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tightfit.search.run import run_search
from tightfit.search.settings import Settings
from tightfit.search.stages.prepare import pick_device
from tightfit.spaces import InputError
from tightfit.workers.llamacpp.library import load_library


def test_auto_takes_what_is_there() -> None:
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    assert there[pick_device("auto")]
    assert pick_device("cpu") == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_device_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(InputError, match=r"cuda is not available here \(available: .*cpu"):
        pick_device("cuda")


LLAMACPP: dict[str, Any] = {
    "target": "llama.cpp",
    "budget": {"weights": "120000B"},
    "space": {"weights": {"types": ["Q4_0", "Q8_0"]}},
}


def test_a_tokenizer_that_llama_cpp_has_none_like_is_refused_before_anything_is_measured(
    settings_of: Callable[..., Settings], tiny_model: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match="does not change text as this tokenizer's normalizer does"):
        run_search(settings_of(tmp_path, model=str(folder), **LLAMACPP), say=lambda line: None)
    assert not list((tmp_path / "tiny").glob("options/*"))


@pytest.fixture
def no_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation whose llama.cpp has no shared object."""
    package = tmp_path / "packages" / "xllamacpp"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    load_library.cache_clear()
    yield
    load_library.cache_clear()


@pytest.mark.usefixtures("no_llama_cpp")
@pytest.mark.parametrize(
    "asked", [{"validate": {"hardware": ["llama.cpp"]}}, {"budget": {"weights": "120000B", "latency": "1s"}}]
)
def test_a_missing_llama_cpp_is_said_before_anything_is_measured(
    settings_of: Callable[..., Settings], tmp_path: Path, asked: dict[str, Any]
) -> None:
    short = {"prompt": 16, "generate": 16, **asked.get("validate", {})}
    settings = settings_of(tmp_path, **{**LLAMACPP, **asked, "validate": short})
    with pytest.raises(InputError, match="the package xllamacpp is missing; pip install xllamacpp=="):
        run_search(settings, say=lambda line: None)
    assert not list((tmp_path / "tiny").glob("options/*"))
