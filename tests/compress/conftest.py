"""Small models with random weights, one per family, and synthetic matrices to quantize."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tightfit.spaces import Geometry, read_geometry

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "tie_word_embeddings": False},
    "llama-tied": {**SIZES, "tie_word_embeddings": True},
    "qwen2": {**SIZES, "tie_word_embeddings": True},
    "gemma": {**SIZES},
    "gpt2": {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}


@pytest.fixture
def tiny() -> Callable[[str], tuple[nn.Module, Geometry]]:
    """A model of a family, and its geometry."""

    def build(name: str) -> tuple[nn.Module, Geometry]:
        config = AutoConfig.for_model(name.partition("-")[0], **FAMILIES[name])
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # biases start as zeros, which nothing could change
                parameter.add_(torch.linspace(-0.1, 0.1, parameter.numel()).view_as(parameter))
        return model.requires_grad_(False), read_geometry(config.to_dict())

    return build


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    """The name of each family in turn."""
    name: str = request.param
    return name


@pytest.fixture
def heavy_tailed() -> Callable[..., tuple[Tensor, Tensor]]:
    """A matrix (rows, cols) like a trained one, and importances (cols,) over three decades."""

    def draw(rows: int, cols: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        normal = torch.randn(rows, cols, generator=generator)
        spread = torch.randn(rows, cols, generator=generator).mul_(0.5).exp_()
        return normal * spread * 0.05, torch.randn(cols, generator=generator).mul_(1.5).exp_()

    return draw


@pytest.fixture
def threads() -> Iterator[None]:
    """Let a test change the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
