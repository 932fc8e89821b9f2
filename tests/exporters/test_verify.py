"""Reading back finds whatever differs, and nothing where nothing does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from tests.exporters.gguf.tiny import ship, write_folder

from tightfit.exporters import Shipment
from tightfit.exporters.gguf import export
from tightfit.exporters.verify import ReadBack, open_gguf, read_back
from tightfit.spaces import InputError

TYPES = ("Q4_0", "Q5_0", "Q8_0", "BF16", "F16", "F32")
# One of every family, with and without biases, tied and untied.
MODELS = (
    "llama, llama3",
    "llama with biases",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt2 untied",
)


@pytest.fixture(scope="session")
def shipment_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Shipment]:
    folders: dict[str, Path] = {}

    def make(model: str = "llama with biases", seed: int = 0) -> Shipment:
        if model not in folders:
            folders[model] = write_folder(model, tmp_path_factory.mktemp("model"))
        return ship(folders[model], TYPES, seed)

    return make


@pytest.fixture
def shipment(shipment_of: Callable[..., Shipment]) -> Shipment:
    return shipment_of()


@pytest.fixture
def file(shipment: Shipment, tmp_path: Path) -> Path:
    return export(shipment, tmp_path / "model.gguf")


def wrong(read: ReadBack) -> dict[str, str]:
    """Tensor → what is wrong with it."""
    return {finding.name: "; ".join(finding.problems) for finding in read.mismatches}


def written_again(file: Path, out: Path, change: Callable[[str, Any], Iterator[tuple[str, Any]]]) -> Path:
    """Write a file once more with other tensors, in float32 or as raw blocks; metadata stays as it is."""
    reader = GGUFReader(file)
    writer = GGUFWriter(out, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            writer.add_key_value(field.name, field.contents(), kind, field.types[-1])
    for tensor in reader.tensors:
        for name, (values, kind) in change(tensor.name, (np.array(tensor.data), tensor.tensor_type)):
            writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize("model", MODELS)
def test_what_was_exported_reads_back_as_the_plan_byte_by_byte(
    model: str, shipment_of: Callable[..., Shipment], tmp_path: Path
) -> None:
    shipment = shipment_of(model)
    file = export(shipment, tmp_path / "model.gguf")
    read = read_back(file, shipment)
    assert wrong(read) == {}
    assert read.agrees
    assert read.warnings == ()
    assert read.compared == len(read.findings)
    assert read.weight_bytes == read.predicted == shipment.space.weight_bytes(shipment.plan)
    assert read.ratio == 1
    assert read.file_bytes == file.stat().st_size
    stored = {tensor.name for tensor in GGUFReader(file).tensors}
    assert {finding.name for finding in read.findings} == stored - {"rope_freqs.weight"}
    found = {finding.site: finding.found for finding in read.findings if finding.site}
    assert found == {s: o.name for s, o in shipment.space.site_options(shipment.plan).items()}


@pytest.mark.parametrize("model", ["llama with biases", "gemma2", "gpt2"])
def test_without_the_model_types_shapes_and_sizes_are_still_compared(
    model: str, shipment_of: Callable[..., Shipment], tmp_path: Path
) -> None:
    shipment = replace(shipment_of(model), source=None)
    read = read_back(export(shipment_of(model), tmp_path / "model.gguf"), shipment)
    assert read.agrees
    assert read.compared == 0
    assert "types and shapes only" in read.render()


@pytest.mark.parametrize(
    "name",
    [
        "token_embd.weight",
        "blk.1.attn_q.weight",
        "blk.2.ffn_down.bias",
        "blk.0.attn_norm.weight",
        "output.weight",
    ],
)
@pytest.mark.parametrize("place", [0, -1])
def test_one_changed_bit_of_any_tensor_is_found(
    name: str, place: int, shipment: Shipment, file: Path
) -> None:
    tensor = next(tensor for tensor in GGUFReader(file).tensors if tensor.name == name)
    content = bytearray(file.read_bytes())
    content[int(tensor.data_offset) + (place % int(tensor.n_bytes))] ^= 1
    file.write_bytes(content)
    read = read_back(file, shipment)
    assert wrong(read) == {name: f"1 of its {int(tensor.n_bytes):,} bytes are not those that were measured"}
    assert not read.agrees
    assert f"{name}: 1 of its" in read.render()
    assert read_back(file, replace(shipment, source=None)).agrees  # which is why the model is read


def test_another_plan_differs_in_exactly_the_sites_where_it_differs(
    shipment_of: Callable[..., Shipment], file: Path
) -> None:
    other = shipment_of(seed=1)
    mine, its = (s.space.site_options(s.plan) for s in (shipment_of(), other))
    read = read_back(file, other)
    assert {finding.site for finding in read.mismatches} == {site for site in mine if mine[site] != its[site]}
    for finding in read.mismatches:
        assert finding.site
        assert finding.problems == (f"is {mine[finding.site].name}, planned is {its[finding.site].name}",)
    assert read.weight_bytes == shipment_of().space.weight_bytes(shipment_of().plan) != read.predicted
    assert any("names the plan" in warning for warning in read.warnings)


def test_what_the_metadata_says_is_not_believed(shipment_of: Callable[..., Shipment], file: Path) -> None:
    """The file of one plan that claims to be that of another."""
    mine, other = shipment_of(), shipment_of(seed=1)
    content = file.read_bytes()
    assert content.count(mine.plan.digest.encode()) == 1
    file.write_bytes(content.replace(mine.plan.digest.encode(), other.plan.digest.encode()))
    assert not read_back(file, other).agrees
    honest = read_back(file, mine)
    assert honest.agrees
    (warning,) = honest.warnings
    assert (
        warning
        == f"the metadata names the plan {other.plan.short}, but it was compared with {mine.plan.short}"
    )


def test_rows_in_the_order_of_transformers_are_found(shipment: Shipment, file: Path, tmp_path: Path) -> None:
    """Every byte is there, but the heads would be rotated wrongly."""

    def undo(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        values, kind = tensor
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            values = values.reshape(-1, 8, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        yield name, (np.ascontiguousarray(values), kind)

    read = read_back(written_again(file, tmp_path / "again.gguf", undo), shipment)
    assert set(wrong(read)) == {f"blk.{i}.attn_{x}.weight" for i in range(3) for x in "qk"}


@pytest.mark.parametrize("source", [True, False])
def test_missing_and_added_tensors_are_found(
    shipment: Shipment, file: Path, tmp_path: Path, source: bool
) -> None:
    def change(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        if name == "blk.1.attn_v.weight":
            return
        yield name, tensor
        if name == "output_norm.weight":
            yield "adapter.weight", (np.zeros(64, np.float16), None)

    again = written_again(file, tmp_path / "again.gguf", change)
    read = read_back(again, shipment if source else replace(shipment, source=None))
    added = "is in the file, but not in the model" if source else "is F16, planned is F32"
    assert wrong(read) == {"blk.1.attn_v.weight": "is not in the file", "adapter.weight": added}


def test_a_type_that_was_quietly_replaced_is_found(shipment: Shipment, file: Path, tmp_path: Path) -> None:
    """A tool that falls back to another type says so at most in its log."""
    from gguf import GGMLQuantizationType, quants

    target = next(f.name for f in read_back(file, shipment).findings if f.site and f.found == "Q4_0")

    def change(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        values, kind = tensor
        if name == target:
            kind = GGMLQuantizationType.Q5_0
            values = quants.quantize(quants.dequantize(values, GGMLQuantizationType.Q4_0), kind)
        yield name, (values, kind)

    read = read_back(written_again(file, tmp_path / "again.gguf", change), shipment)
    assert wrong(read) == {target: "is Q5_0, planned is Q4_0"}
    assert read.ratio < 1


def test_a_tied_head_that_is_stored_once_more_is_found(
    shipment_of: Callable[..., Shipment], tmp_path: Path
) -> None:
    shipment = shipment_of("llama")

    def change(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        yield name, tensor
        if name == "token_embd.weight":
            yield "output.weight", tensor

    file = export(shipment, tmp_path / "model.gguf")
    read = read_back(written_again(file, tmp_path / "again.gguf", change), shipment)
    assert set(wrong(read)) == {"output.weight"}


def test_a_file_that_ends_early_anywhere_is_refused(file: Path, tmp_path: Path) -> None:
    content, cut = file.read_bytes(), tmp_path / "cut.gguf"
    start = GGUFReader(file).data_offset
    places = {0, 1, 4, 8, 23, 24, *range(30, start, 997), start - 1, start, start + 1, len(content) - 32}
    for place in sorted(places):
        cut.write_bytes(content[:place])
        with pytest.raises(InputError) as refusal:
            open_gguf(cut)
        assert str(refusal.value) == f"{cut} is no whole GGUF file: export it again."


def test_damaged_counts_are_refused_and_never_counted_out(file: Path) -> None:
    """With 2^56 more values the library would read on behind the end for years; here it is 2^24."""
    content = file.read_bytes()
    field = GGUFReader(file).fields["tokenizer.ggml.token_type"]
    place = content.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    assert int.from_bytes(content[place : place + 8], "little") == len(field.data)
    file.write_bytes(content[: place + 3] + b"\1" + content[place + 4 :])
    with pytest.raises(InputError, match="is no whole GGUF file") as refusal:
        open_gguf(file)
    assert str(refusal.value.__cause__) == "ends too early"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.gguf", "missing.gguf: there is no such file."),
        (".", "there is no such file"),
        ("foreign.gguf", "foreign.gguf is no whole GGUF file: export it again."),
    ],
)
def test_what_is_no_gguf_file_is_refused(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "foreign.gguf").write_bytes(b"PK\3\4" + bytes(range(256)) * 64)
    with pytest.raises(InputError) as refusal:
        open_gguf(tmp_path / name)
    assert words in str(refusal.value)


def test_a_plan_in_our_own_packing_is_in_no_gguf_file(
    make_shipment: Callable[..., Shipment], file: Path
) -> None:
    with pytest.raises(InputError, match=r"llama\.cpp cannot store embed as 8b-g64-float"):
        read_back(file, make_shipment("tied"))
