"""Plans that llama.cpp cannot store."""

from __future__ import annotations

from typing import Any

import pytest

from tightfit.exporters.gguf.refusals import ggml_options, nearest_type
from tightfit.spaces import GgmlOption, InputError, Linear, WeightOption, read_geometry

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "tie_word_embeddings": True,
}
GEOMETRY = read_geometry(CONFIG)
FOUR, EIGHT = WeightOption(4, 64, "float"), WeightOption(8, 64, "none")


def test_a_plan_of_types_passes() -> None:
    options = {"embed": GgmlOption("Q8_0"), "layers.0.mlp.up_proj": GgmlOption("F16")}
    assert ggml_options(GEOMETRY, options) == options


def test_formats_of_other_tools_are_refused_at_once_with_the_nearest_types_and_their_price() -> None:
    options = {
        "embed": EIGHT,
        "layers.0.mlp.up_proj": FOUR,
        "layers.1.mlp.down_proj": FOUR,
        "layers.1.attn.q_proj": GgmlOption("Q4_0"),
    }
    # 64 codes of 4 bits with two float16 are as long as two blocks of Q4_0. 64 codes of 8 bits share one
    # float16, and two blocks of Q8_0 have two.
    extra = 2 * 320
    with pytest.raises(InputError) as refusal:
        ggml_options(GEOMETRY, options)
    assert str(refusal.value) == (
        "llama.cpp cannot store 3 matrices of this plan: 2 × 4b-g64-float (nearest: Q4_0), 1 × 8b-g64-sym "
        f"(nearest: Q8_0); the nearest types would take {extra} B more in all. Search with "
        "target: llama.cpp."
    )


def test_a_type_whose_blocks_do_not_divide_a_width_is_refused() -> None:
    with pytest.raises(InputError, match=r"up_proj: Q4_K stores blocks of 256 .* its width of 64"):
        ggml_options(GEOMETRY, {"layers.0.mlp.up_proj": GgmlOption("Q4_K")})


@pytest.mark.parametrize(
    ("option", "cols", "nearest"),
    [
        (WeightOption(3, 64, "integer"), 256, "Q3_K"),
        (WeightOption(3, 64, "integer"), 64, "Q4_0"),
        (WeightOption(4, 32, "float"), 64, "Q4_1"),
        (WeightOption(6, 0, "none"), 512, "Q6_K"),
        (WeightOption(16), 48, "F16"),
        (WeightOption(32), 48, "F32"),
    ],
)
def test_the_nearest_type_fits_the_width(option: WeightOption, cols: int, nearest: str) -> None:
    linear = Linear("layers.0.mlp.up_proj", 0, "up_proj", "up", 32, cols)
    assert nearest_type(option, linear) == GgmlOption(nearest)
