from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.spaces import BITS, GROUPS, ZEROS, InputError, WeightOption, Zero

EVERY = [
    WeightOption(bits, group, zero) for bits in BITS if bits <= 8 for group in GROUPS for zero in ZEROS
] + [WeightOption(16), WeightOption(32)]


def stored_bytes(option: WeightOption, rows: int, cols: int) -> int:
    """Recount from the formula on paper: codes, a 16-bit scale per group, and the zero points."""
    if option.bits > 8:
        return rows * cols * (option.bits // 8)
    groups = rows * (cols // option.group) if option.group else rows
    zeros = {"none": 0, "integer": ceil(Fraction(groups * option.bits, 8)), "float": 2 * groups}
    return ceil(Fraction(rows * cols * option.bits, 8)) + 2 * groups + zeros[option.zero]


@pytest.mark.parametrize("option", EVERY, ids=lambda option: option.name)
def test_bytes_of_every_option_equal_the_formula(option: WeightOption) -> None:
    for rows, groups, odd in ((1, 1, 1), (3, 1, 17), (7, 3, 129), (576, 12, 1536)):
        cols = option.group * groups or odd
        assert option.tensor_bytes(rows, cols) == stored_bytes(option, rows, cols)


@given(
    bits=st.sampled_from([2, 3, 4, 5, 6, 8]),
    group=st.integers(0, 70),
    zero=st.sampled_from(ZEROS),
    rows=st.integers(1, 300),
    groups=st.integers(1, 20),
)
def test_bytes_equal_the_formula_for_any_shape(
    bits: int, group: int, zero: Zero, rows: int, groups: int
) -> None:
    option, cols = WeightOption(bits, group, zero), groups * (group or 1)
    assert option.tensor_bytes(rows, cols) == stored_bytes(option, rows, cols)
    parts = option.code_bytes(rows, cols) + option.scale_bytes(rows, cols) + option.zero_bytes(rows, cols)
    assert option.tensor_bytes(rows, cols) == parts


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("4b-g32-sym", 4.5),  # 4 + 16/32
        ("4b-g32-int", 4.625),  # 4 + (16 + 4)/32
        ("4b-g32-float", 5.0),  # 4 + (16 + 16)/32
        ("4b-g64-float", 4.5),
        ("4b-g128-int", 4.15625),
        ("3b-g64-int", 3.296875),
        ("2b-g64-float", 2.5),
        ("8b-g64-sym", 8.25),
        ("8b-row-sym", 8 + 16 / 1536),
        ("6b-row-float", 6 + 32 / 1536),
        ("16b", 16.0),
        ("32b", 32.0),
    ],
)
def test_effective_bits_include_scales_and_zero_points(name: str, bits: float) -> None:
    rows, cols = 576, 1536
    packed = WeightOption.from_name(name).tensor_bytes(rows, cols)
    assert 8 * packed / (rows * cols) == pytest.approx(bits, rel=1e-9)


@pytest.mark.parametrize("option", EVERY, ids=lambda option: option.name)
def test_a_name_reads_back_as_its_option(option: WeightOption) -> None:
    assert WeightOption.from_name(option.name) == option


def test_names_are_unique() -> None:
    assert len({option.name for option in EVERY}) == len(EVERY)


@pytest.mark.parametrize(
    "name",
    [
        "4",
        "4bit",
        "4b",
        "16b-g64-sym",
        "4b-g0-sym",
        "4b-g064-sym",
        "04b-g64-sym",
        "4b-g64-zero",
        "4b-g٦٤-sym",
    ],
)
def test_a_name_that_no_option_has_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not an option name"):
        WeightOption.from_name(name)


@pytest.mark.parametrize(
    ("bits", "group", "zero", "message"),
    [
        (7, 64, "none", "7 bits are not offered .allowed: 2, 3, 4, 5, 6, 8, 16, 32."),
        (4, -1, "none", "group -1 must be positive"),
        (4, 64, "middle", "'middle' is not a kind of zero point .allowed: none, integer, float."),
        (16, 64, "none", "16-bit floats have no groups"),
        (32, 0, "float", "32-bit floats have no groups"),
    ],
)
def test_an_option_that_cannot_be_is_refused(bits: int, group: int, zero: Zero, message: str) -> None:
    with pytest.raises(InputError, match=message):
        WeightOption(bits, group, zero)


def test_a_group_that_divides_nothing_has_no_bytes() -> None:
    option = WeightOption(4, 128, "none")
    assert not option.divides(576)
    with pytest.raises(InputError, match="4b-g128-sym: group 128 does not divide 576 input weights"):
        option.tensor_bytes(10, 576)


def test_one_scale_per_row_divides_everything() -> None:
    assert all(WeightOption(4).divides(cols) for cols in (1, 7, 576, 577))
