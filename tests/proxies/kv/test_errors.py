from __future__ import annotations

import math

import pytest
import torch

from tightfit.proxies.kv.errors import (
    CacheError,
    Stored,
    attention_output,
    cache_error,
    error_table,
    relative_error,
)
from tightfit.spaces.kv import KvOption


def test_nothing_lost_is_no_error(make_states):
    states = make_states()
    assert cache_error(states, 1, Stored(states.keys[1], states.values[1])) == CacheError(0, 0, 0)


def test_relative_error_by_hand():
    assert relative_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0])) == pytest.approx(1 / 25)
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0
    assert relative_error(torch.zeros(2), torch.ones(2)) == math.inf


def test_errors_by_hand():
    class States:
        keys = (torch.tensor([0.0, math.log(3)]).reshape(1, 1, 2, 1),)
        values = (torch.tensor([4.0, 8.0]).reshape(1, 1, 2, 1),)
        queries = (torch.ones(1, 1, 1, 1),)
        windows = (None,)
        scalings = (1.0,)

    # Output (4 + 3 · 8) / 4 = 7; with keys forgotten 6, with values of 4 and 4 it is 4.
    flat = torch.zeros(1, 1, 2, 1)
    found = cache_error(States(), 0, Stored(flat, States.values[0]))
    assert (found.key, found.value, found.output) == (1.0, 0.0, pytest.approx(1 / 49, rel=1e-5))
    found = cache_error(States(), 0, Stored(States.keys[0], torch.full((1, 1, 2, 1), 4.0)))
    assert (found.key, found.value, found.output) == (
        0.0,
        pytest.approx(16 / 80),
        pytest.approx(9 / 49, rel=1e-5),
    )
    # Only the second token kept: attention has nothing but its value, 8.
    kept = Stored(States.keys[0][:, :, 1:], States.values[0][:, :, 1:], torch.tensor([[[1]]]))
    found = cache_error(States(), 0, kept)
    assert (found.key, found.value, found.output) == (0.0, 0.0, pytest.approx(1 / 49, rel=1e-5))


@pytest.mark.parametrize("window", [None, 9])
def test_output_is_that_of_torch(make_states, window):
    states = make_states(layers=1, window=window)
    position = torch.arange(40)
    back = position[-6:, None] - position
    mask = (back >= 0) & (back < (window or 40))
    expected = torch.nn.functional.scaled_dot_product_attention(
        states.queries[0], states.keys[0], states.values[0], attn_mask=mask, scale=0.5, enable_gqa=True
    )
    found = attention_output(states.queries[0], states.keys[0], states.values[0], 0.5, window)
    torch.testing.assert_close(found.reshape(expected.shape), expected)


@pytest.mark.parametrize("window", [None, 9])
def test_keeping_every_token_by_position_changes_nothing(make_states, window):
    states = make_states(layers=1, window=window)
    everything = torch.arange(40).expand(2, 2, 40)
    found = cache_error(states, 0, Stored(states.keys[0], states.values[0], everything))
    assert found == CacheError(0, 0, pytest.approx(0, abs=1e-12))


def test_tokens_out_of_the_window_can_be_evicted_freely(make_states):
    states = make_states(layers=1, window=9)
    kept = torch.arange(40 - 6 - 8, 40).expand(2, 2, -1)
    stored = Stored(*(x[0][:, :, 26:] for x in (states.keys, states.values)), kept)
    assert cache_error(states, 0, stored).output == pytest.approx(0, abs=1e-12)


def test_every_head_may_keep_its_own_tokens(make_states):
    states = make_states(layers=1)
    positions = torch.stack([torch.randperm(34)[:10].sort().values for _ in range(4)]).reshape(2, 2, 10)
    positions = torch.cat([positions, torch.arange(34, 40).expand(2, 2, 6)], -1)
    index = positions.unsqueeze(-1).expand(-1, -1, -1, 8)
    stored = Stored(states.keys[0].gather(2, index), states.values[0].gather(2, index), positions)
    back = torch.arange(34, 40)[:, None] - torch.arange(40)
    kept = torch.zeros(2, 2, 40, dtype=torch.bool).scatter_(2, positions, True)
    mask = (kept.unsqueeze(2) & (back >= 0)).repeat_interleave(2, dim=1)
    expected = torch.nn.functional.scaled_dot_product_attention(
        states.queries[0], states.keys[0], states.values[0], attn_mask=mask, scale=0.5, enable_gqa=True
    )
    exact = attention_output(states.queries[0], states.keys[0], states.values[0], 0.5)
    found = cache_error(states, 0, stored)
    assert found.output == pytest.approx(relative_error(exact.reshape(expected.shape), expected), rel=1e-5)
    assert (found.key, found.value) == (0, 0)


def test_table_asks_for_every_option_of_every_layer(make_states):
    states = make_states()
    options = [[KvOption(8, 8), KvOption(4, 4)], [KvOption(2, 2)]]

    def store(layer: int, option: KvOption) -> Stored:
        step = 2.0**-option.k_bits
        return Stored(*((x[layer] / step).round() * step for x in (states.keys, states.values)))

    table = error_table(states, options, store)
    assert [len(row) for row in table] == [2, 1]
    assert 0 < table[0][0].output < table[0][1].output
    assert table[1][0] == cache_error(states, 1, store(1, KvOption(2, 2)))
