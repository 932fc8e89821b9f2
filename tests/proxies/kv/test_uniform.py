from __future__ import annotations

import numpy as np
import pytest

from tightfit.proxies.kv import Menu, ends_plans, uniform_plans
from tightfit.proxies.kv.uniform import ends, uniform
from tightfit.spaces import InputError
from tightfit.spaces.kv import KvOption

OPTIONS = [KvOption(2, 2), KvOption(4, 4), KvOption(8, 8), KvOption()]
COSTS = np.array([10, 20, 40, 80])


def menu(layers: int) -> Menu:
    return Menu([COSTS] * layers, [OPTIONS] * layers)


def test_every_uniform_plan_within_the_budget_largest_first():
    assert uniform_plans(menu(3), 120) == [[2, 2, 2], [1, 1, 1], [0, 0, 0]]
    assert uniform_plans(menu(3), 119) == [[1, 1, 1], [0, 0, 0]]
    assert uniform(menu(3), 119) == [1, 1, 1]


def test_of_equal_bytes_more_bits_come_first():
    options = [KvOption(4, 8), KvOption(8, 4), KvOption(8, 8, keep=0.5)]
    plans = uniform_plans(Menu([np.array([5, 5, 5])] * 2, [options] * 2), 10)
    assert plans == [[2, 2], [1, 1], [0, 0]]


def test_an_option_is_uniform_wherever_it_stands_in_the_lists():
    mixed = Menu([COSTS, COSTS[::-1][:3]], [OPTIONS, OPTIONS[::-1][:3]])
    assert uniform_plans(mixed, 1000) == [[3, 0], [2, 1], [1, 2]]


def test_layers_must_have_an_option_in_common():
    with pytest.raises(InputError, match="no KV option is offered in every layer"):
        uniform(Menu([COSTS[:2], COSTS[2:]], [OPTIONS[:2], OPTIONS[2:]]), 1000)


def test_ends_by_hand():
    # Four plain layers take 320 of 400 bytes; two in the middle have 40 each.
    assert ends(menu(6), 400) == [3, 3, 2, 2, 3, 3]
    # With 390, 20 each and 30 left, of which the outer one of the two takes 20.
    assert ends(menu(6), 390) == [3, 3, 2, 1, 3, 3]
    # Without wide ends 40 each, and of 150 left the outermost three take 40 each.
    assert ends(menu(6), 390, count=0) == [3, 3, 2, 2, 2, 3]


def test_fewer_ends_are_wide_where_that_is_all():
    # Four wide ends and the smallest between them would take 340.
    assert ends(menu(6), 339) == [3, 2, 2, 2, 2, 3]
    assert ends(menu(6), 60) == [0] * 6


def test_ends_with_every_option_in_the_middle():
    # Between four plain layers there are 70 bytes: 20 each, or 10 each and 40 to spend.
    assert ends_plans(menu(7), 390) == [[3, 3, 1, 1, 1, 3, 3], [3, 3, 2, 0, 1, 3, 3]]


def test_ends_never_trade_bits_for_tokens():
    options = [KvOption(4, 4), KvOption(keep=0.25), KvOption(8, 8)]
    few = Menu([np.array([20, 22, 40])] * 3, [options] * 3)
    # What is left after 16 bits of few tokens buys nothing: 8 bits of all tokens would be fewer bits.
    assert ends_plans(few, 105, count=0) == [[1, 1, 1], [2, 0, 2]]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_few_layers_are_all_ends(layers):
    assert ends(menu(layers), 80 * layers) == [3] * layers


def test_menus_must_match():
    with pytest.raises(InputError, match="0 and 0 are given"):
        Menu([], [])
    with pytest.raises(InputError, match="1 and 2 are given"):
        Menu([COSTS] * 2, [OPTIONS])
    with pytest.raises(InputError, match=r"layer 1: .*0 options and 4 sizes"):
        Menu([COSTS] * 2, [OPTIONS, []])
