from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tightfit.spaces import FAMILIES, Geometry, InputError, read_geometry

# Sizes are odd on purpose: heads of a width that is not hidden / heads, fewer KV heads than
# heads, a vocabulary that is no power of two.
SIZES = {
    "vocab_size": 331,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 300,
}
GPT2 = {"vocab_size": 331, "n_embd": 48, "n_layer": 3, "n_head": 6}
SLIDING = {"use_sliding_window": True, "sliding_window": 33}
SLIDE, FULL = "sliding_attention", "full_attention"
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {**SIZES}),
    ("llama", {**SIZES, "head_dim": 10, "tie_word_embeddings": True}),
    ("llama", {**SIZES, "attention_bias": True, "mlp_bias": True}),
    ("llama", {**SIZES, "num_key_value_heads": None}),
    ("mistral", {**SIZES, "head_dim": 10, "sliding_window": 33}),
    ("mistral", {**SIZES, "sliding_window": None, "tie_word_embeddings": True}),
    ("mistral", {**SIZES, "attention_bias": True, "mlp_bias": True}),  # keys that Mistral ignores
    ("qwen2", {**SIZES}),
    ("qwen2", {**SIZES, **SLIDING, "max_window_layers": 4}),
    ("qwen2", {**SIZES, **SLIDING, "max_window_layers": 0}),
    ("qwen2", {**SIZES, "attention_bias": False, "tie_word_embeddings": True}),  # biased all the same
    ("qwen3", {**SIZES}),
    ("qwen3", {**SIZES, "head_dim": 10, "attention_bias": True, "tie_word_embeddings": True}),
    ("qwen3", {**SIZES, **SLIDING, "max_window_layers": 4}),
    ("qwen3", {**SIZES, **SLIDING, "layer_types": [SLIDE] * 6 + [FULL]}),
    ("gemma", {**SIZES}),
    ("gemma", {**SIZES, "head_dim": 10, "attention_bias": True, "tie_word_embeddings": False}),
    ("gemma2", {**SIZES, "sliding_window": 33}),
    ("gemma2", {**SIZES, "head_dim": 10, "attention_bias": True}),
    ("gemma2", {**SIZES, "sliding_window": 33, "layer_types": [FULL] * 6 + [SLIDE]}),
    ("gemma3_text", {**SIZES, "sliding_window": 33}),
    ("gemma3_text", {**SIZES, "sliding_window": 33, "sliding_window_pattern": 3}),
    ("gemma3_text", {**SIZES, "head_dim": 10, "attention_bias": True, "tie_word_embeddings": False}),
    ("gpt2", {**GPT2}),
    ("gpt2", {**GPT2, "n_inner": 70, "n_positions": 50, "tie_word_embeddings": False}),
]  # fmt: skip


def test_every_family_has_a_variant() -> None:
    assert {family for family, _ in VARIANTS} == set(FAMILIES)


def _id(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "-".join(key for key in value if key not in SIZES and key not in GPT2) or "plain"


@pytest.mark.parametrize(("family", "sizes"), VARIANTS, ids=_id)
@pytest.mark.parametrize("source", ["as written by hand", "to_dict", "save_pretrained"])
def test_geometry_equals_what_transformers_builds(
    family: str, sizes: dict[str, Any], source: str, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    config = AutoConfig.for_model(family, **sizes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    if source == "save_pretrained":
        config.save_pretrained(tmp_path)
        written = json.loads((tmp_path / "config.json").read_text())
    else:
        written = config.to_dict() if source == "to_dict" else {"model_type": family, **sizes}
    geometry = read_geometry(written)

    modules = dict(model.named_modules())
    for linear in geometry.linears:
        module = modules[linear.path]
        shape = (linear.cols, linear.rows) if linear.transposed else (linear.rows, linear.cols)
        assert tuple(module.weight.shape) == shape, linear.site
        bias = getattr(module, "bias", None)
        assert linear.bias == (0 if bias is None else bias.numel()), linear.site
        owner = geometry.linear(linear.tied_to).path if linear.tied_to else linear.path
        assert modules[owner].weight is module.weight
    matrices = {name for name, m in modules.items() if type(m).__name__ in ("Linear", "Conv1D", "Embedding")}
    uncompressed = {"transformer.wpe"} if family == "gpt2" else set()
    scaled = {name for name, m in modules.items() if type(m).__name__.endswith("ScaledWordEmbedding")}
    assert {linear.path for linear in geometry.linears} == (matrices | scaled) - uncompressed
    assert geometry.parameters == sum(p.numel() for p in model.parameters())

    cache = DynamicCache(config=config).layers
    assert [layer.window for layer in geometry.attention] == [
        getattr(layer, "sliding_window", None) for layer in cache
    ]
    assert geometry.layers == config.num_hidden_layers
    assert geometry.max_context == config.max_position_embeddings


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"gpt2"}))
def test_keys_that_a_config_lacks_mean_what_transformers_assumes(family: str) -> None:
    pytest.importorskip("torch")
    from transformers import AutoConfig, DynamicCache

    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sparse = {key: SIZES[key] for key in needed}
    geometry = read_geometry({"model_type": family, **sparse})
    config = AutoConfig.for_model(family, **sparse)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert geometry.tied == config.tie_word_embeddings
    assert geometry.max_context == config.max_position_embeddings
    windows = [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=config).layers]
    assert [(x.kv_heads, x.head_dim, x.window) for x in geometry.attention] == [
        (config.num_key_value_heads, head_dim, window) for window in windows
    ]


@pytest.mark.parametrize(
    ("key", "name", "size"),
    [("dtype", "bfloat16", 2), ("torch_dtype", "torch.float16", 2), ("dtype", None, 4)],
)
def test_dtype_is_read_under_both_names(
    llama: Callable[..., Geometry], key: str, name: str | None, size: int
) -> None:
    assert llama(**{"dtype": None, key: name}).dtype_bytes == size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "lama"}, r"model_type 'lama' is not supported.*Did you mean 'llama'"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"hidden_size": None}, "'hidden_size' must be a whole number"),
        ({"hidden_size": 64.0}, "'hidden_size' must be a whole number"),
        ({"hidden_size": True}, "'hidden_size' must be a whole number"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' must be .* but is 0"),
        ({"num_attention_heads": 65}, "'head_dim' must be .* but is 0"),
        ({"dtype": "int8"}, "dtype 'int8' is not supported"),
        ({"model_type": "mistral", "sliding_window": "wide"}, "'sliding_window' must be .* 'wide'"),
        ({"model_type": "gemma2", "layer_types": [SLIDE]}, "'layer_types' must list one type for each"),
        ({"model_type": "gemma2", "layer_types": 3}, "'layer_types' must list one type for each"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": None},
            "'max_window_layers'",
        ),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_by_key(
    llama: Callable[..., Geometry], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        llama(**changes)


def test_seventy_billion_weights_are_counted_without_torch(llama_70b: Path) -> None:
    code = f"""
import json, sys
from pathlib import Path
from tightfit.spaces import Budget, Load, WeightRules, build_space, get_target, kv_bytes, read_geometry
rules = WeightRules(bits=(3, 4), groups=(128,), zeros=("integer",))
geometry = read_geometry(json.loads(Path({str(llama_70b)!r}).read_text()))
space = build_space(geometry, rules, get_target("vllm"))
budget = Budget(total=40 * 2**30, context=8192)
plan = space.plan([0] * len(space.decisions))
print(json.dumps({{
    "parameters": geometry.parameters, "decisions": len(space.decisions), "floor": space.floor,
    "kv": kv_bytes(geometry, Load(8192)), "limit": budget.check(space), "bytes": space.weight_bytes(plan),
    "heavy": [m for m in ("torch", "transformers", "numpy", "scipy") if m in sys.modules],
}}))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seen = json.loads(run.stdout)
    block = 2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 8192 * 28672
    governed = 80 * block + 2 * 128256 * 8192
    norms = (2 * 80 + 1) * 8192
    assert seen["parameters"] == governed + norms == 70_553_706_496
    assert seen["decisions"] == 80 * 4 + 2
    # 3 bits each, and per group of 128 a 16-bit scale and a 3-bit zero point.
    assert seen["floor"] == seen["bytes"] == governed * (3 * 128 + 16 + 3) // (128 * 8) + 2 * norms
    assert seen["kv"] == 80 * 2 * 8 * 128 * 8192 * 2 == 2_684_354_560
    assert seen["limit"] == 40 * 2**30 - seen["kv"]
    assert seen["heavy"] == []
