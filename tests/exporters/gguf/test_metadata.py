"""What llama.cpp takes for granted is checked; the rest of the shape is in the losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from tests.exporters.gguf.tiny import ship, write_folder

from tightfit.exporters.gguf import export
from tightfit.spaces import InputError


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("llama", {"hidden_act": "gelu"}, "takes hidden_act = 'silu' for granted, not 'gelu'"),
        ("qwen2", {"num_attention_heads": 2, "head_dim": 16}, "2 × 16, is the hidden size, 64"),
        ("qwen3", {"attention_bias": True}, "takes attention_bias = False for granted, not True"),
        ("gemma", {"tie_word_embeddings": False}, "takes tie_word_embeddings = True for granted"),
        ("gemma2", {"query_pre_attn_scalar": 64}, "query_pre_attn_scalar = 32 for granted, not 64"),
        (
            "gemma2",
            {"attn_logit_softcapping": None},
            "always caps attn_logit_softcapping of gemma2 models, but it is None",
        ),
        ("gemma3", {"hidden_activation": "relu"}, "takes hidden_activation = 'gelu_pytorch_tanh'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "for granted, not True"),
        ("gpt2", {"activation_function": "relu"}, "takes activation_function = "),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(
    variant: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_folder(variant, tmp_path / "model", **changes)
    with pytest.raises(InputError, match=message):
        export(ship(folder), tmp_path / "model.gguf")


def test_a_window_that_llama_cpp_does_not_know_is_its_longest_context(tmp_path: Path) -> None:
    for variant, context in (("mistral with a window", 100), ("mistral", 128), ("gemma2", 128)):
        folder = write_folder(variant, tmp_path / variant)
        fields = gguf.GGUFReader(export(ship(folder), tmp_path / "model.gguf")).fields
        arch = fields["general.architecture"].contents()
        assert fields[f"{arch}.context_length"].contents() == context
