"""The shape of a model: its compressible matrices, its attention layers, and everything else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property

from tightfit.spaces.errors import InputError, suggest

EMBED = "embed"
HEAD = "head"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Linear:
    """One compressible matrix: a linear layer, the embedding or the head.

    Attributes:
        site: Tightfit's name, the same in every family: ``layers.3.attn.q_proj``, ``embed``, ``head``.
        layer: index of the decoder block, or None for embedding and head.
        module: last part of the name (``q_proj``), used for tables and heat maps.
        path: module path in Transformers (``model.layers.3.self_attn.q_proj``).
        rows: output features (vocabulary size for embedding and head).
        cols: input features; groups run along this dimension.
        bias: number of bias values, kept at the base dtype.
        transposed: the stored matrix is cols × rows (GPT-2's Conv1D).
        tied_to: site that owns the same tensor; its bytes are counted there, once.
    """

    site: str
    layer: int | None
    module: str
    path: str
    rows: int
    cols: int
    bias: int = 0
    transposed: bool = False
    tied_to: str | None = None

    @property
    def weights(self) -> int:
        """Number of weights, bias excluded."""
        return self.rows * self.cols


@dataclass(frozen=True)
class Attention:
    """What one layer's KV cache depends on: heads, their width, and a sliding window if any."""

    kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True)
class Geometry:
    """Everything about a model's shape that memory accounting needs.

    Attributes:
        family: ``model_type`` of the config.
        dtype: base dtype, in which everything unquantized is stored.
        linears: compressible matrices in depth order, embedding first and head last.
        attention: one entry per decoder block.
        other: number of parameters that are never compressed (norms, learned positions).
        max_context: longest context the model was made for.
    """

    family: str
    hidden: int
    vocab: int
    dtype: str
    tied: bool
    linears: tuple[Linear, ...]
    attention: tuple[Attention, ...]
    other: int
    max_context: int

    @property
    def layers(self) -> int:
        """Number of decoder blocks."""
        return len(self.attention)

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one value of the base dtype."""
        return DTYPE_BYTES[self.dtype]

    @property
    def parameters(self) -> int:
        """Number of parameters, tied ones once, biases included."""
        return self.other + sum(x.weights + x.bias for x in self.linears if x.tied_to is None)

    @cached_property
    def _by_site(self) -> dict[str, Linear]:
        return {linear.site: linear for linear in self.linears}

    def linear(self, site: str) -> Linear:
        """Return one site by its name.

        Raises:
            InputError: there is no such site.
        """
        if site in self._by_site:
            return self._by_site[site]
        raise InputError(f"no site is called {site!r}.{suggest(site, [x.site for x in self.linears])}")

    def query_heads(self, layer: int) -> int:
        """Number of query heads of a layer; with joint projections there are as many as KV heads."""
        attention, query = self.attention[layer], self._by_site.get(f"layers.{layer}.attn.q_proj")
        return attention.kv_heads if query is None else query.rows // attention.head_dim

    def digest(self) -> str:
        """SHA-256 of this geometry; equal digests have equal memory."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
