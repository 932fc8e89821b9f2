from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tightfit.spaces import Budget, InfeasibleError, InputError, Load, Space, kv_bytes

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
    ],
)
def test_a_budget_that_bounds_nothing_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Budget(**fields)
