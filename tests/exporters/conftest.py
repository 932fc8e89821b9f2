"""Plans on their way: of a fused, a tied, an untied and a Conv1D model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tightfit.exporters import Shipment
from tightfit.spaces import WeightRules, build_space, get_target, read_geometry

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 331, "n_embd": 48, "n_layer": 2, "n_head": 4}
MODELS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "tied": (LLAMA, "any", {"zeros": ("float",), "pin": {"embed": "8b-g64-float"}}),
    "fused": (LLAMA, "vllm", {"bits": (3, 4, 8)}),
    "untied": ({**LLAMA, "model_type": "qwen2", "tie_word_embeddings": False}, "any", {"bits": (4, 16)}),
    "conv1d": (GPT2, "any", {"groups": (0,), "zeros": ("none",), "exclude": ("layers.0.mlp.*",)}),
}


def ship(name: str, seed: int = 0) -> Shipment:
    config, target, rules = MODELS[name]
    space = build_space(read_geometry(config), WeightRules(**rules), get_target(target))
    rng = np.random.default_rng([seed, 41])
    levels = [int(rng.integers(len(decision.options))) for decision in space.decisions]
    model = {"name": "tiny 模型", "digest": "5f" * 32, "family": space.geometry.family}
    return Shipment(space, space.plan(levels), model)


@pytest.fixture(params=MODELS)
def shipment(request: pytest.FixtureRequest) -> Shipment:
    """A random plan of each of the models."""
    return ship(request.param)


@pytest.fixture
def make_shipment() -> Callable[..., Shipment]:
    """A random plan of a model by name, drawn from a seed."""
    return ship
