"""What stands beside the weights of a file: its tokenizer, and the factors of its rotary frequencies.

A loss is measured on token ids, so that nothing else notices a tokenizer of another model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.exporters.gguf.architectures import get_architecture
from tightfit.exporters.gguf.rotary import ROTARY_FACTORS, rotary_factors
from tightfit.exporters.gguf.tokenizer import read_vocabulary, write_vocabulary
from tightfit.spaces import Geometry, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from gguf import GGUFReader

ROPE = (ROTARY_FACTORS, "rope_factors_long.weight", "rope_factors_short.weight")
"""Tables that llama.cpp wants as tensors and Transformers computes from the config: no weights."""

_PREFIX = "tokenizer."
_SCORES = "tokenizer.ggml.scores"
# What llama.cpp assumes where a file says nothing (``llama_vocab::impl::load`` in ``llama-vocab.cpp``).
_ASSUMED: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    },
    "llama": {
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": True,
    },
}
# Text that is generated does not depend on these, and tools differ in whether they write them.
_OPTIONAL = ("tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id")
# A key that a file has beyond ours changes nothing unless it is one of these.
_TELLING = (
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.merges",
    "tokenizer.chat_template",
)


def compare_beside(reader: GGUFReader, folder: Path, geometry: Geometry) -> tuple[list[str], list[str]]:
    """Compare tokenizer and rotary factors of a file with those of a model folder.

    Returns:
        What is wrong, in words; and what could not be compared.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    wrong: list[str] = []
    unknown: list[str] = []
    try:
        wrong += _compare_tokenizer(reader, _expected_keys(folder, config, geometry))
    except InputError as error:  # only a file of another tool can have one
        unknown.append(f"the tokenizer could not be compared: {error}")
    try:
        wrong += _compare_factors(reader, rotary_factors(config, geometry))
    except InputError as error:
        unknown.append(f"the rotary embedding could not be compared: {error}")
    return wrong, unknown


def _expected_keys(folder: Path, config: Any, geometry: Geometry) -> dict[str, Any]:
    """Return what our writer says about the tokenizer of a folder."""
    from gguf import GGUFWriter

    writer = GGUFWriter(None, get_architecture(geometry.family).name)
    write_vocabulary(writer, read_vocabulary(folder, config, geometry.vocab))
    written: Mapping[str, Any] = writer.kv_data[0]
    return {key: value.value for key, value in written.items() if key.startswith(_PREFIX)}


def _compare_tokenizer(reader: GGUFReader, expected: Mapping[str, Any]) -> Iterator[str]:
    assumed = _ASSUMED[expected["tokenizer.ggml.model"]]
    for key, value in expected.items():
        field = reader.get_field(key)
        found = assumed.get(key) if field is None else field.contents()
        if found is None:
            if key not in _OPTIONAL:
                yield f"{key} is not in the file"
        elif key == _SCORES:
            yield from _compare_scores(found, value)
        elif problem := _difference(found, value):
            yield f"{key} {problem}"
    for key in _TELLING:
        if key not in expected and reader.get_field(key) is not None:
            yield f"{key} is in the file, but not in the model"


def _difference(found: Any, expected: Any) -> str | None:
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, list):
            return "is no list"
        if len(found) != len(expected):
            return f"has {len(found):,} entries, the model's tokenizer {len(expected):,}"
        differ = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
        if differ:
            first = differ[0]
            pair = f"{_brief(found[first])}, the model's is {_brief(expected[first])}"
            return f"differs in {len(differ):,} of {len(found):,} entries; number {first} is {pair}"
        return None
    return None if found == expected else f"is {_brief(found)}, the model's is {_brief(expected)}"


def _compare_scores(found: Any, expected: Sequence[float]) -> Iterator[str]:
    """Compare the order of the tokens that merges make: tools count differently, and only order matters."""
    if not isinstance(found, list) or len(found) != len(expected):
        yield f"{_SCORES} has no score for each of the model's tokens"
        return
    scores = np.asarray(expected, np.float64)
    made = np.flatnonzero(scores > scores.min())
    order = made[np.argsort(-scores[made], kind="stable")]
    falls = np.diff(np.asarray(found, np.float64)[order]) < 0
    if not np.all(falls[np.diff(scores[order]) < 0]):
        yield f"{_SCORES} joins tokens in another order than the model's tokenizer"


def _compare_factors(reader: GGUFReader, factors: Any) -> Iterator[str]:
    found = {tensor.name: tensor for tensor in reader.tensors if tensor.name in ROPE}
    for name in found:
        if name != ROTARY_FACTORS or factors is None:
            yield f"{name} is in the file, but not in the model"
    if factors is None:
        return
    tensor = found.get(ROTARY_FACTORS)
    if tensor is None:
        yield f"{ROTARY_FACTORS} is not in the file"
    elif tensor.tensor_type.name != "F32" or tensor.data.size != factors.size:
        yield f"{ROTARY_FACTORS} is not {factors.size} values in F32"
    elif not np.allclose(np.asarray(tensor.data, np.float32).reshape(-1), factors, rtol=1e-5, atol=0):
        yield f"{ROTARY_FACTORS} does not hold the model's factors"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
