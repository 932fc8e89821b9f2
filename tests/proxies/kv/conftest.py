"""Menus of KV options with exact bytes, and the states of a small prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from tightfit.proxies.kv import Menu
from tightfit.spaces import Attention
from tightfit.spaces.kv import KvOption

TOKENS = 512


@dataclass(frozen=True)
class States:
    """What a prompt left behind; satisfies Prefill."""

    keys: list[Tensor]
    values: list[Tensor]
    queries: list[Tensor]
    windows: list[int | None]
    scalings: list[float]


@pytest.fixture
def make_menu() -> Callable[..., Menu]:
    """Build a menu of every pair of bits with every keep share, the same in every layer."""

    def build(
        layers: int = 6,
        bits: Sequence[tuple[int, int]] = ((16, 16), (8, 8), (4, 4)),
        keeps: Sequence[float] = (0.125, 0.25, 0.5, 0.75, 1.0),
    ) -> Menu:
        options = [KvOption(k, v, keep, residual=8) for k, v in bits for keep in keeps]
        costs = np.array([option.cache_bytes(Attention(2, 32), TOKENS) for option in options])
        return Menu([costs] * layers, [options] * layers)

    return build


@pytest.fixture
def make_states() -> Callable[..., States]:
    """Build random states with few queries."""

    def build(
        layers: int = 2, tokens: int = 40, kv_heads: int = 2, heads: int = 4, window: int | None = None
    ) -> States:
        generator = torch.Generator().manual_seed(5)

        def draw(rows: int, length: int) -> list[Tensor]:
            return [torch.randn(2, rows, length, 8, generator=generator) for _ in range(layers)]

        return States(
            draw(kv_heads, tokens),
            draw(kv_heads, tokens),
            draw(heads, min(tokens, 6)),
            [window] * layers,
            [0.5] * layers,
        )

    return build
