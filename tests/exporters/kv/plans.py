"""Plans with KV caches on their way: random ones for every target, and ones that are spelled out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.exporters.conftest import LLAMA

from tightfit.exporters import Shipment
from tightfit.spaces import KvRules, Load, Plan, WeightRules, build_space, get_target, read_geometry

CONFIG: dict[str, Any] = {
    **LLAMA,
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "max_position_embeddings": 4096,
}
"""4 layers with 2 KV heads of width 32."""

RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "any": (
        {"zeros": ("float",), "bits": (4, 8)},
        {"keep": (0.25, 1.0), "separate": True, "spread": True, "share": True, "cutoff": True},
    ),
    "vllm": ({"bits": (4, 8)}, {"bits": (8, 16)}),
    "llama.cpp": ({"types": ("Q4_0", "Q8_0")}, {"bits": (4, 5, 8, 16), "separate": True}),
}
LOAD = Load(1000, 3)


def ship_kv(target: str = "any", seed: int = 0) -> Shipment:
    """A random plan for a target."""
    weights, caches = RULES[target]
    geometry = read_geometry(CONFIG)
    space = build_space(geometry, WeightRules(**weights), get_target(target), KvRules(**caches), LOAD)
    rng = np.random.default_rng([seed, 43])
    plan = space.plan([int(rng.integers(len(decision.options))) for decision in space.decisions])
    return Shipment(space, plan, {"name": "tiny 模型", "digest": "5f" * 32, "family": "llama"})


def ship_caches(
    options: Sequence[str],
    target: str = "any",
    config: dict[str, Any] | None = None,
    load: Load = LOAD,
    weights: dict[str, Any] | None = None,
) -> Shipment:
    """A plan whose layers have these caches."""
    geometry = read_geometry(config or CONFIG)
    pins = {f"layers.{layer}.kv": option for layer, option in enumerate(options)}
    rules = KvRules(bits=(16,), pin=pins)
    space = build_space(
        geometry, WeightRules(**(weights or RULES[target][0])), get_target(target), rules, load
    )
    plan = Plan(tuple((decision.name, decision.options[-1].name) for decision in space.decisions))
    return Shipment(space, plan, {"name": "tiny", "digest": "5f" * 32, "family": geometry.family})
