"""Reading a model's shape from its ``config.json`` alone.

No tensor is created and no deep-learning library imported, so the memory of a 70-billion-weight
model is known in milliseconds. Each supported family is one function in :data:`FAMILIES`; the
tests compare every family with the modules that Transformers builds on the meta device, and what
a config leaves unsaid with what Transformers then assumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tightfit.spaces.errors import InputError, suggest
from tightfit.spaces.geometry import DTYPE_BYTES, EMBED, HEAD, Attention, Geometry, Linear


def read_geometry(config: Mapping[str, Any]) -> Geometry:
    """Read a geometry from the content of a ``config.json``.

    Raises:
        InputError: the family is not supported, the weights are quantized already, or a needed key is
            missing or not a number.
    """
    if config.get("quantization_config"):
        raise InputError(
            "config.json: quantization_config says that this model is quantized already; give the "
            "unquantized one."
        )
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        allowed = ", ".join(sorted(FAMILIES))
        hint = suggest(str(family), FAMILIES)
        raise InputError(f"config.json: model_type {family!r} is not supported (supported: {allowed}).{hint}")
    return FAMILIES[family](config)


def _number(config: Mapping[str, Any], key: str, default: int | None = None, least: int = 1) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"config.json: {key!r} must be a whole number, {least} or more, but is {value!r}.")
    return value


def _dtype(config: Mapping[str, Any]) -> str:
    # Transformers 5 writes "dtype", earlier versions "torch_dtype"; old files have neither.
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise InputError(
            f"config.json: dtype {name!r} is not supported (supported: {', '.join(DTYPE_BYTES)})."
        )
    return name


@dataclass(frozen=True)
class _Style:
    """How one Llama-shaped family differs from Llama itself.

    Attributes:
        norms: normalization layers of width ``hidden`` in one block.
        head_norm: whether queries and keys are normalized per head.
        qkv_bias: whether q, k and v have biases whatever the config says.
        window: gives the sliding window of a layer.
        defaults: what Transformers assumes for keys that a ``config.json`` lacks.
        ignored: keys that Transformers does not read in this family, with the value they act as.
    """

    norms: int = 2
    head_norm: bool = False
    qkv_bias: bool = False
    window: Callable[[Mapping[str, Any], int], int | None] = lambda config, layer: None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ignored: Mapping[str, Any] = field(default_factory=dict)


def _llama_shaped(config: Mapping[str, Any], style: _Style) -> Geometry:
    config = {**style.defaults, **config, **style.ignored}
    hidden, vocab = _number(config, "hidden_size"), _number(config, "vocab_size")
    layers, width = _number(config, "num_hidden_layers"), _number(config, "intermediate_size")
    heads = _number(config, "num_attention_heads")
    kv_heads = _number(config, "num_key_value_heads", heads)
    head_dim = _number(config, "head_dim", hidden // heads)
    out_bias, mlp_bias = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    qkv_bias = out_bias or style.qkv_bias
    tied = bool(config.get("tie_word_embeddings"))
    shapes = (
        ("attn", "self_attn", "q_proj", heads * head_dim, hidden, qkv_bias),
        ("attn", "self_attn", "k_proj", kv_heads * head_dim, hidden, qkv_bias),
        ("attn", "self_attn", "v_proj", kv_heads * head_dim, hidden, qkv_bias),
        ("attn", "self_attn", "o_proj", hidden, heads * head_dim, out_bias),
        ("mlp", "mlp", "gate_proj", width, hidden, mlp_bias),
        ("mlp", "mlp", "up_proj", width, hidden, mlp_bias),
        ("mlp", "mlp", "down_proj", hidden, width, mlp_bias),
    )
    blocks = [
        Linear(
            f"layers.{layer}.{part}.{name}",
            layer,
            name,
            f"model.layers.{layer}.{block}.{name}",
            rows,
            cols,
            bias=rows if bias else 0,
        )
        for layer in range(layers)
        for part, block, name, rows, cols, bias in shapes
    ]
    embed = Linear(EMBED, None, EMBED, "model.embed_tokens", vocab, hidden)
    head = Linear(HEAD, None, HEAD, "lm_head", vocab, hidden, tied_to=EMBED if tied else None)
    norms = hidden * (style.norms * layers + 1) + (2 * head_dim * layers if style.head_norm else 0)
    return Geometry(
        family=str(config["model_type"]),
        hidden=hidden,
        vocab=vocab,
        dtype=_dtype(config),
        tied=tied,
        linears=(embed, *blocks, head),
        attention=tuple(Attention(kv_heads, head_dim, style.window(config, i)) for i in range(layers)),
        other=norms,
        max_context=_number(config, "max_position_embeddings", 2048),
    )


def _gpt2(config: Mapping[str, Any]) -> Geometry:
    hidden, vocab = _number(config, "n_embd", 768), _number(config, "vocab_size", 50257)
    layers, heads = _number(config, "n_layer", 12), _number(config, "n_head", 12)
    width, positions = _number(config, "n_inner", 4 * hidden), _number(config, "n_positions", 1024)
    tied = bool(config.get("tie_word_embeddings", True))
    shapes = (
        ("attn", "c_attn", 3 * hidden, hidden),
        ("attn", "c_proj", hidden, hidden),
        ("mlp", "c_fc", width, hidden),
        ("mlp", "c_proj", hidden, width),
    )
    blocks = [
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
        for layer in range(layers)
        for part, name, rows, cols in shapes
    ]
    embed = Linear(EMBED, None, EMBED, "transformer.wte", vocab, hidden)
    head = Linear(HEAD, None, HEAD, "lm_head", vocab, hidden, tied_to=EMBED if tied else None)
    return Geometry(
        family="gpt2",
        hidden=hidden,
        vocab=vocab,
        dtype=_dtype(config),
        tied=tied,
        linears=(embed, *blocks, head),
        attention=tuple(Attention(heads, hidden // heads) for _ in range(layers)),
        other=positions * hidden + 2 * hidden * (2 * layers + 1),
        max_context=positions,
    )


def _window(config: Mapping[str, Any], layer: int, slides: bool) -> int | None:
    """Sliding window of a layer: a ``layer_types`` list decides, and without one ``slides``."""
    if config.get("sliding_window") is None:
        return None
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list | tuple) or len(types) != config["num_hidden_layers"]:
            raise InputError(
                f"config.json: 'layer_types' must list one type for each of the "
                f"{config['num_hidden_layers']} layers, but is {types!r}."
            )
        slides = types[layer] == "sliding_attention"
    return _number(config, "sliding_window") if slides else None


def _mistral_window(config: Mapping[str, Any], layer: int) -> int | None:
    return _window(config, layer, slides=True)


def _qwen_window(config: Mapping[str, Any], layer: int) -> int | None:
    """Qwen slides only where it is told to, from layer ``max_window_layers`` upwards."""
    if not config.get("use_sliding_window"):
        return None
    return _window(config, layer, slides=layer >= _number(config, "max_window_layers", least=0))


def _gemma2_window(config: Mapping[str, Any], layer: int) -> int | None:
    """Gemma 2 alternates: every even layer slides."""
    return _window(config, layer, slides=layer % 2 == 0)


def _gemma3_window(config: Mapping[str, Any], layer: int) -> int | None:
    """Gemma 3 has one layer of full attention in six, or as ``sliding_window_pattern`` says."""
    return _window(config, layer, slides=(layer + 1) % _number(config, "sliding_window_pattern", 6) != 0)


def _with(style: _Style) -> Callable[[Mapping[str, Any]], Geometry]:
    return lambda config: _llama_shaped(config, style)


_MISTRAL = {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072}
_QWEN2 = {
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "max_position_embeddings": 32768,
}
_QWEN3 = {**_QWEN2, "head_dim": 128}
_GEMMA = {
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_GEMMA2 = {**_GEMMA, "num_key_value_heads": 4, "sliding_window": 4096}
_GEMMA3 = {**_GEMMA2, "max_position_embeddings": 131072}
_NO_MLP_BIAS = {"mlp_bias": False}
_NO_BIAS = {"mlp_bias": False, "attention_bias": False}

FAMILIES: dict[str, Callable[[Mapping[str, Any]], Geometry]] = {
    "llama": _with(_Style()),
    "mistral": _with(_Style(window=_mistral_window, defaults=_MISTRAL, ignored=_NO_BIAS)),
    "qwen2": _with(_Style(qkv_bias=True, window=_qwen_window, defaults=_QWEN2, ignored=_NO_BIAS)),
    "qwen3": _with(_Style(head_norm=True, window=_qwen_window, defaults=_QWEN3, ignored=_NO_MLP_BIAS)),
    "gemma": _with(_Style(defaults=_GEMMA, ignored=_NO_MLP_BIAS)),
    "gemma2": _with(_Style(norms=4, window=_gemma2_window, defaults=_GEMMA2, ignored=_NO_MLP_BIAS)),
    "gemma3_text": _with(
        _Style(norms=4, head_norm=True, window=_gemma3_window, defaults=_GEMMA3, ignored=_NO_MLP_BIAS)
    ),
    "gpt2": _gpt2,
}
"""Supported families. To add one, write how its ``config.json`` gives a :class:`Geometry`."""
