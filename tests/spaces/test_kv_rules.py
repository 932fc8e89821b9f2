from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tightfit.spaces import (
    PLAIN,
    Attention,
    Decision,
    Geometry,
    InputError,
    KvOption,
    KvRules,
    Load,
    get_target,
    kv_bytes,
    kv_sites,
    read_geometry,
)
from tightfit.spaces.kv_rules import build_kv_decisions

GEMMA = {
    "model_type": "gemma3_text",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "sliding_window": 100,
    "sliding_window_pattern": 3,
}


@pytest.fixture
def decide(llama: Callable[..., Geometry]) -> Callable[..., tuple[Decision, ...]]:
    """Decisions about the caches of a small model with three layers, heads 64 wide, at 500 tokens × 3."""

    def build(target: str = "any", load: Load | None = None, **rules: Any) -> tuple[Decision, ...]:
        geometry = llama(head_dim=64)
        return build_kv_decisions(geometry, KvRules(**rules), get_target(target), load or Load(500, 3))

    return build


def names(decision: Decision) -> set[str]:
    return {option.name for option in decision.options}


def test_every_layer_decides_for_itself_over_every_combination(
    decide: Callable[..., tuple[Decision, ...]],
) -> None:
    found = decide(bits=(4, 16), keep=(1.0, 0.5))
    assert [d.name for d in found] == ["layers.0.kv", "layers.1.kv", "layers.2.kv"]
    assert all(d.sites == (d.name,) and d.is_kv and d.weights == 0 for d in found)
    assert names(found[0]) == {
        "k4v4-g32-r32-s4",
        "k4v4-g32-r32-s4-keep0.5",
        "k16v16",
        "k16v16-r32-s4-keep0.5",
    }


def test_costs_ascend_and_are_those_of_the_load(
    decide: Callable[..., tuple[Decision, ...]], llama: Callable[..., Geometry]
) -> None:
    load = Load(500, 3, 100)
    found = decide(load=load, bits=(2, 4, 8, 16), keep=(1.0, 0.25), share=True, cutoff=True)
    for decision in found:
        assert list(decision.costs) == sorted(decision.costs)
        for option, cost in zip(decision.kv_options, decision.costs, strict=True):
            assert cost == load.layer_bytes(Attention(2, 64), option)
    largest = [decision.kv_options[-1] for decision in found]
    assert sum(decision.costs[-1] for decision in found) == kv_bytes(llama(head_dim=64), load, largest)
    assert largest == [PLAIN] * 3


def test_where_nothing_is_quantized_yet_the_most_exact_cache_is_the_last(
    decide: Callable[..., tuple[Decision, ...]],
) -> None:
    for decision in decide(load=Load(30), bits=(2, 8, 16), keep=(0.5, 1.0)):
        assert set(decision.costs) == {30 * 2 * 256}
        assert decision.options[-1] == PLAIN


def test_layers_with_a_window_are_counted_with_it() -> None:
    geometry = read_geometry(GEMMA)
    found = build_kv_decisions(geometry, KvRules(bits=(16,)), get_target("any"), Load(1000, 2))
    assert [decision.costs[0] for decision in found] == [2 * tokens * 256 for tokens in [100, 100, 1000] * 2]


def test_keys_and_values_choose_apart_where_asked(decide: Callable[..., tuple[Decision, ...]]) -> None:
    together, apart = decide(bits=(4, 8))[0], decide(bits=(4, 8), separate=True)[0]
    assert [(o.k_bits, o.v_bits) for o in together.kv_options] == [(4, 4), (8, 8)]
    assert {(o.k_bits, o.v_bits) for o in apart.kv_options} == {(4, 4), (4, 8), (8, 4), (8, 8)}


def test_spread_is_offered_beside_what_is_quantized(decide: Callable[..., tuple[Decision, ...]]) -> None:
    found = decide(bits=(4, 16), spread=True, group=64, residual=8, sinks=2)[0]
    assert names(found) == {"k4v4-g64-r8-s2", "k4v4-g64-r8-s2-spread", "k16v16"}


def test_a_cutoff_is_offered_once_since_its_sinks_stay_floats(
    decide: Callable[..., tuple[Decision, ...]],
) -> None:
    found = decide(bits=(4, 8), keep=(1.0, 0.5), cutoff=True)[0]
    assert sum(option.cutoff for option in found.kv_options) == 1
    assert found.options[0].name == "k8v8-g32-r32-s4-cutoff"


def test_a_cache_is_read_from_below_only_where_one_is_like_it(
    decide: Callable[..., tuple[Decision, ...]],
) -> None:
    assert ["shared" in names(decision) for decision in decide(share=True)] == [False, True, True]
    mixed = build_kv_decisions(read_geometry(GEMMA), KvRules(share=True), get_target("any"), Load(1000))
    # Windows in layers 0, 1, 3 and 4; layers 2 and 5 attend in full.
    assert ["shared" in names(d) for d in mixed] == [False, True, False, False, True, False]


def test_for_llama_cpp_all_caches_are_one_decision(decide: Callable[..., tuple[Decision, ...]]) -> None:
    (found,) = decide("llama.cpp", bits=(4, 5, 8, 16), separate=True)
    assert found.name == "kv"
    assert found.sites == ("layers.0.kv", "layers.1.kv", "layers.2.kv")
    assert len(found.options) == 16
    # Heads of 64 are two blocks, of 34 bytes at 8 bits and of 18 at 4; all tokens are in blocks.
    costs = dict(zip((option.name for option in found.options), found.costs, strict=True))
    assert costs["k8v4-block"] == 3 * 3 * 500 * 2 * 2 * (34 + 18)
    assert costs["k16v16"] == 3 * 3 * 500 * 2 * 256


def test_for_vllm_layers_have_floats_or_one_other_width(decide: Callable[..., tuple[Decision, ...]]) -> None:
    found = decide("vllm", bits=(8, 16))
    assert len(found) == 3
    assert all(names(decision) == {"k8v8-token", "k16v16"} for decision in found)
    assert found[0].costs == (3 * 500 * 2 * 2 * 68, 3 * 500 * 2 * 256)


@pytest.mark.parametrize("target", ["any", "vllm", "llama.cpp"])
def test_what_is_offered_can_be_stored(decide: Callable[..., tuple[Decision, ...]], target: str) -> None:
    for decision in decide(target, bits=(8, 16)):
        assert all(get_target(target).kv.allows(option) for option in decision.kv_options)


def test_pinned_caches_have_one_option_and_the_last_pattern_wins(
    decide: Callable[..., tuple[Decision, ...]],
) -> None:
    pin = {"*.kv": "k8v8", "layers.[12].kv": "k2v2-g64-r0-s0-keep0.5", "layers.2.kv": "shared"}
    found = decide(pin=pin)
    assert [d.options[0].name for d in found] == ["k8v8-g32-r32-s4", "k2v2-g64-r0-s0-keep0.5", "shared"]
    assert all(len(d.options) == 1 for d in found)


def test_one_pin_holds_for_all_caches_that_must_agree(decide: Callable[..., tuple[Decision, ...]]) -> None:
    (found,) = decide("llama.cpp", bits=(8, 16), pin={"layers.1.kv": "k5v4-block"})
    assert found.options == (KvOption(5, 4, layout="block", residual=0, sinks=0),)


@pytest.mark.parametrize(
    ("target", "rules", "message"),
    [
        ("llama.cpp", {"bits": (2, 8)}, r"bits: 2 is not possible \(target llama.cpp .* 4, 5, 8, 16 bits"),
        ("llama.cpp", {"bits": (8,), "keep": (0.5,)}, r"keep below 1 is not possible \(target llama.cpp"),
        ("llama.cpp", {"bits": (8,), "share": True}, "share is not possible"),
        ("vllm", {"bits": (8,), "cutoff": True}, r"cutoff is not possible \(target vllm"),
        ("vllm", {"bits": (8,), "spread": True}, "spread is not possible"),
        ("vllm", {"bits": (4, 8, 16)}, "target vllm stores every layer .* at most 1 of 4, 8"),
        ("vllm", {"bits": (8, 16), "separate": True}, "the same for keys and values"),
        ("any", {"keep": (1.0, 0.0)}, r"space\.kv\.keep: 0 must be greater than 0 and at most 1"),
        ("any", {"keep": (1.5,)}, r"space\.kv\.keep: 1\.5 must be"),
        ("any", {"bits": (7,)}, r"space\.kv\.bits: 7 is not possible \(target any"),
        ("any", {"pin": {"layers.3.kv": "k8v8"}}, r"'layers\.3\.kv' matches none of the 3 caches \(they are"),
        ("any", {"pin": {"*.kv": "k8"}}, r"space\.kv\.pin '\*\.kv': 'k8' is not a KV option"),
        ("any", {"pin": {"*.kv": "k8v8-block"}}, r"pin '\*\.kv': k8v8-block is not possible \(target any"),
        (
            "any",
            {"pin": {"*.kv": "shared"}},
            r"pin '\*\.kv': layers\.0\.kv cannot read the cache of the layer",
        ),
        ("vllm", {"bits": (8, 16), "pin": {"*.1.kv": "k4v4-token"}}, "one other width, but .* name 4, 8"),
        ("vllm", {"bits": (8, 16), "pin": {"*.1.kv": "k8v16-token"}}, "k8v16-token is not possible"),
        ("vllm", {"bits": (16,), "pin": {"*.1.kv": "k8v8-keep0.5"}}, "is not possible"),
        ("llama.cpp", {"bits": (8,), "pin": {"*.kv": "k8v8-r32-s4-block"}}, "is not possible"),
        (
            "llama.cpp",
            {"bits": (8,), "pin": {"*.0.kv": "k8v8-block", "*.1.kv": "k16v16"}},
            "layers.0.kv at k8v8-block and layers.1.kv at k16v16 disagree",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    decide: Callable[..., tuple[Decision, ...]], target: str, rules: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        decide(target, **rules)


def test_a_context_beyond_the_model_is_refused(decide: Callable[..., tuple[Decision, ...]]) -> None:
    with pytest.raises(InputError, match=r"budget\.context: 513 tokens are more than .* made for \(512\)"):
        decide(load=Load(513))
    assert decide(load=Load(512))


def test_heads_that_do_not_pack_are_refused_with_what_fits(llama: Callable[..., Geometry]) -> None:
    geometry = llama(head_dim=80)
    with pytest.raises(
        InputError, match=r"space\.kv: k8v8-block: llama\.cpp stores blocks of 32 .* width 80"
    ):
        build_kv_decisions(geometry, KvRules(bits=(8, 16)), get_target("llama.cpp"), Load(500))
    (found,) = build_kv_decisions(geometry, KvRules(bits=(16,)), get_target("llama.cpp"), Load(500))
    assert names(found) == {"k16v16"}


def test_sites_of_a_decision_follow_from_its_name() -> None:
    assert kv_sites("kv", 2) == ("layers.0.kv", "layers.1.kv")
    assert kv_sites("layers.7.kv", 2) == ("layers.7.kv",)
    assert kv_sites("layers.7.attn.k_proj", 2) == kv_sites("embed", 2) == ()
