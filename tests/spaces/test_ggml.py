"""Types of llama.cpp: their bytes, what they fall back to, and a space of them."""

from __future__ import annotations

import pytest
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES

from tightfit.spaces import (
    GGML_TYPES,
    GgmlOption,
    InputError,
    WeightOption,
    WeightRules,
    build_space,
    fallbacks,
    get_target,
    match_counts,
    read_geometry,
    read_option,
)

TARGET = get_target("llama.cpp")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 1000,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
    "dtype": "bfloat16",
}
WIDE = {**CONFIG, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}


@pytest.mark.parametrize("name", GGML_TYPES)
def test_blocks_are_those_of_the_gguf_package(name: str) -> None:
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    option = GgmlOption(name)
    assert (option.block, option.block_bytes) == (block, block_bytes)
    assert option.tensor_bytes(3, 768) == 3 * 768 // block * block_bytes
    assert read_option(option.name) == option


def test_effective_bits_are_the_packed_ones() -> None:
    # A 4-bit block format was once costed at 4.0 bits; its packed size is 4.5.
    bits = {name: 8 * GgmlOption(name).tensor_bytes(1, 256) / 256 for name in GGML_TYPES}
    assert bits["Q4_K"] == bits["Q4_0"] == 4.5
    assert (bits["Q2_K"], bits["Q3_K"], bits["Q5_K"], bits["Q6_K"]) == (2.625, 3.4375, 5.5, 6.5625)
    assert (bits["IQ2_XXS"], bits["IQ4_XS"], bits["Q8_0"]) == (2.0625, 4.25, 8.5)
    assert list(bits.values()) == sorted(bits.values())


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("Q2_K", "Q4_0"),
        ("Q3_K", "Q4_0"),
        ("Q4_K", "Q5_0"),
        ("Q5_K", "Q5_1"),
        ("Q6_K", "Q8_0"),
        ("IQ4_XS", "IQ4_NL"),
        ("IQ2_XXS", "IQ4_NL"),
        ("Q4_0", "Q4_0"),
    ],
)
def test_fallbacks_of_a_width_of_576(asked: str, stored: str) -> None:
    assert GgmlOption(asked).fitting(576) == GgmlOption(stored)
    assert GgmlOption(asked).fitting(768) == GgmlOption(asked)
    assert GgmlOption(asked).fitting(100) == GgmlOption("F16")


def test_a_width_that_blocks_do_not_divide_has_no_bytes() -> None:
    with pytest.raises(InputError, match=r"Q4_K stores blocks of 256 weights, which do not divide 576"):
        GgmlOption("Q4_K").tensor_bytes(2, 576)


def test_an_unknown_type_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'Q4_KM'.*Q4_K"):
        GgmlOption("Q4_KM")


def test_a_plan_shows_and_charges_the_type_that_is_really_stored() -> None:
    # K-quants on a width of 576 used to fall back silently and grow the file by a third.
    geometry = read_geometry(CONFIG)
    space = build_space(geometry, WeightRules(types=("Q3_K", "Q4_K")), TARGET)
    query = next(d for d in space.decisions if d.name == "layers.0.attn.q_proj")
    down = next(d for d in space.decisions if d.name == "layers.0.mlp.down_proj")
    assert [o.name for o in query.options] == ["Q4_0", "Q5_0"]
    assert query.costs == (576 * 576 // 32 * 18, 576 * 576 // 32 * 22)
    assert [o.name for o in down.options] == ["Q3_K", "Q4_K"]
    found = fallbacks(geometry, WeightRules(types=("Q3_K", "Q4_K")))
    assert {(key, stored) for key, (stored, _) in found.items()} == {
        (("Q3_K", 576), "Q4_0"),
        (("Q4_K", 576), "Q5_0"),
    }
    assert len(found["Q3_K", 576][1]) == 1 + 2 * 6  # the embedding and all but the down projections


def test_strict_refuses_what_would_fall_back() -> None:
    rules = WeightRules(types=("Q4_K", "Q8_0"), strict=True)
    with pytest.raises(InputError, match=r"strict: Q4_K stores blocks of 256.*576 of 13 sites.*Q5_0.*Q8_0"):
        build_space(read_geometry(CONFIG), rules, TARGET)
    assert build_space(read_geometry(WIDE), rules, TARGET).decisions
    narrow = WeightRules(types=("Q4_K",), only={"*.q_proj": (4,)}, pin={"embed": "Q8_0"}, strict=True)
    with pytest.raises(InputError, match="strict"):
        build_space(read_geometry(CONFIG), narrow, TARGET)


def test_strict_ignores_sites_whose_type_is_pinned() -> None:
    pins = {"layers.*.attn.*": "Q8_0", "*.gate_proj": "Q8_0", "*.up_proj": "Q8_0", "embed": "Q8_0"}
    rules = WeightRules(types=("Q4_K", "Q5_K"), pin=pins, strict=True)
    space = build_space(read_geometry(CONFIG), rules, TARGET)
    assert [o.name for d in space.decisions for o in d.options if len(d.options) > 1] == ["Q4_K", "Q5_K"] * 2


def test_without_types_the_usual_ones_of_these_bits_are_offered() -> None:
    space = build_space(read_geometry(WIDE), WeightRules(bits=(2, 4)), TARGET)
    assert [o.name for o in space.decisions[1].options] == ["Q2_K", "IQ4_XS", "Q4_K"]
    only = build_space(read_geometry(WIDE), WeightRules(bits=(2, 4), only={"*.v_proj": (6, 8)}), TARGET)
    value = next(d for d in only.decisions if d.name == "layers.1.attn.v_proj")
    assert [o.name for o in value.options] == ["Q6_K", "Q8_0"]


def test_norms_and_biases_are_charged_as_float32() -> None:
    geometry = read_geometry(WIDE)
    assert geometry.dtype_bytes == 2
    assert build_space(geometry, WeightRules(), TARGET).fixed_bytes == 4 * geometry.other


def test_what_is_excluded_keeps_the_base_dtype() -> None:
    space = build_space(read_geometry(WIDE), WeightRules(exclude=("embed",)), TARGET)
    assert [o.name for o in space.decisions[0].options] == ["BF16"]


def test_an_embedding_without_inputs_gets_no_type_that_needs_importances() -> None:
    untied = {**WIDE, "tie_word_embeddings": False}
    rules = WeightRules(types=("IQ2_XS", "Q4_K"))
    space = build_space(read_geometry(untied), rules, TARGET)
    assert [o.name for o in space.decisions[0].options] == ["Q4_K"]
    assert [o.name for o in space.decisions[-1].options] == ["IQ2_XS", "Q4_K"]
    tied = build_space(read_geometry(WIDE), rules, TARGET)
    assert [o.name for o in tied.decisions[0].options] == ["IQ2_XS", "Q4_K"]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (WeightRules(pin={"embed": "4b-g64-float"}), r"llama.cpp cannot store 4b-g64-float.*types"),
        (WeightRules(pin={"*.q_proj": "Q6_K"}), r"do not divide the 576 input weights.*Q8_0"),
        (WeightRules(types=("Q4_K",), only={"embed": (3,)}), r"no type of llama.cpp is left for embed"),
    ],
)
def test_rules_that_do_not_fit_are_refused(rules: WeightRules, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build_space(read_geometry(CONFIG), rules, TARGET)


def test_types_belong_to_llama_cpp() -> None:
    with pytest.raises(InputError, match=r"types: target vllm has no types of its own"):
        build_space(read_geometry(WIDE), WeightRules(types=("Q4_K",)), get_target("vllm"))
    assert not TARGET.allows(WeightOption(16))
    assert not get_target("any").allows(GgmlOption("Q4_K"))
    assert match_counts(WeightRules(pin={"embed": "Q6_K"}), read_geometry(WIDE)) == {("pin", "embed"): 1}
