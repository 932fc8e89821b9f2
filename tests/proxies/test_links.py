from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tightfit.proxies import LINKS, Amplifying, Coverage, Identity, Isotonic, Link, get_link
from tightfit.spaces import InputError

EXAMPLES: list[Link] = [
    Identity(),
    Amplifying(1.2),
    Coverage(2.5),
    Isotonic((0.0, 0.5, 1.0, 2.0), (0.0, 0.6, 0.8, 3.0), 1.4),
]
IDS = [link.name for link in EXAMPLES]


def test_every_link_of_the_catalogue_is_under_test():
    assert sorted(LINKS) == sorted(IDS)
    assert next(iter(LINKS)) == "identity", "cross-validation prefers the first"


@pytest.mark.parametrize("link", EXAMPLES, ids=IDS)
class TestContract:
    def test_zero_costs_nothing(self, link):
        assert link(np.zeros(3)) == pytest.approx(np.zeros(3), abs=1e-15)

    def test_increases_strictly_below_zero_within_and_beyond_what_was_fitted(self, link):
        s = np.linspace(-1.0, 5.0, 601)
        assert (np.diff(link(s)) > 0).all()

    @pytest.mark.parametrize("slope", [1e-6, 0.3, 1.0, 2.7])
    def test_offset_puts_a_line_just_below_it(self, link, slope):
        for low, high in [(-0.4, 5.0), (0.2, 0.9), (1.0, 1.0), (0.0, 300.0)]:
            s = np.linspace(low, high, 20001)
            room = link(s) - slope * s - link.offset(slope, low, high)
            assert room.min() >= -1e-12 * max(1.0, np.abs(link(s)).max())
            assert room.min() <= 1e-4 * slope * (high - low) + 1e-12

    def test_inverse_undoes_it(self, link):
        s = np.linspace(-0.5, 4.0, 101)
        assert link.inverse(link(s)) == pytest.approx(s, abs=1e-9)

    def test_inverse_is_finite_and_increasing_even_where_the_link_never_arrives(self, link):
        y = np.linspace(-3.0, 30.0, 500)
        assert np.isfinite(link.inverse(y)).all()
        assert (np.diff(link.inverse(y)) > 0).all()

    def test_slope_is_the_derivative(self, link):
        s = np.array([-0.31, 0.13, 0.77, 1.7, 3.3])
        step = 1e-6
        assert link.slope(s) == pytest.approx((link(s + step) - link(s - step)) / (2 * step), rel=1e-5)

    def test_survives_json(self, link):
        assert Link.from_dict(json.loads(json.dumps(link.to_dict()))) == link

    @given(s=arrays(np.float64, 20, elements=st.integers(-100, 500).map(lambda i: i / 100)))
    def test_never_changes_which_plan_is_better(self, link, s):
        order = np.sign(s[:, None] - s[None, :])
        y = link(s)
        assert (np.sign(y[:, None] - y[None, :]) == order).all()


def data(link: Link, plans: int = 40, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    s = rng.uniform(0.1, 1.5, plans)
    y = link(s)
    return s, y * (1 + noise * rng.normal(size=plans)), 1 / (noise * y) ** 2


def test_amplifying_finds_its_curvature():
    assert Amplifying.fit(*data(Amplifying(1.2))).kappa == pytest.approx(1.2, rel=0.1)


def test_amplifying_finds_a_curvature_far_from_its_start():
    assert Amplifying.fit(*data(Amplifying(2.8))).kappa == pytest.approx(2.8, rel=0.1)


def test_coverage_finds_its_ceiling():
    assert Coverage.fit(*data(Coverage(1.6))).ceiling == pytest.approx(1.6, rel=0.15)


@pytest.mark.parametrize(("cls", "other"), [(Amplifying, Coverage(1.6)), (Coverage, Amplifying(1.2))])
def test_a_link_that_bends_the_wrong_way_becomes_nearly_straight(cls, other):
    s, y, weight = data(other)
    fitted = cls.fit(s, y, weight)
    assert fitted(s) == pytest.approx(s, rel=0.02)


def test_scores_all_ten_percent_too_small_are_not_mistaken_for_interaction():
    s, y, weight = data(Identity())
    fitted = Amplifying.fit(s / 1.1, y, weight)
    assert fitted(s)[np.argmax(s)] < 1.05 * s.max()


def test_coverage_is_the_product_of_what_survives():
    shares = np.array([0.1, 0.25, 0.4])
    link = Coverage(2.0)
    s = link.inverse(2.0 * shares).sum()
    assert link(np.array([s]))[0] == pytest.approx(2.0 * (1 - np.prod(1 - shares)))


def test_coverage_stays_above_every_loss_seen():
    s, y, weight = data(Coverage(1.0), noise=0.1)
    assert Coverage.fit(s, y, weight).ceiling > y.max()


def test_isotonic_follows_any_increasing_shape():
    rng = np.random.default_rng(5)
    s = rng.uniform(0, 2, 400)
    y = np.where(s < 1, 0.3 * s, 2 * s - 1.7) + 0.01 * rng.normal(size=400)
    fitted = Isotonic.fit(s, y, np.ones(400))
    grid = np.linspace(0.1, 1.9, 50)
    assert fitted(grid) == pytest.approx(np.where(grid < 1, 0.3 * grid, 2 * grid - 1.7), abs=0.05)


def test_isotonic_goes_on_rising_beyond_a_flat_end():
    s = np.array([0.2, 0.4, 0.6, 0.8, 1.0])
    y = np.array([0.2, 0.4, 0.9, 0.7, 0.8])  # the last three pool to one step
    fitted = Isotonic.fit(s, y, np.ones(5))
    beyond = fitted(np.array([1.0, 1.5, 3.0]))
    assert (np.diff(beyond) > 0.3).all()


@pytest.mark.parametrize(("s", "y"), [([], []), ([-1.0], [2.0]), ([1.0, 2.0], [-0.1, -0.2])])
def test_isotonic_without_usable_plans_is_the_identity(s, y):
    fitted = Isotonic.fit(np.array(s), np.array(y), np.ones(len(s)))
    assert fitted(np.array([-1.0, 0.3, 4.0])) == pytest.approx([-1.0, 0.3, 4.0])


def test_huge_scores_do_not_overflow():
    assert np.isfinite(Amplifying(5.0)(np.array([1e6]))).all()


def test_unknown_link_names_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'coverage'"):
        get_link("covrage")
