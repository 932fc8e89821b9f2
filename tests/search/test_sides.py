from __future__ import annotations

import numpy as np
import pytest

from tightfit.search.sides import Side, keeps_all
from tightfit.spaces import InputError

ROWS = (np.array([0.01, 0.03]), np.array([0.02, 0.005]))
SPEED = Side("budget.tokens_per_second", ROWS, 0.05, 0.01, "tokens/s", per=True)
LATENCY = Side("budget.latency", ROWS, 0.02)


def test_a_plan_comes_to_the_sum_of_its_options_and_what_is_fixed() -> None:
    assert SPEED.total((1, 0)) == pytest.approx(0.06)
    assert SPEED.total((0, 1)) == pytest.approx(0.025)
    assert SPEED.excess((1, 0)) == pytest.approx(0.2)
    assert not SPEED.keeps((1, 0))
    assert SPEED.keeps((0, 1))
    assert keeps_all((SPEED, LATENCY), (0, 1))
    assert not keeps_all((SPEED, LATENCY), (0, 0))  # fast enough for one of them


def test_a_limit_is_kept_up_to_rounding_errors_and_no_further() -> None:
    rows = (np.array([0.1]), np.array([0.2]))  # their sum is a little more than 0.3
    assert Side("a", rows, 0.3).keeps((0, 0))
    assert not Side("a", rows, 0.3 - 1e-6).keeps((0, 0))


def test_bounds_are_told_as_they_were_asked_for() -> None:
    assert SPEED.asked() == "at least 20 tokens/s"
    assert SPEED.text(0.04) == "25 tokens/s"
    assert LATENCY.asked() == "at most 0.02 s"
    assert LATENCY.text(0.0312345) == "0.03123 s"


@pytest.mark.parametrize("values", [(np.array([1.0, np.nan]),), (np.zeros(0),)])
def test_values_that_are_none_are_refused(values: tuple[np.ndarray, ...]) -> None:
    with pytest.raises(InputError, match="odd: decision 0 has the values"):
        Side("odd", values, 9.0)


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="odd: the limit inf must be finite"):
        Side("odd", ROWS, float("inf"))
