from __future__ import annotations

import json

import numpy as np
import pytest

from tightfit.proxies import Amplifying, Coupling, Coverage, Identity, LinkAdditive, PooledModel, read_model
from tightfit.proxies.pools import check_pools, within_pools
from tightfit.spaces import InputError

WEIGHTS = (np.array([0.3, 0.1]), np.array([0.2, -0.05, 0.0]), np.array([0.5, 0.0]))
POOLS = (("weights", (0, 2)), ("cache", (1,)))
LEVELS = np.array([[0, 0, 0], [1, 1, 1], [0, 2, 1]])
MODEL = PooledModel(WEIGHTS, POOLS, (Amplifying(2.0), Coverage(1.5)))


def test_every_pool_goes_through_its_own_link():
    weights, cache = np.array([0.8, 0.1, 0.3]), np.array([0.2, -0.05, 0.0])
    assert MODEL.additive_scores(LEVELS) == pytest.approx(np.column_stack([weights, cache]))
    expected = np.expm1(2 * weights) / 2 + 1.5 * (1 - np.exp(-cache / 1.5))
    assert MODEL.predict(LEVELS) == pytest.approx(expected)


def test_couplings_add_to_the_scores_of_their_pool():
    coupled = PooledModel(
        WEIGHTS, POOLS, MODEL.links, (Coupling((2, 0), np.array([[0.1, 0.0], [0.0, 0.0]])),)
    )
    added = coupled.additive_scores(LEVELS) - MODEL.additive_scores(LEVELS)
    assert added == pytest.approx(np.array([[0.1, 0.0], [0.0, 0.0], [0.0, 0.0]]))


def test_identity_everywhere_is_one_link():
    one = LinkAdditive(WEIGHTS, Identity()).predict(LEVELS)
    assert PooledModel(WEIGHTS, POOLS, (Identity(), Identity())).predict(LEVELS) == pytest.approx(one)


def test_no_plans_give_no_predictions():
    assert MODEL.predict(np.zeros((0, 3), dtype=int)).shape == (0,)


def test_plans_of_another_space_are_refused():
    with pytest.raises(ValueError, match="plans have 4 decisions, the model has 3"):
        MODEL.predict(np.zeros((1, 4), dtype=int))


def test_both_models_survive_json():
    coupling = Coupling((0, 2), np.full((2, 2), 0.1))
    for model in (
        MODEL,
        PooledModel(WEIGHTS, POOLS, MODEL.links, (coupling,)),
        LinkAdditive(WEIGHTS, Amplifying(1.0)),
        LinkAdditive(WEIGHTS, Amplifying(1.0), (coupling,)),
    ):
        back = read_model(json.loads(json.dumps(model.to_dict())))
        assert type(back) is type(model)
        assert (back.predict(LEVELS) == model.predict(LEVELS)).all()


@pytest.mark.parametrize(
    "pools",
    [
        (("a", (0, 1)),),
        (("a", (0, 1)), ("b", (1, 2))),
        (("a", (0, 1, 2)), ("b", ())),
        (("a", (0,)), ("a", (1, 2))),
        (("a", (0, 1)), ("b", (3,))),
    ],
)
def test_pools_must_partition_the_decisions(pools):
    with pytest.raises(InputError, match="the pools a"):
        check_pools(pools, 3)


def test_couplings_are_counted_within_their_pool():
    inside = Coupling((2, 0), np.zeros((2, 2)))
    ((renumbered,), none) = within_pools([inside], POOLS)
    assert renumbered.decisions == (1, 0)
    assert none == []
    with pytest.raises(InputError, match=r"decisions \(0, 1\) must lie within one pool"):
        within_pools([Coupling((0, 1), np.zeros((2, 3)))], POOLS)


def test_every_pool_needs_a_link():
    with pytest.raises(InputError, match="2 pools need as many links, not 1"):
        PooledModel(WEIGHTS, POOLS, (Identity(),))
