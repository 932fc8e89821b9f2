"""Rotary embeddings: factors against Transformers, and what cannot be said to llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.exporters.gguf.tiny import ship, write_folder
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tightfit.exporters.gguf import export
from tightfit.exporters.gguf.rotary import rotary_factors
from tightfit.spaces import InputError, read_geometry

CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}


@pytest.mark.parametrize("changes", [{}, {"factor": 32.0}, {"original_max_position_embeddings": 256}])
def test_factors_divide_the_frequencies_as_transformers_does(changes: dict[str, Any]) -> None:
    parameters = {**LLAMA3, **changes}
    config = AutoConfig.for_model(**CONFIG, rope_parameters=parameters)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = parameters["rope_theta"] ** -(np.arange(0, 128, 2) / 128)
    factors = rotary_factors(config, read_geometry(CONFIG))
    assert factors is not None
    assert len({round(float(x), 3) for x in factors}) > 3  # kept, stretched, and between
    np.testing.assert_allclose(plain / factors, scaled.numpy(), rtol=1e-5)


def test_no_other_scaling_has_factors() -> None:
    for parameters in (None, {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}):
        config = AutoConfig.for_model(**CONFIG, rope_parameters=parameters)
        assert rotary_factors(config, read_geometry(CONFIG)) is None


@pytest.mark.parametrize(
    ("variant", "parameters", "message"),
    [
        ("llama", {"rope_type": "dynamic", "factor": 2.0}, "rope_type 'dynamic' of a llama model cannot be"),
        ("qwen2", LLAMA3, "rope_type 'llama3' of a qwen2 model .* llama3 for llama and mistral only"),
        (
            "llama",
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 2.0,
            },
            "rope parameter attention_factor = 2.0 cannot be written",
        ),
    ],
)
def test_a_scaling_that_llama_cpp_lacks_is_refused(
    variant: str, parameters: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_folder(variant, tmp_path / "model", rope_parameters=parameters)
    with pytest.raises(InputError, match=message):
        export(ship(folder), tmp_path / "model.gguf")
