from __future__ import annotations

import math

import pytest
import torch

from tightfit.proxies.kv.attention import attention_mass, prefill_masses, visible


def test_queries_see_themselves_and_what_came_before():
    assert visible(2, 4, None).tolist() == [[True, True, True, False], [True, True, True, True]]
    assert visible(2, 4, 2).tolist() == [[False, True, True, False], [False, False, True, True]]


def test_mass_by_hand():
    # One head of width 1, keys 0, ln 2 and 0; queries 1 and 2 at positions 1 and 2.
    keys = torch.tensor([0.0, math.log(2), 0.0]).reshape(1, 1, 3, 1)
    queries = torch.tensor([1.0, 2.0]).reshape(1, 1, 2, 1)
    # Position 1: weights 1 : 2 over two tokens. Position 2: 1 : 4 : 1 over three.
    expected = [(1 / 3 + 1 / 6) / 2, (2 / 3 + 4 / 6) / 2, (0 + 1 / 6) / 2]
    assert attention_mass(queries, keys, 1.0)[0, 0].tolist() == pytest.approx(expected, rel=1e-6)


def test_scaling_and_window_by_hand():
    keys = torch.tensor([5.0, math.log(9), 0.0]).reshape(1, 1, 3, 1)
    queries = torch.tensor([7.0, 1.0]).reshape(1, 1, 2, 1)[:, :, -1:]
    # Half of ln 9 is ln 3; the first token is out of a window of two.
    assert attention_mass(queries, keys, 0.5, 2)[0, 0].tolist() == pytest.approx([0, 3 / 4, 1 / 4])


def test_query_heads_of_a_kv_head_are_averaged(make_states):
    states = make_states(layers=1)
    queries, keys = states.queries[0], states.keys[0]
    grouped = attention_mass(queries, keys, 0.5)
    single = attention_mass(queries, keys.repeat_interleave(2, dim=1), 0.5)
    torch.testing.assert_close(grouped, single.reshape(2, 2, 2, -1).mean(2))


@pytest.mark.parametrize("window", [None, 50, 40, 17, 6, 3, 1])
def test_mass_sums_to_one_and_stays_in_the_window(make_states, window):
    states = make_states(window=window)
    for mass in prefill_masses(states):
        torch.testing.assert_close(mass.sum(-1), torch.ones(2, 2))
        if window is not None:
            assert (mass[..., : max(0, 40 - 6 - window + 1)] == 0).all()


def test_keys_that_a_window_has_dropped_change_nothing(make_states):
    states = make_states(layers=1)
    queries, keys = states.queries[0][:, :, -1:], states.keys[0]
    whole = attention_mass(queries, keys, 0.5, 10)
    torch.testing.assert_close(attention_mass(queries, keys[:, :, -10:], 0.5, 10), whole[..., -10:])


def test_more_queries_than_keys(make_states):
    states = make_states(layers=1)
    mass = attention_mass(states.queries[0], states.keys[0][:, :, -3:], 0.5, 3)
    torch.testing.assert_close(mass.sum(-1), torch.ones(2, 2))


def test_half_precision_is_summed_in_float32(make_states):
    states = make_states(layers=1)
    mass = attention_mass(states.queries[0].bfloat16(), states.keys[0].bfloat16(), 0.5)
    assert mass.dtype == torch.float32
    expected = attention_mass(states.queries[0].bfloat16().float(), states.keys[0].bfloat16().float(), 0.5)
    torch.testing.assert_close(mass, expected)
