from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil, prod
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tightfit.spaces import (
    EMBED,
    HEAD,
    PLAIN,
    Attention,
    Geometry,
    GgmlOption,
    InputError,
    KvOption,
    KvRules,
    Load,
    Plan,
    Space,
    WeightOption,
    WeightRules,
    build_space,
    get_target,
)

MIXED = {"bits": (2, 3, 4, 6, 16), "groups": (32, 0), "zeros": ("none", "integer")}
CONFIG = {"attention_bias": True, "mlp_bias": True, "hidden_size": 96, "head_dim": 10}
fixtures_are_pure = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def recount(geometry: Geometry, options: dict[str, WeightOption]) -> int:
    """Bytes of a whole model from the options of its sites, knowing nothing of decisions."""
    total = geometry.other * geometry.dtype_bytes
    for linear in geometry.linears:
        total += linear.bias * geometry.dtype_bytes
        if linear.tied_to is not None:
            continue
        option = options[linear.site]
        total += ceil(Fraction(linear.rows * linear.cols * option.bits, 8))
        if option.bits <= 8:
            groups = linear.rows * linear.cols // (option.group or linear.cols)
            total += 2 * groups
            total += ceil(Fraction(groups * option.bits, 8)) if option.zero == "integer" else 0
    return total


def random_levels(space: Space, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(len(decision.options)) for decision in space.decisions]


@pytest.mark.parametrize("target", ["any", "vllm"])
@pytest.mark.parametrize("tied", [True, False])
@given(seed=st.integers(0, 2**32))
@fixtures_are_pure
def test_bytes_of_a_plan_equal_an_independent_recount(
    space: Callable[..., Space], target: str, tied: bool, seed: int
) -> None:
    built = space({**CONFIG, "tie_word_embeddings": tied}, target, **MIXED)
    levels = random_levels(built, seed)
    plan = built.plan(levels)
    assert built.bytes_of(levels) == recount(built.geometry, built.site_options(plan))
    assert built.weight_bytes(plan) == built.bytes_of(levels)
    assert built.levels(plan) == tuple(levels)
    assert built.levels(Plan(tuple(reversed(plan.choices)))) == tuple(levels)
    assert built.floor <= built.bytes_of(levels) <= built.ceiling


def test_floor_and_ceiling_are_the_cheapest_and_dearest_plans(space: Callable[..., Space]) -> None:
    built = space(CONFIG, **MIXED)
    assert built.floor == built.bytes_of([0] * len(built.decisions))
    assert built.ceiling == built.bytes_of([len(d.options) - 1 for d in built.decisions])
    assert built.floor < built.ceiling


def test_an_unquantized_plan_is_as_large_as_the_model(space: Callable[..., Space]) -> None:
    built = space(CONFIG, bits=(16,), groups=())
    assert built.size == 1
    assert built.floor == built.ceiling == 2 * built.geometry.parameters
    assert built.effective_bits(built.floor) == 16.0


def test_pins_are_inside_the_bytes_and_the_effective_bits(space: Callable[..., Space]) -> None:
    built = space(pin={"head": "8b-g64-float"}, bits=(4,), zeros=("float",))
    layers = 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 192)
    assert built.weights == 320 * 64 + layers
    bits = (8.5 * 320 * 64 + 4.5 * layers) / built.weights
    assert built.effective_bits(built.floor) == pytest.approx(bits, rel=1e-12)


def test_size_counts_every_plan(space: Callable[..., Space]) -> None:
    built = space(CONFIG, "vllm", **MIXED)
    assert built.size == prod(len(decision.options) for decision in built.decisions)


def test_sites_of_a_fused_or_tied_decision_all_get_its_option(space: Callable[..., Space]) -> None:
    built = space(target="vllm", bits=(3, 4), zeros=("integer",))
    options = built.site_options(built.plan([1] + [0] * 12))
    assert options[EMBED].bits == 4
    assert HEAD not in options  # it owns no bytes
    assert {options[f"layers.0.attn.{x}_proj"] for x in "qkvo"} == {WeightOption(3, 64, "integer")}
    assert len(options) == 1 + 3 * 7


def edited(plan: Plan, drop: int = 0, add: Sequence[tuple[str, str]] = ()) -> Plan:
    return Plan(plan.choices[drop:] + tuple(add))


@pytest.mark.parametrize(
    ("drop", "add", "message"),
    [
        (1, [], "has no choice for embed; it belongs to another model or target"),
        (0, [("layers.9.mlp.up_proj", "4b-g64-float")], r"chooses for the unknown layers\.9\.mlp\.up_proj"),
        (1, [("embed", "7b")], "embed does not offer '7b'"),
    ],
)
def test_a_plan_of_another_space_is_refused(
    space: Callable[..., Space], drop: int, add: list[tuple[str, str]], message: str
) -> None:
    built = space()
    plan = edited(built.plan([0] * len(built.decisions)), drop, add)
    with pytest.raises(InputError, match=message):
        built.levels(plan)


def test_levels_must_cover_every_decision(space: Callable[..., Space]) -> None:
    with pytest.raises(ValueError, match="zip"):
        space().plan([0])


def test_digest_tells_spaces_apart(space: Callable[..., Space]) -> None:
    rules = {"bits": (3, 4), "zeros": ("integer",)}
    spaces = [
        space(**rules),
        space(target="vllm", **rules),
        space(bits=(3,), zeros=("integer",)),
        space({"num_key_value_heads": 1}, **rules),
        space(pin={"head": "4b-g64-int"}, **rules),
    ]
    assert len({built.digest() for built in spaces}) == len(spaces)
    assert space(**rules).digest() == spaces[0].digest()


def test_a_uniform_plan_uses_an_option_wherever_it_is_offered(space: Callable[..., Space]) -> None:
    built = space(bits=(3, 4), zeros=("integer",), pin={"head": "8b-g64-int"})
    chosen = dict(built.plan(built.uniform_levels(WeightOption(4, 64, "integer"))).choices)
    assert chosen.pop("embed") == "8b-g64-int"  # tied to the head
    assert set(chosen.values()) == {"4b-g64-int"}


def test_a_uniform_plan_takes_what_llama_cpp_falls_back_to(space: Callable[..., Space]) -> None:
    config = {"hidden_size": 256, "intermediate_size": 96, "head_dim": 64}
    built = space(config, target="llama.cpp", types=("Q4_K", "Q5_K"))
    chosen = dict(built.plan(built.uniform_levels(GgmlOption("Q4_K"))).choices)
    downs = {chosen.pop(name) for name in list(chosen) if name.endswith("down_proj")}
    assert downs == {GgmlOption("Q4_K").fitting(96).type} != {"Q4_K"}
    assert set(chosen.values()) == {"Q4_K"}


# With KV caches


LOAD = Load(300, 2, 50)


@pytest.fixture
def cached(llama: Callable[..., Geometry]) -> Callable[..., Space]:
    """Space of the small model with its caches at 300 tokens × 2, of which 50 are in common."""

    def build(target: str = "any", load: Load = LOAD, **rules: Any) -> Space:
        weights = WeightRules(bits=(3, 4), zeros=("integer",))
        return build_space(llama(head_dim=32), weights, get_target(target), KvRules(**rules), load)

    return build


@given(seed=st.integers(0, 2**32))
@fixtures_are_pure
def test_a_plans_bytes_are_those_of_its_weights_and_of_its_caches(
    cached: Callable[..., Space], seed: int
) -> None:
    built = cached(bits=(2, 4, 16), keep=(1.0, 0.5), share=True)
    levels = random_levels(built, seed)
    plan = built.plan(levels)
    weights = recount(built.geometry, built.site_options(plan))
    options = built.kv_options(plan)
    caches = sum(LOAD.layer_bytes(Attention(2, 32), options[layer]) for layer in range(3))
    assert built.weight_bytes(plan) == weights
    assert built.cache_bytes(plan) == caches
    assert built.bytes_of(levels) == weights + caches
    assert built.levels(plan) == tuple(levels)
    assert Plan.from_dict(plan.to_dict()) == plan


def test_caches_come_after_matrices_and_govern_no_weights(cached: Callable[..., Space]) -> None:
    built, plain = cached(bits=(4, 16)), cached("any", bits=(16,))
    assert built.decisions == built.matrix_decisions + built.kv_decisions
    assert len(built.kv_decisions) == 3
    assert built.matrix_decisions == plain.matrix_decisions
    assert built.weights == sum(decision.weights for decision in built.matrix_decisions)
    assert built.has_kv
    assert built.effective_bits(built.weight_bytes(built.plan([0] * len(built.decisions)))) == 3 + 19 / 64


def test_a_partial_plan_has_options_where_it_chooses(cached: Callable[..., Space]) -> None:
    built = cached(bits=(4, 16))
    part = Plan((("layers.1.kv", "k16v16"), ("layers.0.attn.q_proj", "4b-g64-int")))
    assert built.kv_options(part) == {1: PLAIN}
    assert set(built.site_options(part)) == {"layers.0.attn.q_proj"}


def test_targets_decide_what_must_agree(cached: Callable[..., Space]) -> None:
    """vLLM runs q, k and v as one kernel; llama.cpp has one cache for all layers."""
    vllm = cached("vllm", bits=(8, 16))
    joint = [d.sites for d in vllm.matrix_decisions if "attn.q" in d.name]
    assert joint == [tuple(f"layers.{n}.attn.{x}_proj" for x in "qkv") for n in range(3)]
    assert [decision.name for decision in vllm.kv_decisions] == [f"layers.{n}.kv" for n in range(3)]
    llamacpp = cached("llama.cpp", bits=(8, 16))
    (decision,) = llamacpp.kv_decisions
    assert decision.sites == ("layers.0.kv", "layers.1.kv", "layers.2.kv")
    for level, option in enumerate(decision.kv_options):
        plan = llamacpp.plan([0] * (len(llamacpp.decisions) - 1) + [level])
        assert llamacpp.kv_options(plan) == dict.fromkeys(range(3), option)
        assert llamacpp.cache_bytes(plan) == decision.costs[level]


def test_a_uniform_plan_has_one_cache_too(cached: Callable[..., Space]) -> None:
    built, weights = cached(bits=(2, 4, 16), pin={"layers.1.kv": "k8v8"}), WeightOption(4, 64, "integer")
    whole = built.plan(built.uniform_levels(weights))
    assert built.kv_options(whole) == {0: PLAIN, 1: KvOption(8, 8), 2: PLAIN}
    small = built.kv_options(built.plan(built.uniform_levels(weights, KvOption(4, 4))))
    assert small == {0: KvOption(4, 4), 1: KvOption(8, 8), 2: KvOption(4, 4)}
    nearest = built.kv_options(built.plan(built.uniform_levels(weights, KvOption(3, 4, 0.5))))
    assert nearest[0] == KvOption(4, 4)


def test_digest_tells_caches_and_loads_apart(cached: Callable[..., Space]) -> None:
    spaces = [
        cached(bits=(4, 16)),
        cached(bits=(8, 16)),
        cached(bits=(4, 16), sinks=8),
        cached(load=Load(301, 2, 50), bits=(4, 16)),
        cached(load=Load(300, 3, 50), bits=(4, 16)),
        cached(load=Load(300, 2, 51), bits=(4, 16)),
    ]
    assert len({built.digest() for built in spaces}) == len(spaces)
    assert cached(bits=(4, 16)).digest() == spaces[0].digest()


def test_caches_need_a_context(llama: Callable[..., Geometry]) -> None:
    with pytest.raises(InputError, match=r"space\.kv: also give budget\.context"):
        build_space(llama(), WeightRules(), get_target("any"), KvRules())
    plain = build_space(llama(), WeightRules(), get_target("any"), load=Load(64))
    assert (plain.has_kv, plain.kv_decisions) == (False, ())
    assert plain.cache_bytes(plain.plan([0] * len(plain.decisions))) == 0
