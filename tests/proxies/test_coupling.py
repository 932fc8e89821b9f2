from __future__ import annotations

import json

import numpy as np
import pytest

from tightfit.proxies import Coupling, measured_excess
from tightfit.proxies.coupling import check_couplings, total_excess
from tightfit.spaces import InputError

EXCESS = np.array([[0.0, 0.2, -0.1], [0.5, 0.0, 0.3]])
COUPLING = Coupling((3, 1), EXCESS)
LEVELS = np.array([[0, 2, 9, 1], [0, 1, 9, 0], [0, 2, 9, 0]])


def test_axes_follow_the_decisions_as_they_are_named():
    assert [COUPLING.value(row) for row in LEVELS.tolist()] == [0.3, 0.2, -0.1]
    assert COUPLING.values(LEVELS).tolist() == [0.3, 0.2, -0.1]


def test_no_plans_have_no_excess():
    assert COUPLING.values(np.zeros((0, 4), dtype=int)).shape == (0,)


def test_excess_of_several_couplings_adds_up():
    other = Coupling((0, 1, 3), np.full((1, 3, 2), 0.25))
    assert total_excess([COUPLING, other], LEVELS) == pytest.approx([0.55, 0.45, 0.15])
    assert total_excess([], LEVELS).tolist() == [0.0, 0.0, 0.0]


def test_survives_json():
    back = Coupling.from_dict(json.loads(json.dumps(COUPLING.to_dict())))
    assert back.decisions == (3, 1)
    assert (back.excess == EXCESS).all()


def test_measured_excess_is_what_the_parts_do_not_explain():
    assert measured_excess(0.5, [0.1, 0.15]) == pytest.approx(0.25)
    assert measured_excess(0.2, np.array([0.1, 0.15])) == pytest.approx(-0.05)
    assert measured_excess(0.2, []) == 0.2


@pytest.mark.parametrize(
    ("decisions", "excess", "message"),
    [
        ((1,), np.zeros(2), "two or more different"),
        ((1, 1), np.zeros((2, 2)), "two or more different"),
        ((-1, 1), np.zeros((2, 2)), "counted from 0"),
        ((0, 1), np.zeros(2), "an axis"),
        ((0, 1), np.zeros((2, 0)), "at least one option"),
        ((0, 1), np.array([[np.nan]]), "not finite"),
    ],
)
def test_what_is_no_coupling_is_refused(decisions, excess, message):
    with pytest.raises(InputError, match=message):
        Coupling(decisions, excess)


def test_couplings_of_another_space_are_refused():
    check_couplings([COUPLING], [1, 3, 1, 2])
    with pytest.raises(InputError, match="names decision 3, but there are 3 decisions"):
        check_couplings([COUPLING], [1, 3, 1])
    with pytest.raises(InputError, match=r"shape \(2, 3\), but these decisions have \(2, 4\) options"):
        check_couplings([COUPLING], [1, 4, 1, 2])
