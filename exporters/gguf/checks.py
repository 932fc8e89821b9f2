"""Saying beforehand whether plans for a model can become files at all: a search takes much longer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tightfit.exporters.gguf.metadata import check_config
from tightfit.exporters.gguf.rotary import check_rotary
from tightfit.exporters.gguf.tokenizer import read_vocabulary
from tightfit.spaces import Geometry, InputError


def check_shape(config: Mapping[str, Any], geometry: Geometry) -> None:
    """Refuse what a ``config.json`` alone shows that llama.cpp would compute differently.

    Keys that it leaves out have defaults that only Transformers knows; :func:`check` sees these too.

    Args:
        config: content of ``config.json``.
        geometry: the model's shape.

    Raises:
        InputError: llama.cpp takes another value for granted, or has no such family or scaling.
    """
    values = SimpleNamespace(**{**config, "rope_parameters": _rotary_parameters(config)})
    check_config(values, geometry)
    check_rotary(values, geometry)


def check(folder: Path, geometry: Geometry) -> None:
    """Refuse a model that llama.cpp cannot take, its tokenizer included; needs Transformers.

    Args:
        folder: with ``config.json`` and the tokenizer.
        geometry: the model's shape.

    Raises:
        InputError: as :func:`check_shape`; or llama.cpp has no such tokenizer.
    """
    config = load_config(folder)
    check_config(config, geometry)
    check_rotary(config, geometry)
    read_vocabulary(folder, config, geometry.vocab)


def load_config(folder: Path) -> Any:
    """Return a model's configuration as Transformers reads it.

    Raises:
        InputError: it cannot be read.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(f"{folder}: config.json cannot be read ({reason}).") from error


def _rotary_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return rotary parameters under the names of Transformers 5, whichever version wrote them."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise InputError(f"config.json: rope_parameters must be an object, not {given!r}.")
    nested = {key: _renamed(value) for key, value in given.items() if isinstance(value, Mapping)}
    parameters = nested or _renamed(given)
    share = config.get("partial_rotary_factor")
    return parameters if share is None or nested else {"partial_rotary_factor": share, **parameters}


def _renamed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"rope_type": parameters.get("type", "default"), **parameters}
