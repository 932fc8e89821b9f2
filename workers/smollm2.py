"""The default model: SmolLM2-135M-Instruct, unpacked from GGUF into an ordinary model folder.

The file's decoder linears are already 4-bit (``Q4_1``: groups of 32 weights on 16 evenly spaced
levels) and its tied embedding 8-bit (``Q8_0``), so a 4-bit quantizer at group 32 reproduces it
without loss. The *off-grid* model is the same one moved off those levels, for claims that must not
favour a quantizer that happens to share them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tightfit.workers.sources import SMOLLM2_CONFIG, fetch_gguf

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EMBEDDING = "model.embed_tokens.weight"
_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def write_model(folder: Path) -> None:
    """Write config, tokenizer and float32 weights of SmolLM2-135M-Instruct into a folder."""
    from safetensors.numpy import save_file
    from transformers import AutoTokenizer

    file = fetch_gguf()
    save_file(read_weights(file), folder / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    _write_config(folder)


def write_offgrid_model(folder: Path, original: Path) -> None:
    """Write the off-grid copy of a folder that :func:`write_model` wrote."""
    from safetensors.numpy import load_file, save_file

    weights = load_file(original / "model.safetensors")
    save_file(move_off_grid(weights), folder / "model.safetensors", metadata={"format": "pt"})
    for path in original.iterdir():
        if path.name not in ("model.safetensors", "config.json"):
            (folder / path.name).write_bytes(path.read_bytes())
    _write_config(folder)


def read_weights(file: Path) -> dict[str, NDArray[np.float32]]:
    """Dequantize a Llama GGUF file into tensors under their Transformers names, float32.

    llama.cpp interleaves the two halves of every rotary pair in the query and key rows; this undoes it.
    """
    from gguf import GGUFReader, dequantize

    heads = {"attn_q": SMOLLM2_CONFIG["num_attention_heads"], "attn_k": SMOLLM2_CONFIG["num_key_value_heads"]}
    weights = {}
    for tensor in GGUFReader(file).tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        part = tensor.name.removesuffix(".weight").split(".")[-1]
        if part in heads:
            rows, cols = values.shape
            pairs = values.reshape(heads[part], rows // heads[part] // 2, 2, cols)
            values = pairs.swapaxes(1, 2).reshape(rows, cols)
        weights[_transformers_name(tensor.name)] = np.ascontiguousarray(values)
    return weights


def move_off_grid(
    weights: dict[str, NDArray[np.float32]], seed: int = 0, group: int = 32
) -> dict[str, NDArray[np.float32]]:
    """Add uniform noise half a quantization step wide to every matrix, groups of 32 along its inputs.

    The noise is uniform in ±¼ step, where the step is that of the grid the matrix lies on:
    (max − min)/15 of its group for the 4-bit decoder linears, max|w|/127 for the 8-bit embedding.
    Norms stay as they are.

    Args:
        weights: float32 tensors by Transformers name; matrices are rows × cols.
        seed: every tensor draws from its own generator, derived from this seed and its position.
        group: consecutive weights of a row that share one step.
    """
    moved = {}
    for index, name in enumerate(sorted(weights)):
        values = weights[name]
        if values.ndim == 2:
            groups = values.reshape(-1, group)
            if name == _EMBEDDING:
                step = np.abs(groups).max(axis=1, keepdims=True) / 127
            else:
                step = np.ptp(groups, axis=1, keepdims=True) / 15
            draws = np.random.default_rng([seed, 1, index]).random(groups.shape, dtype=np.float32)
            values = (groups + (draws - np.float32(0.5)) * (step / 2)).reshape(values.shape)
        moved[name] = values.astype(np.float32, copy=False)
    return moved


def _transformers_name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.weight"
    return {"token_embd": _EMBEDDING, "output_norm": "model.norm.weight"}[parts[0]]


def _write_config(folder: Path) -> None:
    text = json.dumps(SMOLLM2_CONFIG, indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
