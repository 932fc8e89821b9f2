"""Configs of small models, as their ``config.json`` would say, and spaces made from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tightfit.spaces import Geometry, Space, WeightRules, build_space, get_target, read_geometry

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@pytest.fixture
def llama() -> Callable[..., Geometry]:
    """Geometry of a small tied Llama model, with changes to its config."""
    return lambda **changes: read_geometry({**LLAMA, **changes})


@pytest.fixture
def space(llama: Callable[..., Geometry]) -> Callable[..., Space]:
    """Space of that model; rules by keyword, config changes as a dict."""

    def build(config: dict[str, Any] | None = None, target: str = "any", **rules: Any) -> Space:
        return build_space(llama(**(config or {})), WeightRules(**rules), get_target(target))

    return build


@pytest.fixture
def llama_70b() -> Path:
    """The ``config.json`` of a model with 80 layers and 70.6 billion weights."""
    return Path(__file__).parents[1] / "data" / "llama_70b" / "config.json"


@pytest.fixture
def llama_70b_geometry(llama_70b: Path) -> Geometry:
    """Geometry of that model."""
    return read_geometry(json.loads(llama_70b.read_text()))
