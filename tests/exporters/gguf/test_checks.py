"""What llama.cpp cannot take is said from the model's small files alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.exporters.gguf.tiny import VARIANTS, byte_tokenizer, save_tokenizer, write_folder
from tokenizers import Regex, pre_tokenizers

from tightfit.exporters.gguf import check, check_shape
from tightfit.spaces import InputError, read_geometry

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
YARN = {"type": "yarn", "factor": 4.0}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_model_that_can_be_written_passes(variant: str, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of(variant)
    config = json.loads((folder / "config.json").read_text())
    check_shape(config, read_geometry(config))
    check(folder, read_geometry(config))


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2"]
)
def test_keys_that_are_left_out_are_no_reason_to_refuse(family: str) -> None:
    config = {**CONFIG, "model_type": family}
    if family == "gpt2":
        config = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
    check_shape(config, read_geometry({**config, "head_dim": 16}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "takes hidden_act = 'silu' for granted, not 'gelu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' of a llama model"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type 'longrope' of a llama model"),
        ({"partial_rotary_factor": 0.5}, "rope parameter partial_rotary_factor = 0.5 cannot be written"),
        ({"rope_scaling": {**YARN, "truncate": False}}, "rope parameter truncate = False"),
        ({"rope_scaling": "yarn"}, "rope_parameters must be an object, not 'yarn'"),
        ({"model_type": "gemma2", "final_logit_softcapping": None}, "always caps final_logit_softcapping"),
        ({"model_type": "qwen2", "head_dim": 32}, "4 × 32, is the hidden size, 64"),
        ({"model_type": "gemma2", "head_dim": 16, "query_pre_attn_scalar": 64}, "= 16 for granted, not 64"),
    ],
)
def test_a_shape_that_llama_cpp_computes_otherwise_is_refused(changes: dict[str, Any], message: str) -> None:
    config = {**CONFIG, **changes}
    with pytest.raises(InputError, match=message):
        check_shape(config, read_geometry(config))


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": None, "rope_theta": 1e4},
        {"rope_scaling": YARN},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}, "partial_rotary_factor": 1.0},
    ],
)
def test_rotary_parameters_of_any_version_are_understood(changes: dict[str, Any]) -> None:
    config = {**CONFIG, **changes}
    check_shape(config, read_geometry(config))


def test_a_tokenizer_that_llama_cpp_has_none_like_is_refused(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path)
    geometry = read_geometry(json.loads((folder / "config.json").read_text()))
    words = pre_tokenizers.Split(Regex(r"\w{1,2}|\W"), "isolated")
    odd = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    save_tokenizer(byte_tokenizer(odd), folder)
    with pytest.raises(InputError, match="cuts text into words in a way that"):
        check(folder, geometry)


def test_a_config_that_transformers_completes_is_looked_at_as_a_whole(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    with pytest.raises(InputError, match="takes hidden_act = 'silu' for granted, not 'gelu'"):
        check(folder, read_geometry(config))
    (folder / "config.json").write_text("nothing")
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        check(folder, read_geometry(config))
