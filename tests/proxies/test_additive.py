from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tightfit.proxies import Amplifying, Coupling, Identity, LinkAdditive, synergy

MODEL = LinkAdditive((np.array([0.3, 0.1]), np.array([0.2, -0.05, 0.0])), Amplifying(2.0))
LEVELS = np.array([[0, 0], [1, 1], [1, 2]])


def test_scores_of_the_chosen_options_add_up():
    assert MODEL.additive_score(LEVELS) == pytest.approx([0.5, 0.05, 0.1])


def test_loss_is_the_link_of_the_score():
    assert MODEL.predict(LEVELS) == pytest.approx(np.expm1(2 * np.array([0.5, 0.05, 0.1])) / 2)


def test_negative_scores_count_as_gains():
    assert MODEL.predict(np.array([[1, 1]])) < MODEL.predict(np.array([[1, 2]]))


def test_no_plans_give_no_predictions():
    assert MODEL.predict(np.zeros((0, 2), dtype=int)).shape == (0,)


def test_plans_of_another_space_are_refused():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        MODEL.predict(np.zeros((1, 3), dtype=int))


def test_survives_json():
    back = LinkAdditive.from_dict(json.loads(json.dumps(MODEL.to_dict())))
    assert back.link == MODEL.link
    assert (back.predict(LEVELS) == MODEL.predict(LEVELS)).all()


def test_synergy_is_one_where_losses_add():
    assert synergy(0.6, [0.1, 0.2, 0.3]) == pytest.approx(1.0)


def test_synergy_of_an_amplifying_model_exceeds_one():
    single = [float(MODEL.link(np.array(w))) for w in (0.3, 0.2)]
    assert synergy(float(MODEL.predict(LEVELS[:1])[0]), single) > 1.2


def test_synergy_of_nothing_is_not_a_number():
    assert math.isnan(synergy(0.0, [0.0]))
    assert synergy(0.0, [0.1]) == 0.0


def test_identity_predicts_the_sum_itself():
    assert LinkAdditive(MODEL.weights, Identity()).predict(LEVELS) == pytest.approx([0.5, 0.05, 0.1])


def test_couplings_add_to_the_score_before_the_link():
    coupling = Coupling((1, 0), np.array([[0.4, 0.0], [0.0, -0.1], [0.0, 0.0]]))
    coupled = LinkAdditive(MODEL.weights, MODEL.link, (coupling,))
    assert coupled.additive_score(LEVELS) == pytest.approx([0.9, -0.05, 0.1])
    assert coupled.predict(LEVELS) == pytest.approx(np.expm1(2 * np.array([0.9, -0.05, 0.1])) / 2)
    back = LinkAdditive.from_dict(json.loads(json.dumps(coupled.to_dict())))
    assert (back.predict(LEVELS) == coupled.predict(LEVELS)).all()


def test_models_stored_without_couplings_have_none():
    assert set(MODEL.to_dict()) == {"weights", "link"}
    assert LinkAdditive.from_dict(MODEL.to_dict()).couplings == ()
