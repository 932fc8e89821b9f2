"""A float32 file computes what the model computes: in llama.cpp, and read back by Transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.exporters.gguf.tiny import VARIANTS, VOCAB, load, ship
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tightfit.exporters.gguf import export
from tightfit.workers.llamacpp.model import LlamaModel

LENGTH = 96
# llama.cpp looks GELU up in a table of float16 values, which Gemma and GPT-2 use.
_EXACT = ("llama", "mistral", "qwen2", "qwen3")
# Transformers reads no files of Gemma 1, and takes those of Mistral for Llama's.
_READ_BACK = [variant for variant, (family, _) in VARIANTS.items() if family not in ("gemma", "mistral")]


@pytest.mark.parametrize("variant", VARIANTS)
def test_llama_cpp_computes_the_losses_of_transformers(
    variant: str, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, ids = folder_of(variant), _ids()
    expected = _log_probs(load(folder), ids)
    with LlamaModel(export(ship(folder), tmp_path / "model.gguf"), LENGTH) as model:
        found = model.log_probs(ids)
    exact = VARIANTS[variant][0] in _EXACT
    assert np.abs(found - expected).max() < (2e-4 if exact else 2e-2)
    assert abs(_loss(found, ids) - _loss(expected, ids)) < (1e-5 if exact else 1e-4)


@pytest.mark.parametrize("variant", _READ_BACK)
def test_transformers_reads_the_same_model_back(
    variant: str, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, ids = folder_of(variant), _ids()
    again = _read_back(export(ship(folder), tmp_path / "model.gguf"), folder)
    assert np.abs(_log_probs(again, ids) - _log_probs(load(folder), ids)).max() < 1e-4


def _read_back(path: Path, folder: Path) -> torch.nn.Module:
    """The tensors of a file in a model of the original's shape, of which Transformers reads only a part."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}  # tied
    return model.eval()


def _ids() -> NDArray[np.int64]:
    return np.random.default_rng(11).integers(1, VOCAB, LENGTH)


@torch.no_grad()
def _log_probs(model: torch.nn.Module, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    logits: torch.Tensor = model(torch.from_numpy(ids)[None]).logits
    return logits[0, :-1].float().log_softmax(-1).numpy()


def _loss(log_probs: NDArray[np.float32], ids: NDArray[np.int64]) -> float:
    return float(-log_probs[np.arange(len(ids) - 1), ids[1:]].mean(dtype=np.float64))
