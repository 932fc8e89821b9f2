from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tightfit.spaces import (
    Budget,
    Geometry,
    InfeasibleError,
    InputError,
    KvOption,
    KvRules,
    Load,
    Space,
    WeightRules,
    build_space,
    get_target,
    kv_bytes,
)

fixtures_are_pure = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(bits=st.floats(0.01, 40), head=st.sampled_from(["3b-g64-float", "8b-g64-float"]))
@fixtures_are_pure
def test_asked_effective_bits_are_never_exceeded_nor_wasted(
    space: Callable[..., Space], bits: float, head: str
) -> None:
    built = space({"attention_bias": True}, pin={"head": head})
    limit = Budget(effective_bits=bits).limit(built)
    assert built.effective_bits(limit) <= bits
    assert Fraction(8 * (limit + 1 - built.fixed_bytes), built.weights) > Fraction(bits)


def test_effective_bits_of_a_width_buy_that_width_everywhere(space: Callable[..., Space]) -> None:
    built = space(bits=(4, 8), zeros=("float",))
    assert Budget(effective_bits=4.5).check(built) == built.floor  # 4 + 32/64
    assert Budget(effective_bits=8.5).check(built) == built.ceiling


def test_total_leaves_what_the_cache_does_not_take(space: Callable[..., Space]) -> None:
    built = space()
    cache = 3 * 2 * 2 * 16 * 512 * 4 * 2
    assert kv_bytes(built.geometry, Load(512, 4)) == cache
    assert Budget(total=10**6, context=512, batch=4).limit(built) == 10**6 - cache


def test_the_tightest_of_several_bounds_holds(space: Callable[..., Space]) -> None:
    built = space()
    parts = {"weights": 90_000, "effective_bits": 4.0, "total": 300_000, "context": 256}
    alone = [
        Budget(weights=90_000),
        Budget(effective_bits=4.0),
        Budget(total=300_000, context=256),
    ]
    assert Budget(**parts).limit(built) == min(budget.limit(built) for budget in alone)


def test_the_floor_itself_is_feasible_and_a_byte_less_is_not(space: Callable[..., Space]) -> None:
    built = space()
    assert Budget(weights=built.floor).check(built) == built.floor
    with pytest.raises(InfeasibleError):
        Budget(weights=built.floor - 1).check(built)


def test_above_the_ceiling_is_feasible(space: Callable[..., Space]) -> None:
    assert Budget(weights=10**9).check(space()) == 10**9


def test_bounds_on_speed_alone_leave_every_byte(space: Callable[..., Space]) -> None:
    built = space()
    for budget in (Budget(tokens_per_second=30.0), Budget(latency=0.2)):
        assert budget.bounds_speed
        assert budget.check(built) == budget.limit(built) == built.ceiling


def test_bounds_on_speed_leave_bounds_on_bytes_as_they_are(space: Callable[..., Space]) -> None:
    built = space()
    both = Budget(effective_bits=4.5, tokens_per_second=30.0, latency=0.2)
    assert both.limit(built) == Budget(effective_bits=4.5).limit(built) < built.ceiling
    assert not Budget(effective_bits=4.5).bounds_speed


def test_refusal_names_the_bound_floor_ceiling_and_the_pins_that_raise_it(
    space: Callable[..., Space],
) -> None:
    built = space(pin={"head": "8b-g64-float", "layers.0.attn.*": "6b-g64-float"})
    with pytest.raises(InfeasibleError) as refusal:
        Budget(weights=10_000).check(built)
    text = str(refusal.value)
    assert text.startswith("budget.weights allows 9.77 KiB of weights (10000 B)")
    assert f"({built.floor} B)" in text
    assert f"({built.ceiling} B)" in text
    assert "without a choice: embed at 8b-g64-float (21.25 KiB), layers.0.attn.q_proj at 6b-g64-float" in text
    assert refusal.value.exit_code == 3


def test_refusal_without_pins_names_none(space: Callable[..., Space]) -> None:
    with pytest.raises(
        InfeasibleError,
        match=r"budget\.effective_bits allows .* ceiling is [^;]*; the least-violating plan .*\.$",
    ):
        Budget(effective_bits=1.0).check(space())


def test_a_cache_larger_than_the_whole_budget_is_named(space: Callable[..., Space]) -> None:
    message = r"budget\.total, less 384\.00 KiB of KV cache, leaves -286\.34 KiB of weights \(-293216 B\)"
    with pytest.raises(InfeasibleError, match=message):
        Budget(total=100_000, context=1024).check(space())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "give at least one of weights, total, kv, effective_bits, tokens_per_second or latency"),
        ({"tokens_per_second": 0.0}, r"budget\.tokens_per_second must be greater than 0, but is 0"),
        ({"latency": -0.2}, r"budget\.latency must be greater than 0, but is -0\.2"),
        ({"weights": 10**6, "latency": math.inf}, r"budget\.latency must be .*, but is inf"),
        ({"total": 10**6}, r"budget\.total: also give budget\.context"),
        ({"weights": 0}, r"budget\.weights must be greater than 0, but is 0"),
        ({"weights": -5}, r"budget\.weights must be greater than 0, but is -5"),
        ({"effective_bits": math.nan}, r"budget\.effective_bits must be greater than 0, but is nan"),
        ({"effective_bits": math.inf}, r"budget\.effective_bits must be .*, but is inf"),
        ({"total": 10**6, "context": 0}, r"budget\.context must be greater than 0, but is 0"),
        ({"weights": 10**6, "batch": 0}, r"budget\.batch must be greater than 0, but is 0"),
        ({"kv": 10**6}, r"budget\.kv: also give budget\.context"),
        ({"kv": 0, "context": 5}, r"budget\.kv must be greater than 0, but is 0"),
        (
            {"kv": 1, "context": 5, "shared_prefix": 6},
            r"shared_prefix \(6\) must be .*context \(5\)",
        ),
        ({"kv": 1, "context": 5, "shared_prefix": -1}, r"shared_prefix \(-1\) must be from 0"),
        ({"weights": 1, "shared_prefix": 6}, r"budget\.shared_prefix: also give budget\.context"),
    ],
)
def test_a_budget_that_bounds_nothing_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Budget(**fields)


# With KV caches in the space


@pytest.fixture
def cached(llama: Callable[..., Geometry]) -> Callable[..., Space]:
    """Space of the small model with its caches, uncompressed 256 bytes per token and layer."""

    def build(load: Load, target: str = "any", **rules: Any) -> Space:
        geometry = llama(head_dim=32)
        weights = WeightRules(bits=(4, 8)) if target == "any" else WeightRules(types=("Q4_0", "Q8_0"))
        return build_space(geometry, weights, get_target(target), KvRules(**rules), load)

    return build


def test_with_caches_in_the_space_a_total_is_one_bound_on_both(cached: Callable[..., Space]) -> None:
    built = cached(Load(500, 2))
    assert Budget(total=10**6, context=500, batch=2).check(built) == 10**6
    assert Budget(total=built.floor, context=500, batch=2).check(built) == built.floor
    with pytest.raises(InfeasibleError, match=r"budget\.total allows .* of weights and KV cache .*floor"):
        Budget(total=built.floor - 1, context=500, batch=2).check(built)


def test_bounds_on_a_part_leave_the_other_part_alone(cached: Callable[..., Space]) -> None:
    built = cached(Load(500))
    budget = Budget(weights=150_000, kv=110_000, effective_bits=5.0, context=500)
    governed = 5 * built.weights // 8
    most = min(150_000, built.fixed_bytes + governed) + 110_000
    assert budget.check(built) == budget.limit(built) == most < built.ceiling
    assert Budget(kv=10**9, context=500).limit(built) == built.ceiling
    parts = {part.name: (part.limit, part.kv) for part in budget.parts(built)}
    assert parts == {
        "budget.weights": (150_000 - built.fixed_bytes, False),
        "budget.effective_bits": (governed, False),
        "budget.kv": (110_000, True),
    }
    assert Budget(total=10**6, context=500).parts(built) == ()


def test_without_caches_in_the_space_there_are_no_parts(space: Callable[..., Space]) -> None:
    assert Budget(weights=10**6, kv=10**6, context=64).parts(space()) == ()


@pytest.mark.parametrize("key", ["weights", "kv", "effective_bits"])
def test_a_part_below_its_least_is_refused(cached: Callable[..., Space], key: str) -> None:
    built = cached(Load(500))
    least = {
        "weights": built.fixed_bytes + sum(d.costs[0] for d in built.matrix_decisions),
        "kv": sum(d.costs[0] for d in built.kv_decisions),
        "effective_bits": 4.25,
    }[key]
    Budget(**{key: least + (0.5 if key == "effective_bits" else 0)}, context=500).check(built)
    what = "KV caches" if key == "kv" else "the matrices"
    with pytest.raises(InfeasibleError, match=rf"budget\.{key} allows .* least that {what} of this space"):
        Budget(**{key: least - 1}, context=500).check(built)


def fitting(error: InfeasibleError) -> int:
    """The context that a refusal names."""
    (found,) = re.findall(r"fits up to a context of (\d+) tokens\.$", str(error))
    return int(found)


def test_an_uncompressed_cache_over_its_bound_is_refused_with_the_context_that_fits(
    space: Callable[..., Space],
) -> None:
    # 3 layers × 2 heads × 16 channels × keys and values × 2 bytes
    budget = Budget(kv=384 * 2 * 100 + 383, context=512, batch=2)
    with pytest.raises(InfeasibleError, match=r"budget\.kv allows .* uncompressed KV cache takes") as refusal:
        budget.check(space())
    assert fitting(refusal.value) == 100
    assert "With batch 2, the uncompressed" in str(refusal.value)
    assert "give space.kv so that it may be compressed" in str(refusal.value)
    shorter = Budget(kv=384 * 2 * 100 + 383, context=100, batch=2)
    assert shorter.check(space()) == shorter.limit(space())


def test_a_smallest_cache_over_its_bound_is_refused_with_the_context_that_fits(
    cached: Callable[..., Space],
) -> None:
    built = cached(Load(500, 4, 100), bits=(2, 16))
    allowed = sum(decision.costs[0] for decision in built.kv_decisions) // 2
    budget = Budget(kv=allowed, context=500, batch=4, shared_prefix=100)
    with pytest.raises(InfeasibleError) as refusal:
        budget.check(built)
    context, smallest = fitting(refusal.value), [KvOption(2, 2)] * 3
    assert 1 < context < 500
    assert kv_bytes(built.geometry, Load(context, 4, min(100, context)), smallest) <= allowed
    assert kv_bytes(built.geometry, Load(context + 1, 4, 100), smallest) > allowed
    Budget(kv=allowed, context=context, batch=4).check(cached(Load(context, 4, min(100, context))))


def test_a_total_that_caches_exceed_is_refused_with_the_context_that_fits(
    cached: Callable[..., Space], space: Callable[..., Space]
) -> None:
    built = space()
    total = built.floor + 384 * 37
    with pytest.raises(InfeasibleError) as refusal:
        Budget(total=total, context=512).check(built)
    assert fitting(refusal.value) == 37
    both = cached(Load(500), bits=(16,))
    weights = both.floor - 500 * 3 * 256
    with pytest.raises(InfeasibleError) as refusal:
        Budget(total=weights + 37 * 3 * 256, context=500).check(both)
    assert fitting(refusal.value) == 37


def test_where_no_context_fits_the_refusal_says_so(space: Callable[..., Space]) -> None:
    with pytest.raises(InfeasibleError, match=r"uncompressed KV cache does not fit at any context\.$"):
        Budget(total=1000, context=512).check(space())


def test_caches_that_must_agree_are_counted_together(cached: Callable[..., Space]) -> None:
    built = cached(Load(500), "llama.cpp", bits=(8, 16))
    (decision,) = built.kv_decisions
    assert decision.costs == (3 * 500 * 2 * 2 * 34, 3 * 500 * 256)
    with pytest.raises(InfeasibleError) as refusal:
        Budget(kv=3 * 77 * 2 * 2 * 34, context=500).check(built)
    assert fitting(refusal.value) == 77


def test_a_budget_has_the_load_of_its_context() -> None:
    assert Budget(kv=1, context=500, batch=3, shared_prefix=20).load == Load(500, 3, 20)
    assert Budget(weights=1).load is None
