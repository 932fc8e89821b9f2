"""Rotary position embeddings as llama.cpp is told of them: base, scaling, and factors per frequency."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.spaces import Geometry, InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROTARY_FACTORS = "rope_freqs.weight"
"""Tensor that divides each rotary frequency."""

_ALLOWED = ("default", "linear", "llama3", "yarn")
# What llama.cpp computes of its own accord for yarn; other values would need a check of their own.
_YARN_USUAL = {"attention_factor": None, "mscale": None, "mscale_all_dim": None, "truncate": True}


def write_rotary(writer: Any, config: Any, geometry: Geometry) -> None:
    """Add the keys of the rotary embedding to a ``gguf.GGUFWriter``; nothing where there is none.

    Raises:
        InputError: llama.cpp has no such scaling for this family.
    """
    parameters = _parameters(config)
    if not parameters:
        return
    kind = _kind(parameters, geometry)
    writer.add_rope_dimension_count(geometry.attention[0].head_dim)
    writer.add_rope_freq_base(float(parameters["rope_theta"]))
    if (local := _local(config)) is not None:
        writer.add_rope_freq_base_swa(float(local["rope_theta"]))
    if kind in ("linear", "yarn"):
        _write_scaling(writer, kind, parameters)


def check_rotary(config: Any, geometry: Geometry) -> None:
    """Refuse a rotary embedding that llama.cpp cannot compute.

    Raises:
        InputError: llama.cpp has no such scaling for this family.
    """
    _kind(_parameters(config), geometry)
    _local(config)


def rotary_factors(config: Any, geometry: Geometry) -> NDArray[np.float32] | None:
    """Return what divides each rotary frequency, shape (head width / 2,), or None without ``llama3`` scaling.

    Long wavelengths are stretched by the factor, short ones kept, those between interpolated (Llama 3.1;
    ``_compute_llama3_parameters`` of Transformers).
    """
    parameters = _parameters(config)
    if _kind(parameters, geometry) != "llama3":
        return None
    width, base = geometry.attention[0].head_dim, float(parameters["rope_theta"])
    factor, original = float(parameters["factor"]), float(parameters["original_max_position_embeddings"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    wavelength = 2 * math.pi * base ** (np.arange(0, width, 2) / width)
    kept = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - kept) / factor + kept)).astype(np.float32)


def _parameters(config: Any) -> Mapping[str, Any]:
    """Return the parameters of layers that attend to the whole context."""
    parameters: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    full: Mapping[str, Any] = parameters.get("full_attention", parameters)
    return full


def _local(config: Any) -> Mapping[str, Any] | None:
    """Return the parameters of layers with a sliding window, where these have their own."""
    local: Mapping[str, Any] | None = (getattr(config, "rope_parameters", None) or {}).get(
        "sliding_attention"
    )
    if local is not None and local.get("rope_type", "default") != "default":
        raise InputError("config.json: llama.cpp scales no rotary embedding of layers with a sliding window.")
    return local


def _kind(parameters: Mapping[str, Any], geometry: Geometry) -> str:
    kind = str(parameters.get("rope_type", "default"))
    if kind not in _ALLOWED or (kind == "llama3" and geometry.family not in ("llama", "mistral")):
        raise InputError(
            f"config.json: rope_type {kind!r} of a {geometry.family} model cannot be written for llama.cpp "
            f"(allowed: {', '.join(_ALLOWED)}; llama3 for llama and mistral only)."
        )
    usual = {"partial_rotary_factor": 1.0, **(_YARN_USUAL if kind == "yarn" else {})}
    for key, value in usual.items():
        if parameters.get(key, value) != value:
            raise InputError(
                f"config.json: rope parameter {key} = {parameters[key]!r} cannot be written for llama.cpp "
                f"(allowed: {value!r})."
            )
    return kind


def _write_scaling(writer: Any, kind: str, parameters: Mapping[str, Any]) -> None:
    from gguf import RopeScalingType

    writer.add_rope_scaling_type(RopeScalingType(kind))
    writer.add_rope_scaling_factor(float(parameters["factor"]))
    if kind != "yarn":
        return
    writer.add_rope_scaling_orig_ctx_len(int(parameters["original_max_position_embeddings"]))
    writer.add_rope_scaling_yarn_beta_fast(float(parameters.get("beta_fast") or 32.0))
    writer.add_rope_scaling_yarn_beta_slow(float(parameters.get("beta_slow") or 1.0))
