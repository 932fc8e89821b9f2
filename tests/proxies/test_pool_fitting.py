from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from tightfit.proxies import (
    Amplifying,
    Coupling,
    Coverage,
    Identity,
    LinkAdditive,
    PooledModel,
    choose_model,
    fit_link_additive,
    fit_pools,
    fitting,
    read_model,
)
from tightfit.spaces import InputError

SIZES, OPTIONS = (16, 8), 3
POOLS = (("weights", tuple(range(16))), ("cache", tuple(range(16, 24))))


@dataclass(frozen=True)
class PooledWorld:
    """A simulated model of two pools whose plans' losses are known."""

    scores: list[np.ndarray]
    groups: list[list[tuple[str, int]]]
    truth: PooledModel

    def draw(self, plans: int, seed: int) -> np.ndarray:
        """Plans whose pools are aggressive independently of one another."""
        rng = np.random.default_rng([seed, 96])
        tilt = np.repeat(rng.normal(0, 0.9, (plans, 2)), SIZES, axis=1)[:, :, None] * np.arange(OPTIONS)
        return (tilt + rng.gumbel(size=(plans, sum(SIZES), OPTIONS))).argmax(axis=2)

    def measured(self, plans: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Plans, their losses with 1 % of noise, and standard errors."""
        levels = self.draw(plans, seed)
        losses = self.truth.predict(levels)
        noise = np.random.default_rng([seed, 95]).normal(size=plans)
        return levels, losses * (1 + 0.01 * noise), 0.01 * losses

    def error(self, model: LinkAdditive | PooledModel) -> float:
        """Relative RMS error on plans that no fit has seen."""
        fresh = self.draw(300, 1000)
        return float(np.sqrt(np.mean((model.predict(fresh) / self.truth.predict(fresh) - 1) ** 2)))


def make(links, seed: int = 0, couplings: tuple[Coupling, ...] = ()) -> PooledWorld:
    rng = np.random.default_rng([seed, 94])
    scores, groups, truth = [], [], []
    for kind, size, link in zip(("mlp", "cache"), SIZES, links, strict=True):
        for _ in range(size):
            prior = rng.lognormal(-0.18, 0.5) * 0.9 / size * 3.0 ** (1.0 - np.arange(OPTIONS))
            truth.append(prior * rng.lognormal(-0.02, 0.1, OPTIONS))
            scores.append(link(prior))
            groups.append([(kind, bits) for bits in range(OPTIONS)])
    return PooledWorld(scores, groups, PooledModel(tuple(truth), POOLS, links, couplings))


@pytest.fixture(autouse=True)
def few_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds take the time, and three tell as much here as ten."""
    monkeypatch.setattr(fitting, "FOLDS", 3)


def test_pools_that_bend_differently_are_found():
    world = make((Amplifying(1.5), Coverage(0.8)))
    plans = world.measured(40, 1)
    choice = choose_model(world.scores, world.groups, *plans, 0, POOLS)
    assert isinstance(choice.model, PooledModel)
    assert [link.name for link in choice.model.links] == ["amplifying", "coverage"]
    one = fit_link_additive(world.scores, world.groups, *plans, 0).model
    assert world.error(choice.model) < 0.5 * world.error(one)
    held = np.sqrt(np.mean((choice.held_out / plans[1] - 1) ** 2))
    assert held < 0.15
    best = next(row for row in choice.table if row.link == "weights amplifying + cache coverage")
    assert [row.link for row in choice.table[:4]] == ["identity", "amplifying", "coverage", "isotonic"]
    assert best.excess <= 1 < min(row.excess for row in choice.table[:4])


def test_one_link_is_kept_where_pools_do_not_help():
    world = make((Identity(), Identity()))
    plans = world.measured(30, 2)
    choice = choose_model(world.scores, world.groups, *plans, 0, POOLS)
    assert isinstance(choice.model, LinkAdditive)
    assert choice.model.link.name == "identity"
    alone = fit_link_additive(world.scores, world.groups, *plans, 0)
    assert choice.model.to_dict() == alone.model.to_dict()
    assert (choice.held_out == alone.held_out).all()
    assert [row.error for row in choice.table[:4]] == [row.error for row in alone.table]


@pytest.mark.parametrize("plans", [0, 4, 12])
def test_a_single_pool_is_the_link_additive_fit(plans):
    world = make((Amplifying(1.0), Amplifying(1.0)))
    measured = world.measured(plans, 3)
    choice = choose_model(world.scores, world.groups, *measured, 5, (("all", tuple(range(24))),))
    alone = fit_link_additive(world.scores, world.groups, *measured, 5)
    assert json.dumps(choice.fit.to_dict()) == json.dumps(alone.to_dict())


def test_too_few_plans_give_one_link():
    world = make((Amplifying(1.0), Coverage(1.0)))
    measured = world.measured(5, 3)
    assert isinstance(choose_model(world.scores, world.groups, *measured, 0, POOLS).model, LinkAdditive)
    with pytest.raises(InputError, match="5 plans are too few to fit pools; at least 6"):
        fit_pools(world.scores, world.groups, *measured, POOLS, 0)


def test_a_coupling_across_pools_counts_under_one_link_only():
    bent = make((Amplifying(1.5), Coverage(0.8)))
    plans = bent.measured(40, 1)
    across = Coupling((0, 20), np.full((OPTIONS, OPTIONS), 0.01))
    choice = choose_model(bent.scores, bent.groups, *plans, 0, POOLS, [across])
    assert isinstance(choice.model, PooledModel)
    assert choice.model.couplings == ()
    alone = fit_link_additive(bent.scores, bent.groups, *plans, 0, [across])
    assert [row.error for row in choice.table[:4]] == [row.error for row in alone.table]
    with pytest.raises(InputError, match="within one pool"):
        fit_pools(bent.scores, bent.groups, *plans, POOLS, 0, [across])


def test_a_strong_coupling_across_pools_keeps_one_link():
    world = make((Identity(), Identity()))
    excess = np.zeros((OPTIONS, OPTIONS))
    excess[0, 0] = 0.5
    across = Coupling((0, 20), excess)
    levels, losses, ses = world.measured(30, 2)
    losses = losses + across.values(levels)
    choice = choose_model(world.scores, world.groups, levels, losses, ses, 0, POOLS, [across])
    assert isinstance(choice.model, LinkAdditive)
    assert choice.model.couplings == (across,)
    assert max(row.excess for row in choice.table[:1]) <= 1 < min(row.excess for row in choice.table[4:])


def test_couplings_within_pools_are_taken_as_they_are():
    excess = np.zeros((OPTIONS, OPTIONS))
    excess[0, 0] = 0.4
    coupling = Coupling((17, 19), excess)
    world = make((Identity(), Identity()), 1, (coupling,))
    plans = world.measured(20, 5)
    with_it = fit_pools(world.scores, world.groups, *plans, POOLS, 0, [coupling]).model
    without = fit_pools(world.scores, world.groups, *plans, POOLS, 0).model
    assert with_it.couplings == (coupling,)
    assert world.error(with_it) < 0.6 * world.error(without)


def test_fit_is_plain_data():
    world = make((Amplifying(1.5), Coverage(0.8)))
    plans = world.measured(12, 6)
    fit = fit_pools(world.scores, world.groups, *plans, POOLS, 3)
    data = json.loads(json.dumps(fit.to_dict()))
    fresh = world.draw(5, 7)
    assert (read_model(data["model"]).predict(fresh) == fit.model.predict(fresh)).all()
    assert data["plans"] == 12
    assert len(data["held_out"]) == 12
    assert data["scales"][1][0][:2] == ["cache", 0]
    best = next(row.link for row in fit.table if row.excess <= 1)
    assert best == "weights {} + cache {}".format(*(link.name for link in fit.model.links))


def test_pools_in_any_order_of_decisions_give_the_same_fit():
    world = make((Amplifying(1.5), Coverage(0.8)))
    levels, losses, ses = world.measured(12, 8)
    order = np.random.default_rng(0).permutation(24)
    place = np.argsort(order)
    pools = tuple((name, tuple(place[list(members)].tolist())) for name, members in POOLS)
    scores, groups = [world.scores[at] for at in order], [world.groups[at] for at in order]
    mixed = fit_pools(scores, groups, levels[:, order], losses, ses, pools, 0).model
    plain = fit_pools(world.scores, world.groups, levels, losses, ses, POOLS, 0).model
    assert mixed.predict(levels[:, order]) == pytest.approx(plain.predict(levels))


@pytest.mark.parametrize("plans", [6, 9])
def test_a_pool_that_seems_to_lose_less_than_nothing_does_no_harm(plans: int) -> None:
    """What the other pool leaves of few plans' losses may be below 0, where links bend beyond all measure."""
    world = make((Identity(), Identity()))
    for seed in range(4):
        levels, losses, ses = world.measured(plans, seed)
        low = losses - 1.3 * sum(world.scores[d][levels[:, d]] for d in POOLS[1][1])
        with np.errstate(all="raise", under="ignore"):
            choice = choose_model(world.scores, world.groups, levels, np.maximum(low, 1e-3), ses, seed, POOLS)
        assert all(np.isfinite(row.error) for row in choice.table)
        assert np.isfinite(choice.model.predict(world.draw(50, 3))).all()
