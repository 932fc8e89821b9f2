"""Reading tensors out of model folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tightfit.exporters.gguf.tensors import Weights, rotary_rows
from tightfit.spaces import InputError


@pytest.mark.parametrize(("heads", "width"), [(1, 4), (3, 64), (2, 6)])
def test_rows_that_rotate_together_become_neighbours(heads: int, width: int) -> None:
    rows = rotary_rows(heads, width)
    assert sorted(rows) == list(range(heads * width))
    for head in range(heads):
        part = rows[head * width : (head + 1) * width]
        assert list(part[::2]) == list(range(head * width, head * width + width // 2))
        assert list(part[1::2] - part[::2]) == [width // 2] * (width // 2)


def test_tensors_are_found_without_the_prefix_of_the_whole_model(tmp_path: Path) -> None:
    save_file({"h.0.ln_1.weight": torch.arange(3).half()}, tmp_path / "model.safetensors")
    weights = Weights(tmp_path)
    assert weights.shape("transformer.h.0.ln_1.weight") == (3,)
    values = weights.read("transformer.h.0.ln_1.weight")
    assert values.dtype == np.float32
    assert values.tolist() == [0, 1, 2]
    assert not weights.has("transformer.h.0.ln_1.bias")
    with pytest.raises(InputError, match=r"has no tensor model.norm.weight"):
        weights.read("model.norm.weight")


def test_a_folder_without_weights_or_with_damaged_ones_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model.safetensors cannot be read"):
        Weights(tmp_path).shape("x")
    (tmp_path / "model.safetensors").write_bytes(b"\x08")
    with pytest.raises(InputError, match=r"model.safetensors cannot be read"):
        Weights(tmp_path).shape("x")


@pytest.mark.parametrize("text", ["{", "{}"])
def test_a_damaged_index_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InputError, match=r"index.json cannot be read"):
        Weights(tmp_path).shape("x")


def test_a_missing_part_is_refused(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folder_of("llama"), tmp_path / "model")
    index = {"weight_map": {"model.norm.weight": "model-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"model-00002.safetensors cannot be read"):
        Weights(folder).read("model.norm.weight")
