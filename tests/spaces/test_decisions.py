from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import pytest

from tightfit.spaces import (
    EMBED,
    HEAD,
    Decision,
    Geometry,
    InputError,
    Space,
    WeightOption,
    WeightRules,
    expand,
    match_counts,
)

FUSABLE = {"bits": (3, 4), "zeros": ("integer",)}


def by_name(space: Space) -> dict[str, Decision]:
    return {decision.name: decision for decision in space.decisions}


def option_names(decision: Decision) -> list[str]:
    return [option.name for option in decision.options]


def offering(names: str) -> Decision:
    """A decision over a 64 × 64 matrix with these options."""
    offered = tuple(WeightOption.from_name(name) for name in names.split())
    costs = tuple(option.tensor_bytes(64, 64) for option in offered)
    return Decision("a", ("a",), offered, costs, 4096)


def test_every_matrix_decides_for_itself_where_nothing_fuses(space: Callable[..., Space]) -> None:
    built = space()
    owners = [x.site for x in built.geometry.linears if x.tied_to is None]
    assert [decision.name for decision in built.decisions] == owners


def test_fused_modules_are_one_decision_in_every_block(space: Callable[..., Space]) -> None:
    decisions = by_name(space(target="vllm", **FUSABLE))
    for layer in range(3):
        block = f"layers.{layer}"
        joint = decisions[f"{block}.attn.qkv_proj"]
        assert joint.sites == tuple(f"{block}.attn.{x}_proj" for x in "qkv")
        assert joint.weights == 64 * 64 + 2 * 32 * 64
        assert decisions[f"{block}.mlp.gate_up_proj"].sites == (
            f"{block}.mlp.gate_proj",
            f"{block}.mlp.up_proj",
        )
    assert len(decisions) == 1 + 3 * 4


def test_a_fused_decision_costs_what_its_members_cost(space: Callable[..., Space]) -> None:
    fused, alone = by_name(space(target="vllm", **FUSABLE)), by_name(space(**FUSABLE))
    joint = fused["layers.1.attn.qkv_proj"]
    for position, option in enumerate(joint.options):
        members = [alone[site] for site in joint.sites]
        assert joint.costs[position] == sum(m.costs[m.index(option.name)] for m in members)


@pytest.mark.parametrize("target", ["any", "vllm"])
def test_decisions_follow_the_depth_of_the_model(space: Callable[..., Space], target: str) -> None:
    layers = [d.sites[0] for d in space(target=target, **FUSABLE).decisions]
    order = [x.site for x in space().geometry.linears]
    assert layers == sorted(layers, key=order.index)


def test_a_tied_embedding_is_one_decision_counted_once(space: Callable[..., Space]) -> None:
    tied, untied = space(), space({"tie_word_embeddings": False})
    shared = by_name(tied)[EMBED]
    assert shared.sites == (EMBED, HEAD)
    assert shared.weights == 320 * 64
    assert HEAD not in by_name(tied)
    assert by_name(untied)[EMBED].sites == (EMBED,)
    assert by_name(untied)[HEAD].costs == shared.costs
    assert untied.weights - tied.weights == 320 * 64


@pytest.mark.parametrize("end", [EMBED, HEAD])
@pytest.mark.parametrize(
    ("key", "value", "offered"),
    [
        ("pin", {"X": "8b-g64-float"}, ["8b-g64-float"]),
        ("only", {"X": (8, 6)}, ["6b-g64-float", "8b-g64-float"]),
        ("exclude", ("X",), ["16b"]),
    ],
)
def test_a_rule_for_either_end_governs_the_tied_tensor(
    space: Callable[..., Space], end: str, key: str, value: Any, offered: list[str]
) -> None:
    rule = {end: value["X"]} if isinstance(value, dict) else (end,)
    assert option_names(by_name(space(zeros=("float",), **{key: rule}))[EMBED]) == offered


def test_options_ascend_in_bytes_and_costs_equal_the_formula(space: Callable[..., Space]) -> None:
    built = space(bits=(2, 3, 4, 8, 16), groups=(32, 64, 0), zeros=("none", "integer", "float"))
    for decision in built.decisions:
        assert list(decision.costs) == sorted(decision.costs)
        assert len(decision.options) == 4 * 3 * 3 + 1
        linear = built.geometry.linear(decision.sites[0])
        for option, cost in zip(decision.options, decision.costs, strict=True):
            groups = linear.rows * (linear.cols // (option.group or linear.cols)) if option.bits < 16 else 0
            zero = {"none": 0, "integer": ceil(groups * option.bits / 8), "float": 2 * groups}[option.zero]
            assert cost == linear.weights * option.bits // 8 + 2 * groups + zero


def test_exclude_wins_over_pin_and_pin_over_only(space: Callable[..., Space]) -> None:
    decisions = by_name(
        space(
            only={"layers.*": (5,)},
            pin={"layers.0.*": "6b-g32-sym", "layers.1.*": "6b-g32-sym"},
            exclude=("layers.0.mlp.*",),
            zeros=("float",),
        )
    )
    assert option_names(decisions["layers.0.mlp.up_proj"]) == ["16b"]
    assert option_names(decisions["layers.0.attn.q_proj"]) == ["6b-g32-sym"]
    assert option_names(decisions["layers.2.attn.q_proj"]) == ["5b-g64-float"]
    assert len(decisions[EMBED].options) == 4


def test_the_last_of_several_matching_patterns_wins(space: Callable[..., Space]) -> None:
    pins = by_name(space(pin={"*": "4b-g64-sym", "layers.1.*": "5b-g64-sym"}))
    assert option_names(pins["layers.1.mlp.up_proj"]) == ["5b-g64-sym"]
    assert option_names(pins["layers.2.mlp.up_proj"]) == ["4b-g64-sym"]
    only = by_name(space(only={"layers.1.*": (5,), "*": (6,)}, zeros=("float",)))
    assert option_names(only["layers.1.mlp.up_proj"]) == ["6b-g64-float"]


def test_a_rule_for_one_member_of_a_fused_group_governs_the_group(space: Callable[..., Space]) -> None:
    decisions = by_name(space(target="vllm", pin={"*.v_proj": "8b-g64-int"}, **FUSABLE))
    assert option_names(decisions["layers.2.attn.qkv_proj"]) == ["8b-g64-int"]
    assert len(decisions["layers.2.attn.o_proj"].options) == 2


@pytest.mark.parametrize(
    ("target", "key", "rules", "named"),
    [
        (
            "vllm",
            "pin",
            {"*.q_proj": "4b-g64-int", "*.v_proj": "8b-g64-int"},
            r"'\*\.q_proj' and '\*\.v_proj' .* layers\.0\.attn\.qkv_proj",
        ),
        (
            "vllm",
            "pin",
            {"*": "4b-g64-int", "layers.2.mlp.up_proj": "8b-g64-int"},
            r"'\*' and 'layers\.2\.mlp\.up_proj' .* layers\.2\.mlp\.gate_up_proj",
        ),
        (
            "vllm",
            "only",
            {"*.k_proj": (3, 4), "*.v_proj": (4, 8)},
            r"'\*\.k_proj' and '\*\.v_proj' .* layers\.0\.attn\.qkv_proj",
        ),
        ("any", "pin", {"head": "4b-g64-int", "embed": "8b-g64-int"}, "'embed' and 'head' .* embed"),
        ("any", "only", {"embed": (3,), "head": (4,)}, "'head' and 'embed' .* embed"),
    ],
)
def test_different_rules_for_sites_that_must_agree_are_refused(
    space: Callable[..., Space], target: str, key: str, rules: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=rf"space\.weights\.{key}: {named}, whose sites must agree"):
        space(target=target, **{**FUSABLE, key: rules})


def test_rules_that_agree_meet_in_peace(space: Callable[..., Space]) -> None:
    pins = {"*.q_proj": "8b-g64-int", "*.v_proj": "8b-g64-int", "head": "4b-g64-int", "embed": "4b-g64-int"}
    pinned = by_name(space(target="vllm", pin=pins, **FUSABLE))
    assert option_names(pinned["layers.0.attn.qkv_proj"]) == ["8b-g64-int"]
    assert option_names(pinned[EMBED]) == ["4b-g64-int"]
    only = by_name(space(target="vllm", only={"*.q_proj": (4, 8), "*.k_proj": (8, 4)}, **FUSABLE))
    assert option_names(only["layers.0.attn.qkv_proj"]) == ["4b-g64-int", "8b-g64-int"]


@pytest.mark.parametrize("end", [EMBED, HEAD])
def test_a_later_rule_for_one_end_of_a_tied_tensor_overrides_an_earlier_one_for_both(
    space: Callable[..., Space], end: str
) -> None:
    pinned = by_name(space(pin={"*": "4b-g64-int", end: "8b-g64-int"}, **FUSABLE))
    assert option_names(pinned[EMBED]) == ["8b-g64-int"]
    pinned = by_name(space(pin={end: "8b-g64-int", "*": "4b-g64-int"}, **FUSABLE))
    assert option_names(pinned[EMBED]) == ["4b-g64-int"]


def test_excluded_sites_stay_at_the_base_dtype(space: Callable[..., Space]) -> None:
    full = by_name(space({"dtype": "float32"}, exclude=("*",)))
    assert all(option_names(decision) == ["32b"] for decision in full.values())
    assert full[EMBED].costs == (320 * 64 * 4,)


@pytest.mark.parametrize(
    ("key", "value"),
    [("pin", {"layers.*.mlp.upproj": "4b-g64-sym"}), ("only", {"model.*": (4,)}), ("exclude", ("lm_head",))],
)
def test_a_pattern_that_matches_nothing_is_refused_with_the_names_it_could(
    space: Callable[..., Space], key: str, value: Any
) -> None:
    message = rf"space\.weights\.{key}: the pattern .* matches none of the 23 sites .*embed, layers\.0\.attn"
    with pytest.raises(InputError, match=message):
        space(**{key: value})


def test_every_pattern_tells_how_many_sites_it_matched(llama: Callable[..., Geometry]) -> None:
    rules = WeightRules(
        only={"*.mlp.*": (4,)}, pin={"head": "8b-g64-sym", "layers.[01].*": "4b-g64-sym"}, exclude=("embed",)
    )
    assert match_counts(rules, llama()) == {
        ("only", "*.mlp.*"): 9,
        ("pin", "head"): 1,
        ("pin", "layers.[01].*"): 14,
        ("exclude", "embed"): 1,
    }


def test_a_group_that_divides_some_widths_is_offered_only_there(space: Callable[..., Space]) -> None:
    decisions = by_name(space({"hidden_size": 96, "head_dim": 16}, groups=(32, 64)))
    assert {o.group for o in decisions["layers.0.attn.q_proj"].options} == {32}  # width 96
    assert {o.group for o in decisions["layers.0.attn.o_proj"].options} == {32, 64}  # width 64
    assert {o.group for o in decisions["layers.0.mlp.down_proj"].options} == {32, 64}  # width 192
    assert {o.group for o in decisions[EMBED].options} == {32}


def test_a_group_that_divides_nothing_is_refused_with_widths_and_groups(space: Callable[..., Space]) -> None:
    places = r"64 in embed; 192 in layers\.0\.mlp\.down_proj"
    message = rf"group 128 divides no input width of this model \({places}\); allowed here: 32, 64, 0"
    with pytest.raises(InputError, match=message):
        space(groups=(64, 128))


def test_a_site_that_no_group_divides_is_refused_by_name(space: Callable[..., Space]) -> None:
    # 96 is no multiple of 64, 192 is: the group is of use somewhere, but not everywhere.
    message = r"no option is left for embed \(width 96\).*groups that divide: 32, 0"
    with pytest.raises(InputError, match=message):
        space({"hidden_size": 96, "head_dim": 16}, groups=(64,))


def test_a_target_that_stores_none_of_the_options_is_named(space: Callable[..., Space]) -> None:
    message = (
        r"bits 3, 4, 5, 6, groups 64 and zeros float none fits \(target vllm stores .* zeros none, integer"
    )
    with pytest.raises(InputError, match=message):
        space(target="vllm", bits=(3, 4, 5, 6), groups=(64,), zeros=("float",))


@pytest.mark.parametrize(
    ("target", "option", "message"),
    [
        (
            "any",
            "4b-g128-sym",
            r"pin 'head': group 128 does not divide the 64 input weights of embed .*32, 64, 0",
        ),
        (
            "vllm",
            "5b-g64-sym",
            r"pin 'head': target vllm cannot store 5b-g64-sym \(target vllm stores bits 2, 3, 4, 8, 16, 32 "
            r"and zeros none, integer\)",
        ),
        ("any", "4bit", "pin 'head': '4bit' is not an option name"),
    ],
)
def test_a_pin_that_cannot_be_is_refused(
    space: Callable[..., Space], target: str, option: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        space(target=target, pin={"head": option}, **FUSABLE)


def test_an_option_that_a_decision_does_not_offer_is_refused(space: Callable[..., Space]) -> None:
    with pytest.raises(InputError, match=r"embed does not offer '9b' \(offered: 3b-g64-float, "):
        by_name(space(bits=(3, 4), zeros=("float",)))[EMBED].index("9b")


@pytest.mark.parametrize(
    ("offered", "wanted", "nearest"),
    [
        ("3b-g64-sym 4b-g64-sym 8b-g64-sym", "5b-g64-sym", "4b-g64-sym"),  # bits decide first
        ("3b-g64-sym 4b-g64-sym 6b-g64-sym", "5b-g64-sym", "4b-g64-sym"),  # of equally near bits the fewer
        ("4b-g32-int 4b-g64-float 5b-g64-int", "4b-g64-int", "4b-g32-int"),  # then the kind of zero point
        ("4b-row-int 4b-g32-int", "4b-g64-int", "4b-g32-int"),  # then the group
        ("16b", "3b-g64-sym", "16b"),
        ("8b-g64-sym 16b", "32b", "16b"),
    ],
)
def test_where_it_is_not_offered_the_nearest_takes_its_place(offered: str, wanted: str, nearest: str) -> None:
    decision = offering(offered)
    level = decision.nearest(WeightOption.from_name(wanted))
    assert decision.options[level].name == nearest


def test_expand_gives_every_combination_once() -> None:
    options = expand((4, 16, 4), (32, 0), ("none", "float"))
    assert options == [
        WeightOption(4, 32, "none"),
        WeightOption(4, 32, "float"),
        WeightOption(4, 0, "none"),
        WeightOption(4, 0, "float"),
        WeightOption(16),
    ]
