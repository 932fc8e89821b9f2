"""Random models of every family as model folders, and plans of them on their way to llama.cpp."""

from __future__ import annotations

import ctypes as c
import dataclasses
import json
import random
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from tightfit.compress import PackedTensor, compress_matrix
from tightfit.exporters import Shipment, Source
from tightfit.spaces import Option, WeightRules, build_space, get_target, read_geometry
from tightfit.workers.llamacpp.engine import Library
from tightfit.workers.llamacpp.library import load_library

VOCAB = 320
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "initializer_range": 0.15,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500.0,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_SQUARE = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 20}
_CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
_TURNS = ["full_attention", "sliding_attention", "full_attention"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama with biases": (
        "llama",
        {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    ),
    "llama with wide heads": ("llama", {"head_dim": 32, "num_key_value_heads": 4}),
    "llama, llama3": ("llama", {"rope_parameters": _LLAMA3}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "llama, yarn": ("llama", {"rope_parameters": _YARN}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral with a window": ("mistral", {"sliding_window": 100}),
    "qwen2": ("qwen2", {"tie_word_embeddings": False}),
    "qwen2, yarn": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": _YARN}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "gemma": ("gemma", {"head_dim": 32}),
    "gemma2": ("gemma2", _SQUARE),
    "gemma2 in other turns": ("gemma2", {**_SQUARE, **_CAPS, "layer_types": _TURNS}),
    "gemma3": ("gemma3_text", {**_SQUARE, "num_hidden_layers": 7}),
    "gemma3 in other turns, linear": (
        "gemma3_text",
        {
            **_SQUARE,
            "layer_types": _TURNS,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        },
    ),
    "gpt2": ("gpt2", {}),
    "gpt2 untied": ("gpt2", {"tie_word_embeddings": False, "n_inner": 160}),
}
_GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}


def texts() -> list[str]:
    """Random words and numbers to train a tokenizer with."""
    rng = random.Random(7)
    words = ["".join(rng.choices("etaoinshr", k=rng.randint(1, 6))) for _ in range(80)]
    line = lambda: " ".join(rng.choice(words) + rng.choice(["", ",", ".\n", " 12", "'s"]) for _ in range(40))
    return [line() for _ in range(60)] + [string.printable]


def byte_tokenizer(pre_tokenizer: Any = None) -> Tokenizer:
    """Train a byte-level tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 8, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, **special: Any) -> None:
    """Write a tokenizer as Transformers does."""
    names = special or {"bos_token": "<|end|>", "eos_token": "<|end|>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def write_folder(variant: str, folder: Path, **changes: Any) -> Path:
    """Write a random model with a tokenizer, or one that differs from a variant in some keys."""
    family, keys = VARIANTS[variant]
    base = {**_GPT2, **{k: v for k, v in _SMALL.items() if k in _COMMON}} if family == "gpt2" else _SMALL
    config = AutoConfig.for_model(family, **{**base, **keys, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # norms of ones and biases of zeros would hide mistakes
                    parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    save_tokenizer(byte_tokenizer(), folder)
    return folder


_COMMON = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range")


def load(folder: Path) -> Any:
    """Return the float32 model of a folder."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def packer(folder: Path) -> Callable[[str, Option], PackedTensor]:
    """Return a function that packs the matrices of a model folder, each option of a site once."""
    geometry = read_geometry(json.loads((folder / "config.json").read_text()))
    model, packed = load(folder), {}

    def pack(site: str, option: Option) -> PackedTensor:
        linear = geometry.linear(site)
        if (site, option) not in packed:
            weight = model.get_submodule(linear.path).weight.detach()
            weight = weight.T if linear.transposed else weight
            importance = torch.linspace(0.5, 2.0, linear.cols)
            packed[site, option] = compress_matrix(weight, option, importance)
        return packed[site, option]

    return pack


def ship(folder: Path, types: Sequence[str] = ("F32",), seed: int = 0, **keys: Any) -> Shipment:
    """Return a random plan over some types, of a model folder."""
    geometry = read_geometry(json.loads((folder / "config.json").read_text()))
    space = build_space(geometry, WeightRules(types=tuple(types)), get_target("llama.cpp"))
    rng = np.random.default_rng([seed, 47])
    plan = space.plan([int(rng.integers(len(decision.options))) for decision in space.decisions])
    model = {"name": "tiny 模型", "digest": "5f" * 32, "family": geometry.family}
    return dataclasses.replace(Shipment(space, plan, model, Source(folder, packer(folder), {})), **keys)


def tokenize(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens that llama.cpp makes of texts, special ones recognized and added."""
    library = load_library()
    _declare(library)
    params = library.model_params()
    params.vocab_only = True
    model = library.model_load_from_file(str(path).encode(), params)
    assert model, library.reason()
    vocabulary, result = library.model_get_vocab(model), []
    for text in texts:
        data = text.encode()
        out = (c.c_int32 * (2 * len(data) + 8))()
        count = library.tokenize(vocabulary, data, len(data), out, len(out), True, True)
        result.append(list(out[:count]))
    library.model_free(model)
    return result


def _declare(library: Library) -> None:
    numbers = c.POINTER(c.c_int32)
    library.tokenize.argtypes = [c.c_void_p, c.c_char_p, c.c_int32, numbers, c.c_int32, c.c_bool, c.c_bool]
    library.tokenize.restype = c.c_int32
