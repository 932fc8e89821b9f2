from __future__ import annotations

import json

import numpy as np
import pytest

from tightfit.proxies import Amplifying, Coupling, Coverage, Fit, Identity, LinkAdditive, fit_link_additive
from tightfit.proxies.fitting import FEWEST_PLANS
from tightfit.spaces import InputError


def fit(world, plans: int = 30, seed: int = 0) -> Fit:
    levels = world.draw(plans, seed)
    return fit_link_additive(world.scores, world.groups, levels, *world.measure(levels, seed), seed)


def error(model: LinkAdditive, world, seed: int = 0) -> float:
    """Relative RMS error on plans that no fit has seen."""
    fresh = world.draw(200, seed + 1000)
    return float(np.sqrt(np.mean((model.predict(fresh) / world.truth.predict(fresh) - 1) ** 2)))


def test_amplifying_truth_is_chosen_and_recovered(make_world):
    fits = [fit(make_world(Amplifying(1.5), seed, level=0.8), plans=40, seed=seed) for seed in range(5)]
    assert [f.model.link.name for f in fits].count("amplifying") >= 4
    kappas = [f.model.link.kappa for f in fits if isinstance(f.model.link, Amplifying)]
    assert np.median(kappas) == pytest.approx(1.5, rel=0.35)


def test_coverage_truth_is_not_called_amplifying(make_world):
    fits = [fit(make_world(Coverage(1.0), seed, level=0.8), plans=40, seed=seed) for seed in range(3)]
    for f in fits:
        rows = {row.link: row.error for row in f.table}
        assert f.model.link.name != "amplifying"
        assert rows["coverage"] < rows["amplifying"]


def test_identity_truth_selects_identity(make_world):
    names = [fit(make_world(Identity(), seed), seed=seed).model.link.name for seed in range(5)]
    assert names.count("identity") >= 4


@pytest.mark.parametrize("link", [Identity(), Amplifying(1.2)], ids=lambda link: link.name)
def test_fitting_beats_the_prior_out_of_sample(make_world, link):
    better = 0
    for seed in range(10):
        world = make_world(link, seed, blocks=8)
        # The fair opponent knows the fitted link and scale, and lacks only the plans' corrections.
        fitted = fit(world, seed=seed)
        scale = np.median(list(fitted.scales.values()))
        prior = tuple(scale * fitted.model.link.inverse(row) for row in world.scores)
        better += error(fitted.model, world, seed) < error(
            LinkAdditive(prior, fitted.model.link), world, seed
        )
    assert better >= 9


def test_chosen_link_is_the_simplest_within_one_standard_error(make_world):
    f = fit(make_world(Amplifying(1.5), 0, level=0.8))
    assert f.model.link.name == next(row.link for row in f.table if row.excess <= 1.0)
    assert min(row.excess for row in f.table) == 0.0
    assert [row.link for row in f.table] == ["identity", "amplifying", "coverage", "isotonic"]


def test_cross_validated_error_foretells_the_error_on_new_plans(make_world):
    world = make_world(Identity(), 3)
    f = fit(world, plans=60)
    levels = world.draw(60, 0)
    held = np.sqrt(np.mean((f.held_out / world.truth.predict(levels) - 1) ** 2))
    assert held == pytest.approx(error(f.model, world), rel=0.6)
    inside = np.sqrt(np.mean((f.model.predict(levels) / world.truth.predict(levels) - 1) ** 2))
    assert held > inside, "held-out predictions must not have seen their plans"


def test_type_and_width_factors_are_found(make_world):
    world = make_world(Identity(), 1)
    wrong = [
        row * np.where(np.array([kind == "down_proj" for kind, _ in labels]), 0.5, 1.0)
        for row, labels in zip(world.scores, world.groups, strict=True)
    ]
    levels = world.draw(60, 1)
    f = fit_link_additive(wrong, world.groups, levels, *world.measure(levels, 1), 1)
    assert f.scales["down_proj", 3] > 1.4 * f.scales["up_proj", 3]


def test_a_single_site_far_off_its_prior_may_move_and_turn_negative():
    rng = np.random.default_rng(0)
    scores = [np.array([0.02, 0.0]) for _ in range(10)]
    groups = [[("mlp", 3), ("mlp", 16)]] * 10
    levels = rng.integers(0, 2, (60, 10))
    truth = LinkAdditive((np.array([-0.01, 0.0]), *scores[1:]), Identity())
    losses = truth.predict(levels) + 0.05
    scores.append(np.array([0.05]))  # a choice that every plan makes
    groups = [*groups, [("head", 8)]]
    levels = np.column_stack([levels, np.zeros(60, dtype=int)])
    f = fit_link_additive(scores, groups, levels, losses, np.full(60, 1e-4), 0)
    assert f.model.weights[0][0] < 0 < f.model.weights[1][0]


def test_negative_scores_are_not_clamped(make_world):
    world = make_world(Identity(), 2)
    scores = [row.copy() for row in world.scores]
    scores[5][0] = -0.01
    levels = world.draw(30, 2)
    f = fit_link_additive(scores, world.groups, levels, *world.measure(levels, 2), 2)
    assert f.model.weights[5][0] < 0


def test_an_exact_option_stays_free(make_world):
    world = make_world(Amplifying(1.2), 4)
    scores = [np.append(row, 0.0) for row in world.scores]
    groups = [[*row, (row[0][0], 16)] for row in world.groups]
    levels = world.draw(30, 4)
    f = fit_link_additive(scores, groups, levels, *world.measure(levels, 4), 4)
    assert all(row[-1] == 0.0 for row in f.model.weights)


def test_without_plans_the_prior_comes_back(make_world):
    world = make_world(Identity(), 5)
    f = fit_link_additive(world.scores, world.groups, np.zeros((0, 60), int), np.zeros(0), np.zeros(0), 0)
    assert f.model.link == Identity()
    assert all((w == s).all() for w, s in zip(f.model.weights, world.scores, strict=True))
    assert f.table == ()
    assert set(f.scales.values()) == {1.0}


@pytest.mark.parametrize("plans", [1, FEWEST_PLANS - 1])
def test_few_plans_move_only_the_common_factor(make_world, plans):
    world = make_world(Identity(), 6)
    scores = [row / 1.3 for row in world.scores]
    levels = world.draw(plans, 6)
    f = fit_link_additive(scores, world.groups, levels, *world.measure(levels, 6), 0)
    ratios = np.concatenate([w / s for w, s in zip(f.model.weights, scores, strict=True)])
    assert ratios == pytest.approx(np.full(len(ratios), ratios[0]))
    assert f.table == ()
    assert error(f.model, world) < error(LinkAdditive(tuple(scores), Identity()), world)


def test_smallest_number_of_plans_that_is_compared(make_world):
    assert len(fit(make_world(Identity(), 7), plans=FEWEST_PLANS).table) == 4


def test_same_seed_same_fit(make_world):
    world = make_world(Amplifying(1.2), 8)
    first, second = fit(world), fit(world)
    assert first.to_dict() == second.to_dict()


def test_fit_is_plain_data(make_world):
    f = fit(make_world(Amplifying(1.2), 8))
    data = json.loads(json.dumps(f.to_dict()))
    assert data["plans"] == 30
    assert LinkAdditive.from_dict(data["model"]).link == f.model.link


def test_unknown_standard_errors_are_allowed_but_losses_must_be_finite(make_world):
    world = make_world(Identity(), 9)
    levels = world.draw(8, 9)
    losses, ses = world.measure(levels, 9)
    f = fit_link_additive(world.scores, world.groups, levels, losses, np.full(8, np.inf), 0)
    assert error(f.model, world) < 0.2
    with pytest.raises(ValueError, match="finite"):
        fit_link_additive(world.scores, world.groups, levels, losses * np.nan, ses, 0)


def test_ragged_groups_must_match_the_scores(make_world):
    world = make_world(Identity(), 9)
    with pytest.raises(ValueError, match="per decision and option"):
        fit_link_additive(world.scores, world.groups[:-1], world.draw(8, 9), np.ones(8), np.ones(8), 0)


def test_plans_without_any_loss_are_no_trouble():
    scores, groups = [np.array([0.0, 0.0])], [[("mlp", 8), ("mlp", 16)]]
    f = fit_link_additive(scores, groups, np.zeros((8, 1), int), np.zeros(8), np.zeros(8), 0)
    assert f.model.predict(np.array([[0], [1]])) == pytest.approx([0.0, 0.0])


def test_couplings_are_taken_as_they_are(make_world):
    world = make_world(Amplifying(1.2), 3)
    excess = np.zeros((4, 4))
    excess[:2, :2] = 0.15
    couplings = tuple(Coupling((4 * block, 4 * block + 3), excess) for block in range(3))
    truth = LinkAdditive(world.truth.weights, world.truth.link, couplings)
    levels = world.draw(60, 3)
    losses = truth.predict(levels)
    f = fit_link_additive(world.scores, world.groups, levels, losses, 0.01 * losses, 0, couplings)
    assert f.model.couplings == couplings
    plain = fit_link_additive(world.scores, world.groups, levels, losses, 0.01 * losses, 0)
    fresh = world.draw(200, 4)
    rms = [np.mean((m.predict(fresh) / truth.predict(fresh) - 1) ** 2) ** 0.5 for m in (f.model, plain.model)]
    assert rms[0] < 0.6 * rms[1]
    held = [np.mean((row.held_out / losses - 1) ** 2) ** 0.5 for row in (f, plain)]
    assert held[0] < 0.7 * held[1]


def test_a_coupling_without_excess_changes_nothing(make_world):
    world = make_world(Identity(), 2)
    levels = world.draw(20, 2)
    coupling = Coupling((0, 1), np.zeros((4, 4)))
    plans = (levels, *world.measure(levels, 2))
    coupled = fit_link_additive(world.scores, world.groups, *plans, 0, [coupling])
    plain = fit_link_additive(world.scores, world.groups, *plans, 0)
    assert {**coupled.to_dict(), "model": None} == {**plain.to_dict(), "model": None}
    assert all((a == b).all() for a, b in zip(coupled.model.weights, plain.model.weights, strict=True))


def test_a_coupling_of_another_space_is_refused(make_world):
    world = make_world(Identity(), 2)
    levels = world.draw(8, 2)
    plans = (levels, *world.measure(levels, 2))
    with pytest.raises(InputError, match="these decisions have"):
        fit_link_additive(world.scores, world.groups, *plans, 0, [Coupling((0, 1), np.zeros((4, 3)))])
