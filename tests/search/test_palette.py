from __future__ import annotations

import pytest

from tightfit.search.palette import BITS_COLOURS, error_bars, log_floor, log_ticks, plain, safe, see_through
from tightfit.spaces import BITS


def test_every_width_has_its_colour() -> None:
    assert tuple(BITS_COLOURS) == BITS
    assert len(set(BITS_COLOURS.values())) == len(BITS)


def test_markup_is_escaped() -> None:
    assert safe("<b>&") == "&lt;b&gt;&amp;"


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.3), (0.01, 1.0), (1e-4, 0.5), (1e-6, 10.0)])
def test_logarithmic_ticks_cover_the_axis_without_crowding(low: float, high: float) -> None:
    inside = [tick for tick in log_ticks(low, high) if low <= tick <= high]
    assert 2 <= len(inside) <= 9


def test_numbers_are_written_without_exponents_where_that_is_short() -> None:
    assert [plain(x) for x in (0, 0.00001, 0.0312345, 0.5, 12.345, 1234.5, -0.02)] == [
        "0",
        "0.00001",
        "0.0312",
        "0.5",
        "12.3",
        "1234",
        "-0.02",
    ]


def test_error_bars_stay_above_zero_where_the_axis_is_logarithmic() -> None:
    bars = error_bars([0.1, 0.1, 0.2], [0.5, None, 0.05], "#000000")
    assert bars["array"] == [0.5, 0.0, 0.05]
    assert bars["arrayminus"] == [pytest.approx(0.095), 0.0, 0.05]


def test_losses_of_zero_are_drawn_below_the_others() -> None:
    assert log_floor([0.0, -0.1, 0.4, 0.2]) == 0.1
    assert log_floor([]) > 0


def test_a_faint_colour_is_the_same_colour() -> None:
    assert see_through("#0072B2", 0.5) == "rgba(0, 114, 178, 0.5)"
