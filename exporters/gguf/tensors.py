"""The tensors of a file: which there are, in which type, and how each is read when its turn comes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.exporters.checkpoint import Checkpoint
from tightfit.exporters.gguf.architectures import Architecture, get_architecture, gguf_stem
from tightfit.exporters.gguf.rotary import ROTARY_FACTORS, rotary_factors
from tightfit.spaces import EMBED, HEAD, Geometry, GgmlOption, Linear

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tightfit.compress import PackedTensor
    from tightfit.exporters.base import Source

_FLOAT = GgmlOption("F32")


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of a file.

    Attributes:
        name: llama.cpp's.
        shape: rows and columns, or the length of a vector.
        option: the type it is stored in.
        read: returns the stored values, an array of :attr:`nbytes` bytes.
    """

    name: str
    shape: tuple[int, ...]
    option: GgmlOption
    read: Callable[[], NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """Bytes of the stored values."""
        return self.option.tensor_bytes(math.prod(self.shape[:-1]), self.shape[-1])


def list_tensors(
    source: Source, geometry: Geometry, options: dict[str, GgmlOption], config: Any
) -> list[GgufTensor]:
    """Return every tensor of a file, in the order of the model, without reading any.

    Args:
        source: the model's folder and its packed matrices.
        geometry: the model's shape.
        options: site → type, for every site that owns its bytes.
        config: the model's configuration as Transformers reads it.
    """
    listing = _Listing(source, geometry, Checkpoint(source.folder), get_architecture(geometry.family))
    factors = rotary_factors(config, geometry)
    result = [listing.matrix(geometry.linear(EMBED), options[EMBED])]
    if factors is not None:
        result.append(GgufTensor(ROTARY_FACTORS, factors.shape, _FLOAT, lambda: factors))
    for linear in geometry.linears:
        if linear.layer is not None:
            result += listing.of_site(linear, options[linear.site])
    for layer in range(geometry.layers):
        for module, name in listing.architecture.norms.items():
            result += listing.plain(f"{listing.architecture.blocks}.{layer}.{module}", f"blk.{layer}.{name}")
    for module, name in listing.architecture.outside.items():
        result += listing.plain(module, name)
    if HEAD in options:
        result.append(listing.matrix(geometry.linear(HEAD), options[HEAD]))
    return result


def rotary_rows(heads: int, width: int) -> NDArray[np.int64]:
    """Return the order of a query or key matrix's rows in which the two that rotate together are neighbours.

    Transformers rotates row i of a head with row i + width/2; llama.cpp's architecture ``llama`` rotates
    row 2i with row 2i + 1 (``permute`` in ``conversion/llama.py``).
    """
    return np.arange(heads * width).reshape(heads, 2, width // 2).swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True)
class _Listing:
    source: Source
    geometry: Geometry
    weights: Checkpoint
    architecture: Architecture

    def of_site(self, linear: Linear, option: GgmlOption) -> Iterator[GgufTensor]:
        """Yield a site's matrix, and its bias if it has one."""
        yield self.matrix(linear, option)
        if linear.bias:
            path, rows = f"{linear.path}.bias", self._rows(linear)
            name = f"{gguf_stem(self.geometry.family, linear.site)}.bias"
            yield GgufTensor(
                name, (linear.bias,), _FLOAT, lambda: _ordered(self.weights.read(path).numpy(), rows)
            )

    def matrix(self, linear: Linear, option: GgmlOption) -> GgufTensor:
        rows = self._rows(linear)
        return GgufTensor(
            f"{gguf_stem(self.geometry.family, linear.site)}.weight",
            (linear.rows, linear.cols),
            option,
            lambda: _ordered(_array(self.source.packed(linear.site, option)), rows),
        )

    def plain(self, module: str, name: str) -> Iterator[GgufTensor]:
        """Yield the weight, and the bias if there is one, of a module without a site, as float32."""
        for part in ("weight", "bias"):
            path = f"{module}.{part}"
            if part == "weight" or self.weights.has(path):
                yield GgufTensor(
                    f"{name}.{part}", self.weights.shape(path), _FLOAT, partial(self._shifted, path)
                )

    def _shifted(self, path: str) -> NDArray[np.float32]:
        values: NDArray[np.float32] = self.weights.read(path).numpy() + np.float32(
            self.architecture.norm_shift
        )
        return values

    def _rows(self, linear: Linear) -> NDArray[np.int64] | None:
        if not self.architecture.interleaved or linear.module not in ("q_proj", "k_proj"):
            return None
        width = self.geometry.attention[0].head_dim
        return rotary_rows(linear.rows // width, width)


def _array(packed: PackedTensor) -> NDArray[Any]:
    """Return the stored rows of a packed matrix; numpy has no bfloat16, so that goes as 16-bit integers."""
    import torch

    codes = packed.codes.detach().cpu().reshape(packed.rows, -1)
    array: NDArray[Any] = (codes.view(torch.int16) if codes.dtype == torch.bfloat16 else codes).numpy()
    return array


def _ordered(values: NDArray[Any], rows: NDArray[np.int64] | None) -> NDArray[Any]:
    return values if rows is None else values[rows]
