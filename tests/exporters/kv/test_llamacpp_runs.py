"""llama.cpp takes as many bytes for its cache as the recipe says."""

from __future__ import annotations

import ctypes as c
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporters.gguf.tiny import ship, write_folder
from tests.exporters.kv.plans import ship_caches

from tightfit.exporters import get_exporter
from tightfit.exporters.kv.llamacpp import describe
from tightfit.spaces import Load
from tightfit.workers.llamacpp.engine import Library
from tightfit.workers.llamacpp.library import load_library

GGML_TYPES = {"f16": 1, "q4_0": 2, "q5_0": 6, "q8_0": 8}  # enum ggml_type
FLASH = {"on": 1}  # enum llama_flash_attn_type
CONTEXT, BATCH = 2048, 3  # llama.cpp tells sizes in hundredths of MiB only
_Log = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with heads of whole blocks, beside itself as a GGUF file."""
    place = tmp_path_factory.mktemp("place")
    folder = write_folder("llama with wide heads", place / "model", max_position_embeddings=4096)
    get_exporter("llama.cpp").export(ship(folder), place / "model.gguf")
    return place


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What llama.cpp says meanwhile."""
    library, lines = load_library(), list[str]()
    listen = _Log(lambda _, text, __: lines.append(text.decode(errors="replace")))
    library.log_set(c.cast(listen, type(library._log)), None)
    yield lines
    library.log_set(library._log, None)


def open_context(library: Library, file: Path, words: dict[str, str]) -> None:
    """Make a context with the arguments of a recipe, and give it back."""
    model = library.model_load_from_file(str(file).encode(), library.model_params())
    params: Any = library.context_params()
    params.n_ctx, params.n_seq_max = int(words["--ctx-size"]), int(words["--parallel"])
    params.type_k, params.type_v = (GGML_TYPES[words[f"--cache-type-{part}"]] for part in "kv")
    if "--flash-attn" in words:
        params.flash_attn_type = FLASH[words["--flash-attn"]]
    context = library.init_from_model(model, params)
    assert context, library.reason()
    library.free(context)
    library.model_free(model)


@pytest.mark.parametrize("option", ["k16v16", "k8v8-block", "k8v4-block", "k5v5-block"])
def test_bytes_of_the_recipe_are_what_llama_cpp_takes(option: str, place: Path, told: list[str]) -> None:
    config = json.loads((place / "model" / "config.json").read_text(encoding="utf-8"))
    weights = {"types": ("F32",)}
    content = describe(ship_caches([option] * 3, "llama.cpp", config, Load(CONTEXT, BATCH), weights))
    words = content["arguments"]
    open_context(load_library(), place / "model.gguf", dict(zip(words[::2], words[1::2], strict=True)))
    said = re.search(
        r"size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers, +(\d+)/(\d+) seqs\)", "".join(told)
    )
    assert said, "".join(told)
    size, cells, layers, sequences, _ = said.groups()
    assert (int(cells), int(layers), int(sequences)) == (CONTEXT, 3, BATCH)
    assert content["bytes"]["recipe"] / 2**20 == pytest.approx(float(size), abs=0.006)
