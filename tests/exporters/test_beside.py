"""A tokenizer of another model, and other rotary factors, are found, and nothing where all is right."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from tests.exporters.gguf.test_tokenizer import _SPECIAL, _character_tokenizer
from tests.exporters.gguf.tiny import byte_tokenizer, save_tokenizer, ship, write_folder

from tightfit.exporters import Shipment
from tightfit.exporters.gguf import export
from tightfit.exporters.verify import read_back

DROP = object()


@pytest.fixture(scope="module")
def shipment(tmp_path_factory: pytest.TempPathFactory) -> Shipment:
    """A model with a byte-level tokenizer, a chat template and rotary factors."""
    folder = write_folder("llama, llama3", tmp_path_factory.mktemp("model"))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return ship(folder, ("F16",))


@pytest.fixture(scope="module")
def characters(tmp_path_factory: pytest.TempPathFactory) -> Shipment:
    """A model with a tokenizer over characters."""
    folder = write_folder("llama", tmp_path_factory.mktemp("characters"))
    save_tokenizer(_character_tokenizer("llama"), folder, **_SPECIAL)
    return ship(folder, ("F16",))


def rewritten(
    file: Path,
    out: Path,
    keys: Mapping[str, Callable[[Any], Any]],
    tensors: Mapping[str, Callable[[Any], Any]] | None = None,
    texts: Mapping[str, str] | None = None,
) -> Path:
    """Write a file once more with other values of some keys and tensors, without them, or with more texts."""
    reader, writer = GGUFReader(file), GGUFWriter(out, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = keys.get(field.name, lambda value: value)(field.contents())
        if value is not DROP:
            writer.add_key_value(field.name, value, field.types[0], field.types[-1])
    for key, text in (texts or {}).items():
        writer.add_string(key, text)
    for tensor in reader.tensors:
        values = (tensors or {}).get(tensor.name, lambda values: values)(np.array(tensor.data))
        if values is not DROP:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize("name", ["shipment", "characters"])
def test_the_own_tokenizer_is_right(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    one = request.getfixturevalue(name)
    read = read_back(export(one, tmp_path / "model.gguf"), one)
    assert read.beside == ()
    assert read.warnings == ()
    assert read.agrees


def test_the_tokenizer_of_another_model_is_found(shipment: Shipment, tmp_path: Path) -> None:
    """Tensors and size of the vocabulary are the same, and so would be the loss over token ids."""
    assert shipment.source is not None
    folder = Path(shutil.copytree(shipment.source.folder, tmp_path / "other"))
    tokenizer = byte_tokenizer()
    trained = tokenizer.get_vocab()
    swapped = sorted(trained, key=lambda token: trained[token])[-2:]
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    ids = {token: trained[token] for token in swapped}
    for mark, token in zip("AB", swapped, strict=True):
        text = text.replace(f'"{token}": {ids[token]}', f'"{mark}{mark}{mark}": {ids[token]}')
    for mark, token in zip("AB", reversed(swapped), strict=True):
        text = text.replace(f'"{mark}{mark}{mark}": ', f'"{token}": ')
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    read = read_back(export(ship(folder, ("F16",)), tmp_path / "model.gguf"), shipment)
    assert not read.mismatches
    (words,) = read.beside
    assert words.startswith("tokenizer.ggml.tokens differs in 2 of 320 entries; number ")
    assert not read.agrees
    assert f"wrong: {words}" in read.render()
    assert read.to_dict()["agrees"] is False


@pytest.mark.parametrize(
    ("key", "change", "words"),
    [
        ("tokenizer.ggml.model", lambda _: "llama", "is 'llama', the model's is 'gpt2'"),
        ("tokenizer.ggml.model", lambda _: DROP, "is not in the file"),
        ("tokenizer.ggml.pre", lambda _: "llama-bpe", "is 'llama-bpe', the model's is 'gpt-2'"),
        ("tokenizer.ggml.pre", lambda _: DROP, "is not in the file"),
        (
            "tokenizer.ggml.tokens",
            lambda x: [*x[:-1], "zz"],
            "differs in 1 of 320 entries; number 319 is 'zz'",
        ),
        ("tokenizer.ggml.tokens", lambda x: [*x, "zz"], "has 321 entries, the model's tokenizer 320"),
        ("tokenizer.ggml.token_type", lambda x: [1, *x[1:]], "number 0 is 1, the model's is 3"),
        ("tokenizer.ggml.merges", lambda x: [x[1], x[0], *x[2:]], "differs in 2 of"),
        ("tokenizer.ggml.merges", lambda _: DROP, "is not in the file"),
        ("tokenizer.ggml.bos_token_id", lambda _: 7, "is 7, the model's is 0"),
        ("tokenizer.ggml.eos_token_id", lambda _: DROP, "is not in the file"),
        ("tokenizer.ggml.add_bos_token", lambda _: True, "is True, the model's is False"),
        ("tokenizer.ggml.add_eos_token", lambda _: True, "is True, the model's is False"),
        ("tokenizer.ggml.add_space_prefix", lambda _: True, "is True, the model's is False"),
        ("tokenizer.chat_template", lambda _: "{{ x }}", "is '{{ x }}', the model's is '{{ messages }}'"),
        ("tokenizer.chat_template", lambda _: DROP, "is not in the file"),
    ],
)
def test_one_wrong_key_is_found(
    key: str, change: Callable[[Any], Any], words: str, shipment: Shipment, tmp_path: Path
) -> None:
    file = rewritten(export(shipment, tmp_path / "model.gguf"), tmp_path / "again.gguf", {key: change})
    read = read_back(file, shipment)
    assert not read.mismatches
    (found,) = read.beside
    assert found.startswith(f"{key} ")
    assert words in found
    assert not read.agrees


@pytest.mark.parametrize("key", ["add_bos_token", "add_eos_token", "add_space_prefix", "padding_token_id"])
def test_what_llama_cpp_assumes_anyway_may_be_left_out(key: str, shipment: Shipment, tmp_path: Path) -> None:
    drop = {f"tokenizer.ggml.{key}": lambda _: DROP}
    file = rewritten(export(shipment, tmp_path / "model.gguf"), tmp_path / "again.gguf", drop)
    assert read_back(file, shipment).agrees


def test_a_template_that_the_model_does_not_have_is_found(characters: Shipment, tmp_path: Path) -> None:
    key, file = "tokenizer.chat_template", export(characters, tmp_path / "model.gguf")
    read = read_back(rewritten(file, tmp_path / "again.gguf", {}, texts={key: "{{ x }}"}), characters)
    assert read.beside == (f"{key} is in the file, but not in the model",)


@pytest.mark.parametrize(
    ("change", "right"),
    [
        (lambda x: [2 * score - 5 for score in x], True),  # another tool counts in another way
        (lambda x: [-score for score in x], False),
        (lambda x: x[:-1], False),
        (lambda x: [0.0] * len(x), False),
    ],
)
def test_scores_count_by_their_order(
    change: Callable[[Any], Any], right: bool, characters: Shipment, tmp_path: Path
) -> None:
    key = "tokenizer.ggml.scores"
    file = rewritten(export(characters, tmp_path / "model.gguf"), tmp_path / "again.gguf", {key: change})
    read = read_back(file, characters)
    assert read.agrees is right
    assert [words.partition(" ")[0] for words in read.beside] == ([] if right else [key])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x * 1.01, "does not hold the model's factors"),
        (lambda x: x[:-1], "is not 8 values in F32"),
        (lambda _: DROP, "is not in the file"),
    ],
)
def test_other_rotary_factors_are_found(
    change: Callable[[Any], Any], words: str, shipment: Shipment, tmp_path: Path
) -> None:
    name, file = "rope_freqs.weight", export(shipment, tmp_path / "model.gguf")
    read = read_back(rewritten(file, tmp_path / "again.gguf", {}, {name: change}), shipment)
    assert read.beside == (f"{name} {words}",)
    assert not read.mismatches
    assert not read.agrees
