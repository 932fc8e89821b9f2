"""The numbers that llama.cpp wants beside the tensors: sizes, epsilons, rotary embeddings, windows.

Every key is one that llama.cpp reads in ``src/llama-model.cpp`` or ``src/models/``. What it does not
read but takes for granted is checked, so that no file is written that would load and compute something else.
"""

from __future__ import annotations

from typing import Any

from tightfit.exporters.gguf.architectures import Architecture, get_architecture
from tightfit.spaces import Geometry, InputError

# Layers of the one model of each family whose queries llama.cpp scales in its own way.
_LARGEST = {"gemma2": 46, "gemma3_text": 62}


def check_config(config: Any, geometry: Geometry) -> None:
    """Refuse what llama.cpp would compute differently.

    Args:
        config: the model's configuration as Transformers reads it; a key that is missing has a value that
            llama.cpp takes.
        geometry: the model's shape.

    Raises:
        InputError: llama.cpp takes another value for granted.
    """
    architecture = get_architecture(geometry.family)
    for key, allowed in architecture.requires.items():
        value = getattr(config, key, allowed[0])
        if value not in allowed:
            raise InputError(
                f"config.json: llama.cpp takes {key} = {allowed[0]!r} for granted, not {value!r}."
            )
    for key in architecture.capped:
        if getattr(config, key, 0.0) is None:
            raise InputError(
                f"config.json: llama.cpp always caps {key} of {geometry.family} models, but it is None."
            )
    if not architecture.wide_attention and _head_dim(geometry) * _heads(geometry) != geometry.hidden:
        raise InputError(
            f"config.json: llama.cpp reads {geometry.family} models only where heads times their width, "
            f"{_heads(geometry)} × {_head_dim(geometry)}, is the hidden size, {geometry.hidden}."
        )
    _check_query_scale(config, geometry)


def write_metadata(writer: Any, config: Any, geometry: Geometry) -> None:
    """Add the keys of a model's shape to a ``gguf.GGUFWriter``.

    Args:
        writer: of the architecture that :func:`get_architecture` names.
        config: the model's configuration as Transformers reads it.
        geometry: the model's shape.
    """
    architecture = get_architecture(geometry.family)
    writer.add_block_count(geometry.layers)
    writer.add_context_length(_context(architecture, geometry))
    writer.add_embedding_length(geometry.hidden)
    writer.add_feed_forward_length(_width(geometry))
    writer.add_head_count(_heads(geometry))
    writer.add_head_count_kv(geometry.attention[0].kv_heads)
    writer.add_vocab_size(geometry.vocab)
    if geometry.family == "gpt2":
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(_head_dim(geometry))
    writer.add_value_length(_head_dim(geometry))
    _write_caps(writer, config)
    _write_windows(writer, architecture, geometry)


def _heads(geometry: Geometry) -> int:
    # GPT-2 has one matrix for queries, keys and values, and heads that share the hidden size.
    queries = [x.rows for x in geometry.linears if x.module == "q_proj"]
    return (queries or [geometry.hidden])[0] // _head_dim(geometry)


def _head_dim(geometry: Geometry) -> int:
    return geometry.attention[0].head_dim


def _width(geometry: Geometry) -> int:
    return next(x.rows for x in geometry.linears if x.module in ("up_proj", "c_fc"))


def _context(architecture: Architecture, geometry: Geometry) -> int:
    """Longest context; a window that llama.cpp does not know is one, since up to it both compute the same."""
    windows = [] if architecture.windows else [x.window for x in geometry.attention if x.window is not None]
    return min([geometry.max_context, *windows])


def _write_caps(writer: Any, config: Any) -> None:
    if (cap := getattr(config, "attn_logit_softcapping", None)) is not None:
        writer.add_attn_logit_softcapping(cap)
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        writer.add_final_logit_softcapping(cap)


def _write_windows(writer: Any, architecture: Architecture, geometry: Geometry) -> None:
    if not architecture.windows:
        return
    windows = [attention.window for attention in geometry.attention]
    # Without a width llama.cpp would assume one of its own.
    writer.add_sliding_window(next((x for x in windows if x is not None), geometry.max_context))
    usual = [(layer + 1) % architecture.windows != 0 for layer in range(geometry.layers)]
    slides = [window is not None for window in windows]
    if slides != usual:
        writer.add_sliding_window_pattern(slides)


def _check_query_scale(config: Any, geometry: Geometry) -> None:
    scalar = getattr(config, "query_pre_attn_scalar", None)
    if geometry.family not in _LARGEST or scalar is None:
        return
    largest = geometry.layers == _LARGEST[geometry.family]
    expected = geometry.hidden // _heads(geometry) if largest else _head_dim(geometry)
    if scalar != expected:
        raise InputError(
            f"config.json: llama.cpp takes query_pre_attn_scalar = {expected} for granted, not {scalar}."
        )
