"""The tests' model as GGUF files, written here so that what reads them is tested by itself."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from safetensors.numpy import load_file

from tightfit.workers.models import load_model
from tightfit.workers.text import Window


@pytest.fixture(scope="session")
def float_file(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests' model in float32."""
    return write_llama(
        Path(tiny_model), tmp_path_factory.mktemp("gguf") / "f32.gguf", GGMLQuantizationType.F32
    )


@pytest.fixture(scope="session")
def coarse_file(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests' model with 4-bit matrices."""
    return write_llama(
        Path(tiny_model), tmp_path_factory.mktemp("gguf") / "q4.gguf", GGMLQuantizationType.Q4_0
    )


@pytest.fixture(scope="session")
def windows() -> list[Window]:
    """Two documents in three windows, as long as the model can take."""
    rng = np.random.default_rng([5, 43])
    return [Window(name, rng.integers(0, 512, size)) for name, size in (("a", 64), ("b", 50), ("a", 30))]


@pytest.fixture(scope="session")
def references(tiny_model: str, windows: list[Window]) -> list[torch.Tensor]:
    """Transformers' log-probabilities of every next token."""
    model = load_model(tiny_model).model
    ids = [torch.from_numpy(window.tokens).unsqueeze(0) for window in windows]
    return [torch.log_softmax(model(input_ids=x).logits[0, :-1].float(), dim=-1) for x in ids]


@pytest.fixture(scope="session")
def endless_file(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests' model with a context that takes minutes to fill."""
    out = tmp_path_factory.mktemp("gguf") / "endless.gguf"
    return write_llama(Path(tiny_model), out, GGMLQuantizationType.F32, context=2**17)


def write_llama(folder: Path, out: Path, kind: GGMLQuantizationType, context: int | None = None) -> Path:
    """Write a Llama model as GGUF with all of its matrices in one type."""
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = context or config["max_position_embeddings"]
    writer = GGUFWriter(out, "llama")
    _write_shape(writer, config)
    _write_tokens(writer, json.loads((folder / "tokenizer.json").read_text()), config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weight in load_file(folder / "model.safetensors").items():
        ours = names.get_name(name, try_suffixes=(".weight",))
        if count := heads.get(name.split(".")[-2]):
            weight = interleave(weight, count)
        to = kind if weight.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(ours, gguf.quants.quantize(weight, to), raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order the rows of queries or keys as llama.cpp's converter does (``LlamaModel.permute``)."""
    rows, cols = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def _write_shape(writer: GGUFWriter, config: dict) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])


def _write_tokens(writer: GGUFWriter, tokenizer: dict, size: int) -> None:
    tokens, kinds = [f"[PAD{i}]" for i in range(size)], [TokenType.UNUSED] * size
    for token, i in tokenizer["model"]["vocab"].items():
        tokens[i], kinds[i] = token, TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]], kinds[added["id"]] = added["content"], TokenType.CONTROL
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
