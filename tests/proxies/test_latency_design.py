from __future__ import annotations

import numpy as np
from tests.proxies.timing import TYPES, machine, mixes, space_of, timed

from tightfit.proxies.latency import Products
from tightfit.proxies.latency_design import design_plans, uniform_plans
from tightfit.proxies.latency_fit import fit_latency
from tightfit.spaces import Space, WeightRules, build_space, get_target


def classes_of(space: Space, plans: list[tuple[int, ...]]) -> set[tuple[str, int, int]]:
    products = Products(space.geometry)
    return {c for plan in plans for c in products.classes(space.site_options(space.plan(plan)))}


def test_every_uniform_plan_comes_first() -> None:
    space = space_of()
    plans = design_plans(space, 14, 0)
    uniform = set(uniform_plans(space))
    assert len(uniform) >= len(TYPES)  # the base format is offered too
    assert set(plans[: len(uniform)]) == uniform
    assert not set(plans[len(uniform) :]) & uniform
    assert len(set(plans)) == len(plans) == 14


def test_every_class_is_in_some_plan_and_mixed_plans_are_balanced() -> None:
    space = space_of()
    plans = design_plans(space, 30, 1)
    offered = {
        (option.name, *shape)
        for decision in space.decisions
        for option in decision.options
        for site in decision.sites
        if (shape := Products(space.geometry).shape(site)) is not None
    }
    assert classes_of(space, plans) == offered
    mixed = [plan for plan in plans if plan not in uniform_plans(space)]
    assert len(mixed) >= 20
    assert len(classes_of(space, mixed)) >= 0.9 * len(offered)


def test_fewer_plans_than_uniform_ones_are_chosen_among_these() -> None:
    space = space_of()
    plans = design_plans(space, 5, 0)
    assert len(plans) == 5
    assert set(plans) <= set(uniform_plans(space))
    assert design_plans(space, 9, 0)[:5] == plans


def test_the_same_seed_gives_the_same_plans_and_another_one_others() -> None:
    space = space_of()
    assert design_plans(space, 20, 0) == design_plans(space, 20, 0)
    assert design_plans(space, 20, 0) != design_plans(space, 20, 1)


def test_a_small_space_is_listed_and_no_plan_twice() -> None:
    space = space_of()
    pin = {"layers.*": "Q4_K"}
    small = build_space(space.geometry, WeightRules(types=("Q3_K", "Q4_K"), pin=pin), get_target("llama.cpp"))
    assert len(design_plans(small, 30, 0)) == small.size


def test_chosen_plans_tell_more_than_random_ones() -> None:
    """Random plans are all alike: every format everywhere equally often."""
    worse = 0
    for seed in range(5):
        space = space_of()
        truth = machine(Products(space.geometry), seed)
        rng = np.random.default_rng([76, seed])
        drawn = [tuple(int(rng.integers(len(d.options))) for d in space.decisions) for _ in range(16)]
        errors = []
        for plans in (design_plans(space, 16, seed), drawn):
            samples = timed(space, plans, truth, seed)
            table = fit_latency(space.geometry, samples, truth(samples[0].options))
            found = [table.predict(space.geometry, m) / truth(m) - 1 for m in mixes(space, 40, seed)]
            errors.append(np.square(found).mean())
        worse += errors[1] > errors[0]
    assert worse >= 4
