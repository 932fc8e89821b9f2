from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tightfit.proxies.kv.rank import (
    low_rank_cache,
    principal_directions,
    project,
    rank_bytes,
    rank_within,
)
from tightfit.spaces import InputError


def test_direction_by_hand():
    # All tokens on one line: its direction, and nothing is lost at rank 1 (halves are exact).
    states = torch.tensor([[3.0, 4.0], [-6.0, -8.0]]).reshape(1, 1, 2, 2)
    directions = principal_directions([states])
    assert directions[0, :, 0].abs().tolist() == pytest.approx([0.6, 0.8])
    torch.testing.assert_close(project(states, directions, 1), states)


def test_directions_are_the_right_singular_vectors(make_states):
    first, second = make_states().keys
    directions = principal_directions([first, second])
    for head in range(2):
        tokens = torch.cat([first[:, head].reshape(-1, 8), second[:, head].reshape(-1, 8)])
        _, values, rows = np.linalg.svd(tokens.numpy(), full_matrices=False)
        overlap = np.abs(rows @ directions[head].numpy())
        np.testing.assert_allclose(overlap, np.eye(8), atol=1e-3)
        for rank in (1, 3, 7):
            lost = tokens - project(tokens[None, None], directions[head, None], rank)[0, 0]
            assert lost.square().sum().item() == pytest.approx((values[rank:] ** 2).sum(), rel=1e-3)


def test_full_rank_loses_only_the_rounding_of_coefficients(make_states):
    states = make_states(layers=1)
    read = project(states.keys[0], principal_directions([states.keys[0]]), 8)
    torch.testing.assert_close(read, states.keys[0], atol=4e-3, rtol=0)


def test_ends_are_kept_whole(make_states):
    keys = make_states(layers=1).keys[0]
    read = project(keys, principal_directions([keys]), 1, sinks=2, residual=3)
    whole = torch.cat([read[:, :, :2], read[:, :, -3:]], 2)
    torch.testing.assert_close(whole, torch.cat([keys[:, :, :2], keys[:, :, -3:]], 2).half().float())
    assert (read[:, :, 2:-3] - keys[:, :, 2:-3]).abs().max() > 0.1


def test_bytes_by_hand():
    assert rank_bytes(100, kv_heads=3, width=64, rank=16) == 100 * 3 * 16 * 2
    assert rank_bytes(100, 3, 64, 16, sinks=4, residual=32) == 3 * 2 * (64 * 16 + 36 * 64)
    assert rank_bytes(10, 3, 64, 16, sinks=4, residual=32) == 3 * 2 * 10 * 64
    # 4 bits of 64 channels are what 16 coefficients of 16 bits take.
    assert rank_within(100 * 3 * 64 // 2, 100, 3, 64) == 16
    assert rank_within(100 * 3 * 64 // 2 - 1, 100, 3, 64) == 15
    assert rank_within(100 * 3 * 2 - 1, 100, 3, 64) is None


def test_cache_of_both(make_states):
    states = make_states(layers=1)
    keys, values = states.keys[0], states.values[0]
    directions = principal_directions([keys]), principal_directions([values])
    read_keys, read_values, size = low_rank_cache(keys, values, directions, (5, 2))
    torch.testing.assert_close(read_keys, project(keys, directions[0], 5))
    torch.testing.assert_close(read_values, project(values, directions[1], 2))
    assert size == 2 * 40 * 2 * (5 + 2) * 2


@pytest.mark.parametrize("rank", [0, 9])
def test_impossible_rank(make_states, rank):
    keys = make_states(layers=1).keys[0]
    with pytest.raises(InputError, match=f"rank of {rank} is not between 1 and the head width, 8"):
        project(keys, principal_directions([keys]), rank)


def test_no_calibration_tokens():
    with pytest.raises(InputError, match="at least one calibration token"):
        principal_directions([])
    assert math.isfinite(principal_directions([torch.ones(1, 1, 1, 2)]).sum().item())
