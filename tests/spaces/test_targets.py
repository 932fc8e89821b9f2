from __future__ import annotations

import pytest

from tightfit.spaces import BITS, TARGETS, InputError, WeightOption, get_target


def test_every_target_is_found_by_its_own_name() -> None:
    assert all(get_target(name).name == name for name in TARGETS)


def test_an_unknown_target_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'vlm' \(targets: any, vllm, llama\.cpp\)\. Did you mean 'vllm'\?"):
        get_target("vlm")


def test_any_stores_everything_and_fuses_nothing() -> None:
    target = get_target("any")
    assert target.fused == ()
    assert all(target.allows(WeightOption(bits, 0 if bits > 8 else 32)) for bits in BITS)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("4b-g128-sym", True),
        ("3b-row-int", True),
        ("16b", True),
        ("5b-g128-sym", False),
        ("4b-g64-float", False),
    ],
)
def test_vllm_stores_what_its_kernels_read(name: str, allowed: bool) -> None:
    assert get_target("vllm").allows(WeightOption.from_name(name)) is allowed


@pytest.mark.parametrize("name", TARGETS)
def test_a_module_is_fused_into_one_group_only(name: str) -> None:
    modules = [module for _, members in get_target(name).fused for module in members]
    assert len(modules) == len(set(modules))
