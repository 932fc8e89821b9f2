from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil, prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tightfit.spaces import EMBED, HEAD, Geometry, GgmlOption, InputError, Plan, Space, WeightOption

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
