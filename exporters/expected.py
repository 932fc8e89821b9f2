"""The tensors that llama.cpp's file of a plan must hold: their names, types, shapes and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.exporters.base import Shipment, Source
from tightfit.exporters.checkpoint import loaded_files
from tightfit.spaces import GgmlOption, InputError, Linear

if TYPE_CHECKING:
    from gguf import TensorNameMap

_ARCHITECTURES = {
    "llama": "LLAMA",
    "mistral": "LLAMA",
    "qwen2": "QWEN2",
    "qwen3": "QWEN3",
    "gemma": "GEMMA",
    "gemma2": "GEMMA2",
    "gemma3_text": "GEMMA3",
    "gpt2": "GPT2",
}
_PAIRED = "LLAMA"  # the one that wants the rows of queries and keys by rotary pairs
_FROM_ONE = ("GEMMA", "GEMMA2", "GEMMA3")  # the ones whose norms are stored as differences from one

Bytes = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Expected:
    """One tensor that must be in the file.

    Attributes:
        shape: as of the stored matrix, rows first.
        content: gives its bytes, uint8; None where only the plan is known.
    """

    name: str
    site: str | None
    type: str
    shape: tuple[int, ...]
    bytes: int
    content: Callable[[], Bytes] | None = None


def expected_tensors(shipment: Shipment) -> list[Expected]:
    """Return the tensors that carry a plan out; without a source, those of its matrices and biases only.

    Raises:
        InputError: llama.cpp does not know the family, or cannot express the plan.
    """
    from gguf import MODEL_ARCH, get_tensor_name_map

    geometry = shipment.space.geometry
    if geometry.family not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise InputError(f"family {geometry.family} has no form in llama.cpp (families: {known}).")
    names = get_tensor_name_map(MODEL_ARCH[_ARCHITECTURES[geometry.family]], geometry.layers)
    tensors = list(_matrices(shipment, names))
    if shipment.source is not None:
        tensors += _others(shipment, shipment.source, names)
    else:
        tensors += _biases(shipment, names)
    return tensors


def _matrices(shipment: Shipment, names: TensorNameMap) -> Iterator[Expected]:
    geometry = shipment.space.geometry
    for site, option in shipment.space.site_options(shipment.plan).items():
        if not isinstance(option, GgmlOption):
            raise InputError(
                f"llama.cpp cannot store {site} as {option.name}: its file carries no such plan."
            )
        linear = geometry.linear(site)
        content = None
        if shipment.source is not None:
            content = partial(_packed_bytes, shipment, shipment.source, linear, option)
        yield Expected(
            f"{_name(names, linear.path)}.weight",
            site,
            option.type,
            (linear.rows, linear.cols),
            option.tensor_bytes(linear.rows, linear.cols),
            content,
        )


def _biases(shipment: Shipment, names: TensorNameMap) -> Iterator[Expected]:
    for linear in shipment.space.geometry.linears:
        if linear.bias:
            name = f"{_name(names, linear.path)}.bias"
            yield Expected(name, None, "F32", (linear.bias,), 4 * linear.bias)


def _others(shipment: Shipment, source: Source, names: TensorNameMap) -> Iterator[Expected]:
    """Norms, biases and positions, as the model's own files have them; kept as float32."""
    linears: dict[str, Linear] = {}
    for linear in shipment.space.geometry.linears:
        # Files of a bare decoder lack the first part of every name.
        linears |= {linear.path: linear, linear.path.partition(".")[2] or linear.path: linear}
    for key, shape, read in stored_tensors(source):
        stem, _, kind = key.rpartition(".")
        owner = linears.get(stem)
        name = names.get_name(stem)
        if name is None or (owner is not None and kind == "weight"):
            continue  # a matrix of the plan, or a buffer that llama.cpp computes itself
        values = partial(_plain_bytes, shipment, owner, key, read)
        yield Expected(f"{name}.{kind}", None, "F32", shape, 4 * int(np.prod(shape)), values)


def stored_tensors(source: Source) -> Iterator[tuple[str, tuple[int, ...], Callable[[], Any]]]:
    """Yield name, shape and a function that reads it, of every tensor that is loaded."""
    from safetensors import safe_open

    for path in loaded_files(source.folder):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118
                yield key, tuple(file.get_slice(key).get_shape()), partial(_read, str(path), key)


def _read(path: str, key: str) -> Any:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.get_tensor(key)


def _packed_bytes(shipment: Shipment, source: Source, linear: Linear, option: GgmlOption) -> Bytes:
    import torch

    codes = source.packed(linear.site, option).codes.cpu().contiguous()
    rows: Bytes = codes.view(torch.uint8).reshape(linear.rows, -1).numpy()
    return rows[_row_order(shipment, linear)].reshape(-1)


def _plain_bytes(shipment: Shipment, linear: Linear | None, key: str, read: Callable[[], Any]) -> Bytes:
    values: Bytes = read().float().numpy()
    if linear is not None:
        values = values[_row_order(shipment, linear)]
    elif _architecture(shipment) in _FROM_ONE and key.endswith("norm.weight"):
        values = values + np.float32(1)
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _row_order(shipment: Shipment, linear: Linear) -> Bytes:
    """Position in Transformers' matrix of every row of the stored one.

    Transformers rotates feature i of a head together with feature i + width/2, llama.cpp's
    ``llama`` feature 2i with 2i + 1 (``LlamaModel.permute`` in ``convert_hf_to_gguf.py``).
    """
    order = np.arange(linear.rows)
    if _architecture(shipment) == _PAIRED and linear.module in ("q_proj", "k_proj"):
        width = shipment.space.geometry.attention[linear.layer or 0].head_dim
        order = order.reshape(-1, 2, width // 2).swapaxes(1, 2).reshape(-1)
    return order


def _architecture(shipment: Shipment) -> str:
    return _ARCHITECTURES[shipment.space.geometry.family]


def _name(names: TensorNameMap, path: str) -> str:
    name = names.get_name(path)
    if name is None:
        raise InputError(f"llama.cpp has no tensor for {path}.")
    return name
