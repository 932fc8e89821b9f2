"""Files as they lie on the disk: types, bytes, size, origin, and what is left where writing fails."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tests.exporters.gguf.tiny import load, ship, tokenize, write_folder

import tightfit
from tightfit.exporters import Shipment, Source
from tightfit.exporters.gguf import export, file_bytes, gguf_name, predicted_bytes
from tightfit.exporters.gguf.tensors import rotary_rows
from tightfit.spaces import GGML_TYPES, InputError, Option, Plan

FolderOf = Callable[[str], Path]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama model whose widths take every type."""
    folder = tmp_path_factory.mktemp("wide")
    return write_folder(
        "llama", folder, hidden_size=256, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4
    )


@pytest.mark.parametrize("seed", range(3))
def test_every_matrix_has_the_type_and_the_values_of_the_plan(wide: Path, seed: int, tmp_path: Path) -> None:
    shipment = ship(wide, tuple(GGML_TYPES), seed)
    geometry, read = shipment.space.geometry, _read(export(shipment, tmp_path / "model.gguf"))
    for site, option in shipment.space.site_options(shipment.plan).items():
        tensor, linear = read.pop(gguf_name("llama", site)), geometry.linear(site)
        assert tensor.tensor_type.name == option.name
        assert tensor.n_bytes == option.tensor_bytes(linear.rows, linear.cols)
        assert list(tensor.shape) == [linear.cols, linear.rows]
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if linear.module in ("q_proj", "k_proj"):
            values = values[np.argsort(rotary_rows(linear.rows // 64, 64))]
        assert np.array_equal(values, _source(shipment).packed(site, option).dequantize().numpy())
    assert {tensor.tensor_type.name for tensor in read.values()} == {"F32"}
    assert sum(tensor.n_bytes for tensor in read.values()) == shipment.space.fixed_bytes


@pytest.mark.parametrize("variant", ["llama with biases", "llama, llama3", "gemma3", "gpt2 untied"])
def test_the_size_is_known_beforehand(variant: str, folder_of: FolderOf, tmp_path: Path) -> None:
    for types in (("F32",), ("Q8_0", "Q4_1", "F16")):
        shipment = ship(folder_of(variant), types)
        path = export(shipment, tmp_path / "model.gguf")
        assert predicted_bytes(shipment) == path.stat().st_size
        reader = gguf.GGUFReader(path)
        extra = 4 * 8 if variant == "llama, llama3" else 0
        weights = shipment.space.weight_bytes(shipment.plan) + extra
        assert sum(tensor.n_bytes for tensor in reader.tensors) == weights
        padded = file_bytes(reader.data_offset, [int(tensor.n_bytes) for tensor in reader.tensors])
        assert padded == path.stat().st_size


def test_the_size_is_told_without_packing_anything(folder_of: FolderOf) -> None:
    shipment = ship(folder_of("llama"))
    expected = predicted_bytes(shipment)
    assert predicted_bytes(_with_source(shipment, packed=_unwilling)) == expected


def test_a_file_says_where_it_comes_from_and_nothing_of_machine_or_time(
    folder_of: FolderOf, tmp_path: Path
) -> None:
    shipment = ship(folder_of("llama"), ("Q8_0", "F16"))
    fields = gguf.GGUFReader(export(shipment, tmp_path / "model.gguf")).fields
    assert fields["general.name"].contents() == "tiny 模型"
    local = {**shipment.model, "name": str(tmp_path / "elsewhere" / "tiny 模型")}
    again = export(dataclasses.replace(shipment, model=local), tmp_path / "again.gguf")
    assert again.read_bytes() == (tmp_path / "model.gguf").read_bytes()
    assert fields["tightfit.plan"].contents() == shipment.plan.digest
    assert fields["tightfit.model"].contents() == "5f" * 32
    assert fields["tightfit.version"].contents() == tightfit.__version__
    elsewhere = shutil.copytree(folder_of("llama"), tmp_path / "elsewhere")
    again = export(ship(elsewhere, ("Q8_0", "F16")), tmp_path / "again.gguf")
    assert again.read_bytes() == (tmp_path / "model.gguf").read_bytes()


@pytest.mark.parametrize(
    ("types", "name"), [(("F32",), "ALL_F32"), (("Q8_0",), "MOSTLY_Q8_0"), (("BF16",), "MOSTLY_BF16")]
)
def test_the_file_type_is_that_of_most_weights(
    types: tuple[str, ...], name: str, folder_of: FolderOf, tmp_path: Path
) -> None:
    fields = gguf.GGUFReader(export(ship(folder_of("llama"), types), tmp_path / "model.gguf")).fields
    assert fields["general.file_type"].contents() == gguf.LlamaFileType[name]


def test_the_file_type_of_k_quants(wide: Path, tmp_path: Path) -> None:
    fields = gguf.GGUFReader(export(ship(wide, ("Q4_K",)), tmp_path / "model.gguf")).fields
    assert fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_K_S


def test_a_model_in_many_files_gives_the_same_bytes(folder_of: FolderOf, tmp_path: Path) -> None:
    whole = folder_of("qwen2")
    parts = shutil.copytree(whole, tmp_path / "parts", ignore=shutil.ignore_patterns("*.safetensors"))
    load(whole).save_pretrained(parts, max_shard_size="50KB")
    assert len(list(parts.glob("*.safetensors"))) > 2
    paths = [export(ship(folder), tmp_path / f"{folder.name}.gguf") for folder in (whole, parts)]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_norms_at_half_precision_are_widened(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = shutil.copytree(folder_of("gemma2"), tmp_path / "half")
    half = {name: x.half() for name, x in load_file(folder / "model.safetensors").items()}
    save_file(half, folder / "model.safetensors", {"format": "pt"})
    read = _read(export(ship(folder), tmp_path / "model.gguf"))
    expected = half["model.layers.1.post_feedforward_layernorm.weight"].float().numpy() + 1
    assert np.array_equal(read["blk.1.post_ffw_norm.weight"].data, expected)


def test_the_matrices_are_packed_one_after_the_other(folder_of: FolderOf, tmp_path: Path) -> None:
    shipment, asked = ship(folder_of("llama")), []
    packed = _source(shipment).packed

    def note(site: str, option: Option) -> Any:
        asked.append(site)
        return packed(site, option)

    export(_with_source(shipment, packed=note), tmp_path / "model.gguf")
    assert asked == list(shipment.space.site_options(shipment.plan))


def test_a_disk_that_is_too_small_is_found_out_before_packing(
    folder_of: FolderOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    shipment, out = _with_source(ship(folder_of("llama")), packed=_unwilling), tmp_path / "model.gguf"
    out.write_text("of an earlier run")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (predicted_bytes(shipment) - 1, limits[1]))
    try:
        with pytest.raises(InputError, match=r"model.gguf cannot be written \(File too large\)"):
            export(shipment, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert out.read_text() == "of an earlier run"
    assert list(tmp_path.iterdir()) == [out]


def test_a_failure_half_way_leaves_the_earlier_file_and_no_other(folder_of: FolderOf, tmp_path: Path) -> None:
    shipment, out = ship(folder_of("llama")), tmp_path / "model.gguf"
    packed = _source(shipment).packed

    def fail(site: str, option: Option) -> Any:
        if site == "layers.1.mlp.up_proj":
            raise InputError("the cache is gone.")
        return packed(site, option)

    out.write_text("of an earlier run")
    with pytest.raises(InputError, match="the cache is gone"):
        export(_with_source(shipment, packed=fail), out)
    assert out.read_text() == "of an earlier run"
    assert list(tmp_path.iterdir()) == [out]


def test_a_matrix_of_other_bytes_than_charged_is_not_written(folder_of: FolderOf, tmp_path: Path) -> None:
    shipment = ship(folder_of("llama"))
    packed = _source(shipment).packed
    wrong = _with_source(shipment, packed=lambda site, _: packed("layers.0.attn.k_proj", _))
    with pytest.raises(ValueError, match=r"token_embd.weight has \d+ bytes, not the \d+ charged"):
        export(wrong, tmp_path / "model.gguf")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_refused(folder_of: FolderOf, tmp_path: Path) -> None:
    shipment = ship(folder_of("llama"))
    foreign = dataclasses.replace(shipment, plan=Plan(shipment.plan.choices[1:]))
    for broken, message in (
        (dataclasses.replace(shipment, source=None), "this plan comes without its model"),
        (foreign, "the plan has no choice for embed"),
        (_with_source(shipment, folder=tmp_path), "config.json cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            export(broken, tmp_path / "model.gguf")
    with pytest.raises(InputError, match="is a folder: name the file to write"):
        export(shipment, tmp_path)
    with pytest.raises(InputError, match=r"missing/a.gguf cannot be written \(No such file or directory\)"):
        export(shipment, tmp_path / "missing" / "a.gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_the_default_model_in_a_mix_of_types(tmp_path: Path) -> None:
    from tightfit.workers.models import load_model, prepare_alias

    folder = prepare_alias("smollm2-135m")
    shipment = ship(folder, ("Q4_K", "Q6_K", "Q8_0", "F16", "BF16"))
    path = export(shipment, tmp_path / "model.gguf")
    assert predicted_bytes(shipment) == path.stat().st_size
    read = _read(path)
    for site, option in shipment.space.site_options(shipment.plan).items():
        assert read[gguf_name("llama", site)].tensor_type.name == option.name
    total = sum(tensor.n_bytes for tensor in read.values())
    assert total == shipment.space.weight_bytes(shipment.plan)
    tokenizer = load_model("smollm2-135m").tokenizer
    texts = ["Hello, world!", "  It's 12345\n\n\tnaïve façade 我 🚀", "<|im_start|>user\nHi<|im_end|>"]
    assert tokenize(path, texts) == [tokenizer(text)["input_ids"] for text in texts]


def _read(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def _source(shipment: Shipment) -> Source:
    assert shipment.source is not None
    return shipment.source


def _with_source(shipment: Shipment, **changes: Any) -> Shipment:
    return dataclasses.replace(shipment, source=dataclasses.replace(_source(shipment), **changes))


def _unwilling(site: str, option: Option) -> Any:
    raise AssertionError(f"{site} must not be packed")
