"""The mixes that llama-quantize makes by itself."""

from __future__ import annotations

import numpy as np
import pytest

from tightfit.search.agents.base import History, Task
from tightfit.search.agents.llamacpp import RECIPES, recipe_levels
from tightfit.search.agents.mix import Mix
from tightfit.spaces import KvRules, Load, Space, WeightRules, build_space, get_target, read_geometry

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}
GPT2 = {"model_type": "gpt2", "n_embd": 256, "n_layer": 9, "n_head": 4, "vocab_size": 512, "n_positions": 64}
ALL = ("Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q5_0", "Q5_1", "Q8_0")


def space_of(types: tuple[str, ...] = ALL, **changes: object) -> Space:
    geometry = read_geometry({**CONFIG, **changes})
    return build_space(geometry, WeightRules(types=types), get_target("llama.cpp"))


def chosen(space: Space, name: str, module: str) -> str:
    """Types of one kind of matrix by layer: 4 for ``Q4_K``."""
    levels = recipe_levels(space, RECIPES[name])
    assert levels is not None
    pairs = zip(space.decisions, levels, strict=True)
    return "".join(d.options[level].name[1] for d, level in pairs if d.name.endswith(module))


# What llama-quantize wrote for a float32 file of this shape.
@pytest.mark.parametrize(
    ("name", "module", "types"),
    [
        ("Q3_K_M", "v_proj", "55" + 14 * "4"),
        ("Q3_K_M", "down_proj", "5" + 15 * "4"),
        ("Q3_K_M", "o_proj", 16 * "4"),
        ("Q3_K_M", "q_proj", 16 * "3"),
        ("Q3_K_M", "gate_proj", 16 * "3"),
        ("Q4_K_M", "v_proj", "6644644644644666"),
        ("Q4_K_M", "down_proj", "6644644644644666"),
        ("Q4_K_M", "up_proj", 16 * "4"),
        ("Q5_K_M", "v_proj", "6655655655655666"),
        ("Q5_K_M", "k_proj", 16 * "5"),
        ("Q5_K_M", "embed", "6"),
    ],
)
def test_types_by_layer(name: str, module: str, types: str) -> None:
    assert chosen(space_of(), name, module) == types


def test_a_fused_projection_is_treated_as_the_value_in_it() -> None:
    space = build_space(read_geometry(GPT2), WeightRules(types=ALL), get_target("llama.cpp"))
    assert chosen(space, "Q3_K_M", "c_attn") == "554444444"
    assert chosen(space, "Q4_K_M", "c_attn") == "644644666"
    assert chosen(space, "Q3_K_M", "attn.c_proj") == 9 * "4"


def test_widths_that_blocks_do_not_divide_fall_back() -> None:
    space = space_of(hidden_size=288, intermediate_size=512, num_attention_heads=9, num_key_value_heads=3)
    levels = recipe_levels(space, RECIPES["Q4_K_M"])
    assert levels is not None
    names = {d.name: d.options[level].name for d, level in zip(space.decisions, levels, strict=True)}
    assert names["embed"] == "Q8_0"
    assert names["layers.4.attn.q_proj"] == "Q5_0"
    assert names["layers.0.attn.v_proj"] == "Q8_0"
    assert names["layers.2.mlp.down_proj"] == "Q4_K"


def test_a_mix_that_needs_a_type_that_is_not_offered_takes_no_part() -> None:
    assert recipe_levels(space_of(("Q3_K", "Q4_K")), RECIPES["Q4_K_M"]) is None


def test_mixes_within_the_budget_are_baselines_by_their_names() -> None:
    space = space_of()
    levels = {name: recipe_levels(space, recipe) for name, recipe in RECIPES.items()}
    four = levels["Q4_K_M"]
    assert four is not None
    losses = [np.zeros(len(d.options)) for d in space.decisions]
    task = Task(space, space.bytes_of(four), {"fitted": losses})
    labels = {p.label: p for p in Mix().propose(task, History(), 100)}
    assert "llama.cpp Q4_K_M" in labels
    assert "llama.cpp Q3_K_M" in labels
    assert "llama.cpp Q5_K_M" not in labels
    assert labels["llama.cpp Q4_K_M"].levels == four
    assert labels["llama.cpp Q4_K_M"].kind == "mix"


def test_mixes_go_with_every_cache_where_caches_are_decided_about() -> None:
    caches = KvRules(bits=(4, 8, 16))
    space = build_space(
        read_geometry(CONFIG), WeightRules(types=ALL), get_target("llama.cpp"), caches, Load(context=64)
    )
    matrices = len(space.matrix_decisions)
    alone = recipe_levels(space_of(), RECIPES["Q4_K_M"])
    plain = recipe_levels(space, RECIPES["Q4_K_M"])
    assert plain is not None
    assert plain[:matrices] == alone
    assert [space.decisions[matrices].options[level].name for level in plain[matrices:]] == ["k16v16"]
    losses = [np.zeros(len(d.options)) for d in space.decisions]
    proposals = Mix().propose(Task(space, space.ceiling, {"fitted": losses}), History(), 100)
    named = {p.label: p.plan for p in proposals if p.label.startswith("llama.cpp")}
    assert set(named) == {
        f"llama.cpp {name} + {cache}" for name in RECIPES for cache in ("k4v4-block", "k8v8-block", "k16v16")
    }
    assert {option.name for option in space.kv_options(named["llama.cpp Q5_K_M + k8v8-block"]).values()} == {
        "k8v8-block"
    }
