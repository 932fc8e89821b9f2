from __future__ import annotations

import itertools

import numpy as np
import pytest

from tightfit.proxies.kv import ALLOCATORS, Menu, Retention
from tightfit.proxies.kv.allocators import error, least_important, pyramid, retention, squeeze
from tightfit.spaces import InputError
from tightfit.spaces.kv import KvOption

KEEPS = (0.125, 0.25, 0.5, 0.75, 1.0)


def plain_menu(layers: int, keeps: tuple[float, ...] = KEEPS, size: int = 800) -> Menu:
    """Sixteen-bit options whose bytes are exactly in proportion to what they keep."""
    options = [KvOption(keep=keep, sinks=0, residual=0) for keep in keeps]
    return Menu([np.array([round(size * keep) for keep in keeps])] * layers, [options] * layers)


def keeps(menu: Menu, plan: list[int]) -> list[float]:
    return [options[i].keep for options, i in zip(menu.options, plan, strict=True)]


def needs(name: str, menu: Menu, seed: int) -> list[object]:
    """What a rule needs to know, at random."""
    rng = np.random.default_rng([seed, 7])
    curves = [Retention(12, np.append(np.sort(rng.uniform(0.3, 1, 244)), 1.0)) for _ in range(menu.layers)]
    found = {
        "": [],
        "curves": [curves],
        "cosines": [rng.uniform(0.5, 1, menu.layers).tolist()],
        "errors": [[rng.uniform(0, 1, len(options)) for options in menu.options]],
    }
    return found[ALLOCATORS[name].needs]


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("layers", [1, 2, 7])
def test_no_rule_exceeds_a_budget_or_refuses_one_that_can_be_kept(name, layers, make_menu):
    menu = make_menu(layers)
    floor, full = (menu.layers * pick(menu.costs[0]) for pick in (min, max))
    for budget in [floor, full, 2 * full, *np.linspace(floor, full, 40).astype(int).tolist()]:
        plan = ALLOCATORS[name].allocate(menu, budget, *needs(name, menu, budget))
        assert len(plan) == layers
        assert menu.size(plan) <= budget
        again = ALLOCATORS[name].allocate(menu, budget, *needs(name, menu, budget))
        assert plan == again
    if name != "error":  # which is content once no option has a smaller error
        assert menu.size(ALLOCATORS[name].allocate(menu, full, *needs(name, menu, 1))) == full


@pytest.mark.parametrize("name", ALLOCATORS)
def test_budgets_below_the_floor_are_refused_with_both_numbers(name, make_menu):
    menu = make_menu(3)
    floor = 3 * int(min(menu.costs[0]))
    with pytest.raises(InputError, match=f"take {floor} bytes, more than the budget of {floor - 1} bytes"):
        ALLOCATORS[name].allocate(menu, floor - 1, *needs(name, menu, 0))


@pytest.mark.parametrize("name", ALLOCATORS)
def test_layers_without_a_choice_are_left_alone(name, make_menu):
    whole = make_menu(4)
    shared = KvOption(shared=True)
    menu = Menu(
        [whole.costs[0], np.array([0]), whole.costs[2], np.array([7000])],
        [whole.options[0], [shared], whole.options[2], [KvOption()]],
    )
    plan = ALLOCATORS[name].allocate(menu, 40000, *needs(name, menu, 3))
    assert (plan[1], plan[3]) == (0, 0)
    assert menu.size(plan) <= 40000


@pytest.mark.parametrize("name", sorted(set(ALLOCATORS) - {"error"}))
def test_published_rules_never_share_a_cache_or_cut_a_prompt_off(name, make_menu):
    whole = make_menu(4)
    odd = [KvOption(shared=True), KvOption(cutoff=True)]
    menu = Menu(
        [np.append([0, 64], costs) for costs in whole.costs], [[*odd, *options] for options in whole.options]
    )
    floor = 4 * int(min(whole.costs[0]))
    assert min(ALLOCATORS[name].allocate(menu, floor, *needs(name, menu, 3))) >= 2
    with pytest.raises(InputError, match=f"{floor} bytes"):
        ALLOCATORS[name].allocate(menu, floor - 1, *needs(name, menu, 3))


def test_pyramid_by_hand():
    menu = plain_menu(5)
    # With beta 4 shares are s · (1.75, 1.375, 1, 0.625, 0.25), the last one never below the 0.125 offered.
    # 1480 = 100 + 800 · 4.75 s: s = 0.363, so 0.64, 0.5 (just below), 0.36, 0.23 and 0.09 are rounded down
    # to 0.5, 0.25, 0.25, 0.125 and 0.125, which leaves 480 bytes: 200 each for the first two layers.
    assert keeps(menu, pyramid(menu, 1480, beta=4)) == [0.75, 0.5, 0.25, 0.125, 0.125]
    # 1650: s = 0.408; 0.5, 0.5, 0.25, 0.25, 0.125 leave 350, 200 for the first layer and 100 for the last,
    # as no layer between them has a step that cheap.
    assert keeps(menu, pyramid(menu, 1650, beta=4)) == [0.75, 0.5, 0.25, 0.25, 0.25]


def test_pyramid_falls_with_depth_and_saturates_at_everything():
    menu = plain_menu(9, tuple(np.arange(1, 101) / 100), size=10_000)
    for budget, beta in itertools.product((9_000, 20_000, 45_000, 70_000, 85_000), (1, 2, 20)):
        plan = pyramid(menu, budget, beta=beta)
        kept = keeps(menu, plan)
        assert all(a >= b - 0.0101 for a, b in itertools.pairwise(kept))  # leftovers raise one step
        mean = budget / 90_000
        assert kept[0] == pytest.approx(min(1, 2 * mean - mean / beta), abs=0.0201)
        assert budget - menu.size(plan) < 100


def test_squeeze_by_hand():
    menu = plain_menu(6, tuple(np.arange(1, 101) / 100), size=10_000)
    cosines = [0.5, 0.9, 0.52, 0.91, 0.7, 0.72]
    # Groups {0, 2}, {4, 5} and {1, 3}; the last keep 0.4 · 0.25, and the others gain (6 − 0.5) / 4 · 0.4.
    plan = squeeze(menu, 24_000, cosines, factor=0.25)
    assert keeps(menu, plan) == [0.55, 0.1, 0.55, 0.1, 0.55, 0.55]


def test_squeeze_spends_the_rest_on_the_most_important_layer():
    menu = plain_menu(3, (0.25, 0.5, 1.0))
    # Equal shares of a budget of 1500 (0.625) round down to 0.5; 300 bytes are left, and a step costs 400.
    assert keeps(menu, squeeze(menu, 1500, [0.7, 0.7, 0.7])) == [0.5, 0.5, 0.5]
    assert keeps(menu, squeeze(menu, 1600, [0.7, 0.7, 0.7])) == [1.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("cosines", "expected"),
    [
        ([0.5, 0.9, 0.52, 0.91, 0.7, 0.72], [1, 3]),
        ([0.5, 0.9], [1]),
        ([0.3, 0.3, 0.8, 0.3], [2]),
        ([0.7, 0.7, 0.7], []),
        ([0.7], []),
    ],
)
def test_least_important_layers(cosines, expected):
    assert np.flatnonzero(least_important(cosines)).tolist() == expected


def test_retention_by_hand():
    menu = plain_menu(2, (0.25, 0.5, 0.75, 1.0), size=400)
    sharp = Retention(1, np.array([0.9, 0.95, 0.98, 1.0]))
    flat = Retention(1, np.array([0.25, 0.5, 0.75, 1.0]))
    # Threshold 0.75: one and three of four tokens, 400 bytes; at 0.9 the flat layer needs everything.
    assert keeps(menu, retention(menu, 400, [sharp, flat])) == [0.25, 0.75]
    assert keeps(menu, retention(menu, 499, [sharp, flat])) == [0.25, 0.75]
    assert keeps(menu, retention(menu, 500, [sharp, flat])) == [0.25, 1.0]
    assert keeps(menu, retention(menu, 300, [flat, sharp])) == [0.5, 0.25]


def test_retention_threshold_rises_with_the_budget():
    menu = plain_menu(4)
    rng = np.random.default_rng(0)
    curves = [Retention(1, np.append(np.sort(rng.uniform(0, 1, 63)), 1.0)) for _ in range(4)]
    lowest = []
    for budget in range(400, 3201, 25):
        plan = retention(menu, budget, curves)
        counts = [options[i].kept(64) for options, i in zip(menu.options, plan, strict=True)]
        lowest.append(min(c.retained(n) for c, n in zip(curves, counts, strict=True)))
    assert lowest == sorted(lowest)
    assert lowest[-1] == 1.0


def test_error_by_hand():
    options = [KvOption(2, 2), KvOption(4, 4), KvOption(8, 8)]
    menu = Menu([np.array([10, 20, 40])] * 2, [options] * 2)
    errors = [np.array([0.5, 0.3, 0.0]), np.array([1.0, 0.1, 0.0])]
    # Gains per byte: layer 0 0.02 and 0.0167; layer 1 0.09, 0.033.
    assert error(menu, 29, errors) == [0, 0]
    assert error(menu, 30, errors) == [0, 1]
    assert error(menu, 40, errors) == [1, 1]
    # From there 0.3 / 20 in layer 0 beats 0.1 / 20 in layer 1.
    assert error(menu, 60, errors) == [2, 1]
    assert error(menu, 80, errors) == [2, 2]


def test_error_takes_free_gains_and_never_infinite_ones():
    options = [KvOption(2, 2), KvOption(4, 4), KvOption(8, 8)]
    menu = Menu([np.array([10, 10, 40])], [options])
    assert error(menu, 10, [np.array([0.5, 0.3, 0.0])]) == [1]
    assert error(menu, 40, [np.array([np.inf, np.inf, 0.7])]) == [2]
    with pytest.raises(InputError, match="40 bytes"):
        error(menu, 39, [np.array([np.inf, np.inf, 0.7])])
    with pytest.raises(InputError, match="at least one must be finite"):
        error(menu, 40, [np.array([np.inf, np.nan, np.inf])])


@pytest.mark.parametrize("precision", [(16, 16), (8, 8), (4, 4)])
def test_tokens_are_shared_out_at_one_pair_of_bits(precision, make_menu):
    menu = make_menu(4)
    for name in ("pyramid", "squeeze", "retention"):
        plan = ALLOCATORS[name].allocate(menu, 90_000, *needs(name, menu, 1), precision=precision)
        chosen = [options[i] for options, i in zip(menu.options, plan, strict=True)]
        assert {(x.k_bits, x.v_bits) for x in chosen} == {precision}


def test_without_a_pair_of_bits_the_widest_that_fits(make_menu):
    menu = make_menu(4)
    at = {
        bits: 4 * min(int(c) for c, x in zip(menu.costs[0], menu.options[0], strict=True) if x.k_bits == bits)
        for bits in (16, 8, 4)
    }
    for bits, budget in ((16, at[16]), (8, at[16] - 1), (4, at[8] - 1)):
        assert {menu.options[0][i].k_bits for i in pyramid(menu, budget)} == {bits}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda menu: pyramid(menu, 10**6, beta=0.5), "at least 1, but is 0.5"),
        (
            lambda menu: pyramid(menu, 10**6, precision=(5, 5)),
            r"k5v5 is not offered in every layer \(k16v16, k8v8",
        ),
        (lambda menu: squeeze(menu, 10**6, [0.5] * 6, factor=0), "at most 1, but is 0"),
        (lambda menu: squeeze(menu, 10**6, [0.5]), "cosines are given for 1 layers, but there are 6"),
        (lambda menu: error(menu, 10**6, [np.zeros(2)] * 6), "2 errors are given for 15 options"),
    ],
)
def test_bad_input(make_menu, call, message):
    with pytest.raises(InputError, match=message):
        call(make_menu(6))
