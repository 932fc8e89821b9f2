from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.spaces import InputError, format_size, parse_size

SCALES = {
    "B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
    "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("76MiB", 79_691_776),
        ("76 MiB", 79_691_776),
        (" 1.5GB ", 1_500_000_000),
        ("0.0000000001GiB", 0),
        ("1.9B", 1),
        ("1048576B", 2**20),
    ],
)
def test_sizes_are_read_as_whole_bytes_rounded_down(text: str, size: int) -> None:
    assert parse_size(text) == size


@given(number=st.decimals(0, 10**6, places=4), unit=st.sampled_from(sorted(SCALES)))
def test_every_unit_is_exact(number: Decimal, unit: str) -> None:
    assert parse_size(f"{number:f}{unit}") == int((number * SCALES[unit]).to_integral_value(ROUND_FLOOR))


@given(size=st.integers(0, 2**45))
def test_a_formatted_size_reads_back_within_its_two_decimals(size: int) -> None:
    text = format_size(size)
    step = SCALES[text.split()[1]] / 100
    assert abs(parse_size(text) - size) <= step / 2 + 1
    assert parse_size(f"{size}B") == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (79_691_776, "76.00 MiB"), (2**41, "2048.00 GiB"),
     (-3 * 2**20, "-3.00 MiB")],
)  # fmt: skip
def test_sizes_are_written_in_binary_units(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("90mib", "unknown unit 'mib'.*Did you mean 'MiB'"),
        ("90M", "unknown unit 'M'.*Did you mean 'MB'"),
        ("90MiBs", "unknown unit 'MiBs'.*Did you mean 'MiB'"),
        ("90parsec", r"unknown unit 'parsec' \(units: B, kB, MB"),
        ("90", "'90' is not a size: write a number and a unit"),
        (90, "'?90'? is not a size"),
        ("-1MiB", "is not a size"),
        ("1e3MB", "is not a size"),
        ("MiB", "is not a size"),
        ("", "is not a size"),
    ],
)
def test_a_wrong_size_is_refused_with_the_units(text: str | int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_size(text)
