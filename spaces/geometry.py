"""The shape of a model, read from its ``config.json`` alone.

No tensor is created and no deep-learning library imported, so the memory of a 70-billion-weight
model is known in milliseconds. Each supported family is one function in :data:`FAMILIES`; the
tests compare every family with the modules that Transformers builds on the meta device.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tightfit.spaces.errors import InputError, suggest

EMBED = "embed"
HEAD = "head"
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


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
        return _DTYPE_BYTES[self.dtype]

    @property
    def parameters(self) -> int:
        """Number of parameters, tied ones once, biases included."""
        return self.other + sum(x.weights + x.bias for x in self.linears if x.tied_to is None)

    def linear(self, site: str) -> Linear:
        """Return one site by its name.

        Raises:
            InputError: there is no such site.
        """
        for linear in self.linears:
            if linear.site == site:
                return linear
        raise InputError(f"no site is called {site!r}.{suggest(site, [x.site for x in self.linears])}")

    def digest(self) -> str:
        """SHA-256 of this geometry; equal digests have equal memory."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def read_geometry(config: Mapping[str, Any]) -> Geometry:
    """Read a geometry from the content of a ``config.json``.

    Raises:
        InputError: the family is not supported, or a needed key is missing or not a number.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        allowed = ", ".join(sorted(FAMILIES))
        hint = suggest(str(family), FAMILIES)
        raise InputError(f"config.json: model_type {family!r} is not supported (supported: {allowed}).{hint}")
    return FAMILIES[family](config)


def _number(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"config.json: {key!r} must be a positive whole number, but is {value!r}.")
    return value


def _dtype(config: Mapping[str, Any]) -> str:
    # Transformers 5 writes "dtype", earlier versions "torch_dtype"; old files have neither.
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in _DTYPE_BYTES:
        raise InputError(
            f"config.json: dtype {name!r} is not supported (supported: {', '.join(_DTYPE_BYTES)})."
        )
    return name


@dataclass(frozen=True)
class _Style:
    """How one Llama-shaped family differs from Llama itself."""

    qkv_bias: bool = False
    head_norm: bool = False
    norms: int = 2
    tied: bool = False
    windowed: Callable[[Mapping[str, Any], int], int | None] = lambda config, layer: None


def _llama_shaped(config: Mapping[str, Any], style: _Style) -> Geometry:
    hidden, vocab = _number(config, "hidden_size"), _number(config, "vocab_size")
    layers, width = _number(config, "num_hidden_layers"), _number(config, "intermediate_size")
    heads = _number(config, "num_attention_heads")
    kv_heads = _number(config, "num_key_value_heads", heads)
    head_dim = _number(config, "head_dim", hidden // heads)
    qkv_bias = bool(config.get("attention_bias", style.qkv_bias))
    out_bias = bool(config.get("attention_bias", False)) and config["model_type"] != "qwen2"
    mlp_bias = bool(config.get("mlp_bias", False))
    tied = bool(config.get("tie_word_embeddings", style.tied))
    linears = [Linear(EMBED, None, EMBED, "model.embed_tokens", vocab, hidden)]
    for layer in range(layers):
        shapes = (
            ("attn", "self_attn", "q_proj", heads * head_dim, hidden, qkv_bias),
            ("attn", "self_attn", "k_proj", kv_heads * head_dim, hidden, qkv_bias),
            ("attn", "self_attn", "v_proj", kv_heads * head_dim, hidden, qkv_bias),
            ("attn", "self_attn", "o_proj", hidden, heads * head_dim, out_bias),
            ("mlp", "mlp", "gate_proj", width, hidden, mlp_bias),
            ("mlp", "mlp", "up_proj", width, hidden, mlp_bias),
            ("mlp", "mlp", "down_proj", hidden, width, mlp_bias),
        )
        linears += [
            Linear(
                f"layers.{layer}.{part}.{name}",
                layer,
                name,
                f"model.layers.{layer}.{block}.{name}",
                rows,
                cols,
                bias=rows if bias else 0,
            )
            for part, block, name, rows, cols, bias in shapes
        ]
    linears.append(Linear(HEAD, None, HEAD, "lm_head", vocab, hidden, tied_to=EMBED if tied else None))
    norms = hidden * (style.norms * layers + 1) + (2 * head_dim * layers if style.head_norm else 0)
    return Geometry(
        family=str(config["model_type"]),
        hidden=hidden,
        vocab=vocab,
        dtype=_dtype(config),
        tied=tied,
        linears=tuple(linears),
        attention=tuple(Attention(kv_heads, head_dim, style.windowed(config, i)) for i in range(layers)),
        other=norms,
        max_context=_number(config, "max_position_embeddings", 2048),
    )


def _gpt2(config: Mapping[str, Any]) -> Geometry:
    hidden, vocab = _number(config, "n_embd", 768), _number(config, "vocab_size", 50257)
    layers, heads = _number(config, "n_layer", 12), _number(config, "n_head", 12)
    width, positions = _number(config, "n_inner", 4 * hidden), _number(config, "n_positions", 1024)
    tied = bool(config.get("tie_word_embeddings", True))
    linears = [Linear(EMBED, None, EMBED, "transformer.wte", vocab, hidden)]
    for layer in range(layers):
        linears += [
            Linear(
                f"layers.{layer}.{part}.{name}",
                layer,
                f"{part}.{name}" if name == "c_proj" else name,
                f"transformer.h.{layer}.{part}.{name}",
                rows,
                cols,
                bias=rows,
                transposed=True,
            )
            for part, name, rows, cols in (
                ("attn", "c_attn", 3 * hidden, hidden),
                ("attn", "c_proj", hidden, hidden),
                ("mlp", "c_fc", width, hidden),
                ("mlp", "c_proj", hidden, width),
            )
        ]
    linears.append(Linear(HEAD, None, HEAD, "lm_head", vocab, hidden, tied_to=EMBED if tied else None))
    return Geometry(
        family="gpt2",
        hidden=hidden,
        vocab=vocab,
        dtype=_dtype(config),
        tied=tied,
        linears=tuple(linears),
        attention=tuple(Attention(heads, hidden // heads) for _ in range(layers)),
        other=positions * hidden + 2 * hidden * (2 * layers + 1),
        max_context=positions,
    )


def _sliding(config: Mapping[str, Any], layer: int) -> int | None:
    """Window of a layer in families where a config may list which layers slide (Qwen, Mistral)."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return None
    types = config.get("layer_types")
    if types is not None:
        return int(window) if types[layer] == "sliding_attention" else None
    if "max_window_layers" in config and layer < int(config["max_window_layers"]):
        return None
    return int(window)


def _gemma2_window(config: Mapping[str, Any], layer: int) -> int | None:
    """Gemma 2 alternates: every even layer slides, unless the config lists the layers."""
    if config.get("layer_types") is None and layer % 2 == 1:
        return None
    return _sliding({"sliding_window": 4096, **config}, layer)


def _gemma3_window(config: Mapping[str, Any], layer: int) -> int | None:
    """Gemma 3 has one full-attention layer in six, unless the config lists the layers."""
    pattern = int(config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6)
    if config.get("layer_types") is None and (layer + 1) % pattern == 0:
        return None
    return _sliding({"sliding_window": 4096, **config}, layer)


def _with(style: _Style) -> Callable[[Mapping[str, Any]], Geometry]:
    return lambda config: _llama_shaped(config, style)


FAMILIES: dict[str, Callable[[Mapping[str, Any]], Geometry]] = {
    "llama": _with(_Style()),
    "mistral": _with(_Style(windowed=_sliding)),
    "qwen2": _with(_Style(qkv_bias=True, windowed=_sliding)),
    "qwen3": _with(_Style(head_norm=True, windowed=_sliding)),
    "gemma": _with(_Style(tied=True)),
    "gemma2": _with(_Style(norms=4, tied=True, windowed=_gemma2_window)),
    "gemma3_text": _with(_Style(norms=4, head_norm=True, tied=True, windowed=_gemma3_window)),
    "gpt2": _gpt2,
}
"""Supported families. To add one, write how its ``config.json`` gives a :class:`Geometry`."""
