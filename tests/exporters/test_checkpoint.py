"""Weights are read out of the files that Transformers loads, whatever else lies beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.exporters.gguf.tiny import load, ship, write_folder

from tightfit.exporters.checkpoint import Checkpoint, loaded_files
from tightfit.exporters.expected import stored_tensors
from tightfit.exporters.gguf import export
from tightfit.exporters.verify import read_back
from tightfit.spaces import InputError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NORM = "model.norm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return write_folder("llama", tmp_path / "model")


def rest(folder: Path, name: str, by: float) -> None:
    """Write the weights once more, changed."""
    tensors = load_file(folder / WHOLE)
    save_file({key: value + by for key, value in tensors.items()}, folder / name, {"format": "pt"})


def beside(folder: Path) -> None:
    """Copies that come before the real file and after it by name."""
    rest(folder, "backup.safetensors", 1.0)
    rest(folder, "previous.safetensors", 2.0)


def split(folder: Path) -> None:
    """Two parts and an index, and parts of an older split."""
    tensors = load_file(folder / WHOLE)
    parts: dict[str, dict[str, torch.Tensor]] = {"model-1.safetensors": {}, "model-2.safetensors": {}}
    for i, (key, value) in enumerate(sorted(tensors.items())):
        parts[f"model-{1 + i % 2}.safetensors"][key] = value
    for name, content in parts.items():
        save_file(content, folder / name, {"format": "pt"})
    names = {key: name for name, content in parts.items() for key in content}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    rest(folder, "model-0.safetensors", 3.0)
    (folder / WHOLE).unlink()


def both(folder: Path) -> None:
    """A whole file beside the index of other weights."""
    rest(folder, "other.safetensors", 1.0)
    names = dict.fromkeys(load_file(folder / WHOLE), "other.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def named(folder: Path) -> None:
    """A configuration that names its file itself."""
    rest(folder, "named.safetensors", 1.0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": "named.safetensors"}))


@pytest.mark.parametrize("arrange", [beside, split, both, named])
def test_every_reader_takes_the_files_that_transformers_loads(
    arrange: Callable[[Path], None], folder: Path, tmp_path: Path
) -> None:
    arrange(folder)
    model = load(folder)
    checkpoint, shipment = Checkpoint(folder), ship(folder, ("Q8_0", "F16"))
    assert shipment.source is not None
    for key, read in ((key, read) for key, _, read in stored_tensors(shipment.source)):
        assert torch.equal(read().float(), model.get_parameter(key))
        assert torch.equal(checkpoint.read(key), model.get_parameter(key))
        assert checkpoint.shape(key) == tuple(model.get_parameter(key).shape)
    assert read_back(export(shipment, tmp_path / "model.gguf"), shipment).agrees


def test_weights_that_were_changed_after_the_export_are_noticed(folder: Path, tmp_path: Path) -> None:
    """Else the test above could not fail."""
    shipment = ship(folder, ("F16",))
    assert shipment.source is not None
    file = export(shipment, tmp_path / "model.gguf")
    rest(folder, "other.safetensors", 1.0)
    (folder / "other.safetensors").replace(folder / WHOLE)
    wrong = read_back(file, replace(shipment, source=ship(folder, ("F16",)).source)).mismatches
    assert "output_norm.weight" in {finding.name for finding in wrong}


def test_tensors_are_found_without_the_prefix_of_the_whole_model(tmp_path: Path) -> None:
    save_file({"h.0.ln_1.weight": torch.arange(3).half()}, tmp_path / WHOLE)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.shape("transformer.h.0.ln_1.weight") == (3,)
    values = checkpoint.read("transformer.h.0.ln_1.weight")
    assert values.dtype == torch.float32
    assert values.tolist() == [0, 1, 2]
    assert not checkpoint.has("transformer.h.0.ln_1.bias")
    assert checkpoint.stored_name("transformer.h.0.ln_1.bias", "h.0.ln_1.weight") == "h.0.ln_1.weight"
    with pytest.raises(InputError, match=r"has no tensor model.norm.weight"):
        checkpoint.read(NORM)


def test_a_folder_without_weights_or_with_damaged_ones_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has neither model.safetensors nor model.safetensors.index.json"):
        Checkpoint(tmp_path).shape(NORM)
    (tmp_path / WHOLE).write_bytes(b"\x08")
    with pytest.raises(InputError, match=r"model.safetensors cannot be read"):
        Checkpoint(tmp_path).shape(NORM)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"weight_map": []}'])
def test_a_damaged_index_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(InputError, match=r"index.json cannot be read"):
        loaded_files(tmp_path)


def test_a_missing_part_is_refused(folder: Path) -> None:
    split(folder)
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-2.safetensors cannot be read"):
        Checkpoint(folder).read(NORM)
