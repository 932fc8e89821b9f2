"""The structs of llama.cpp that are passed by value, as ``include/llama.h`` has them.

They change between builds without notice, and a field in the wrong place is a crash or a wrong number.
So :func:`check` compares what the library's own defaults read back as with what the tested build gives.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable, Mapping

TESTED = "2026.10.11549"
"""Version of the ``xllamacpp`` wheel, llama.cpp b11549, that these structs belong to."""

F32 = 0
"""``GGML_TYPE_F32``."""

_F16 = 1
_RESERVE = 256  # bytes that a longer struct of another build may write without harm


class ModelParams(c.Structure):
    """``struct llama_model_params``."""

    _fields_ = (
        ("devices", c.c_void_p),
        ("tensor_buft_overrides", c.c_void_p),
        ("n_gpu_layers", c.c_int32),
        ("split_mode", c.c_int),
        ("load_mode", c.c_int),
        ("lazy_mode", c.c_int),
        ("main_gpu", c.c_int32),
        ("tensor_split", c.c_void_p),
        ("progress_callback", c.c_void_p),
        ("progress_callback_user_data", c.c_void_p),
        ("kv_overrides", c.c_void_p),
        ("vocab_only", c.c_bool),
        ("check_tensors", c.c_bool),
        ("use_extra_bufts", c.c_bool),
        ("no_host", c.c_bool),
        ("no_alloc", c.c_bool),
        ("load_mtp", c.c_bool),
        ("reserve", c.c_ubyte * _RESERVE),
    )


class ContextParams(c.Structure):
    """``struct llama_context_params``."""

    _fields_ = (
        ("n_ctx", c.c_uint32),
        ("n_batch", c.c_uint32),
        ("n_ubatch", c.c_uint32),
        ("n_seq_max", c.c_uint32),
        ("n_rs_seq", c.c_uint32),
        ("n_outputs_max", c.c_uint32),
        ("n_outputs_max_per_seq", c.c_uint32),
        ("n_threads", c.c_int32),
        ("n_threads_batch", c.c_int32),
        ("ctx_type", c.c_int),
        ("rope_scaling_type", c.c_int),
        ("pooling_type", c.c_int),
        ("attention_type", c.c_int),
        ("flash_attn_type", c.c_int),
        ("rope_freq_base", c.c_float),
        ("rope_freq_scale", c.c_float),
        ("yarn_ext_factor", c.c_float),
        ("yarn_attn_factor", c.c_float),
        ("yarn_beta_fast", c.c_float),
        ("yarn_beta_slow", c.c_float),
        ("yarn_orig_ctx", c.c_uint32),
        ("defrag_thold", c.c_float),
        ("cb_eval", c.c_void_p),
        ("cb_eval_user_data", c.c_void_p),
        ("type_k", c.c_int),
        ("type_v", c.c_int),
        ("moe_cache_size", c.c_size_t),
        ("abort_callback", c.c_void_p),
        ("abort_callback_data", c.c_void_p),
        ("embeddings", c.c_bool),
        ("offload_kqv", c.c_bool),
        ("no_perf", c.c_bool),
        ("op_offload", c.c_bool),
        ("swa_full", c.c_bool),
        ("kv_unified", c.c_bool),
        ("samplers", c.c_void_p),
        ("n_samplers", c.c_size_t),
        ("ctx_other", c.c_void_p),
        ("reserve", c.c_ubyte * _RESERVE),
    )


class Batch(c.Structure):
    """``struct llama_batch``; without ``pos`` tokens follow those in the cache, all in sequence 0."""

    _fields_ = (
        ("n_tokens", c.c_int32),
        ("token", c.POINTER(c.c_int32)),
        ("embd", c.c_void_p),
        ("pos", c.c_void_p),
        ("n_seq_id", c.c_void_p),
        ("seq_id", c.c_void_p),
        ("logits", c.c_char_p),
    )


_UNSET = -1
_LAYER_SPLIT = _LAZY_AUTO = 1

MODEL_DEFAULTS: Mapping[str, object] = {
    "n_gpu_layers": _UNSET,
    "split_mode": _LAYER_SPLIT,
    "load_mode": _UNSET,
    "lazy_mode": _LAZY_AUTO,
    "use_extra_bufts": True,
}
"""Defaults of the tested build (``llama_model_default_params``); all others are zero."""

CONTEXT_DEFAULTS: Mapping[str, object] = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "rope_scaling_type": _UNSET,
    "pooling_type": _UNSET,
    "attention_type": _UNSET,
    "flash_attn_type": _UNSET,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "defrag_thold": -1.0,
    "type_k": _F16,
    "type_v": _F16,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
}
"""Defaults of the tested build (``llama_context_default_params``); all others are zero."""


def check(params: ModelParams | ContextParams) -> str | None:
    """Say which default of a library is not the tested build's, or return None where all are."""
    expected = MODEL_DEFAULTS if isinstance(params, ModelParams) else CONTEXT_DEFAULTS
    for name in _names(params):
        found = getattr(params, name)
        if (found or 0) != expected.get(name, 0):
            return f"{name} is {found} instead of {expected.get(name, 0)}"
    return None


def _names(params: ModelParams | ContextParams) -> Iterable[str]:
    return (field[0] for field in params._fields_ if field[0] != "reserve")
