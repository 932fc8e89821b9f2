from __future__ import annotations

import numpy as np
import pytest
from tests.proxies.timing import NOISE, TYPES, machine, mixes, space_of, timed

from tightfit.proxies.latency import LatencyTable, Products
from tightfit.proxies.latency_design import design_plans
from tightfit.proxies.latency_fit import LatencySample, fit_latency, paired_samples
from tightfit.spaces import GgmlOption, InputError, Space


def errors_of(table: LatencyTable, space: Space, seed: int, classes: float = 0.12) -> np.ndarray:
    """Relative errors on plans that nobody timed, against the machine without noise."""
    products = table.products(space.geometry)
    truth, plans = machine(products, seed, classes), mixes(space, 60, seed)
    predicted = np.array([table.predict(space.geometry, plan) for plan in plans])
    seconds = np.array([truth(plan) for plan in plans])
    assert np.std(seconds) / np.mean(seconds) > 0.03  # there is something to predict
    return predicted / seconds - 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("count", "most"), [(12, 0.04), (24, 0.03)])
def test_plans_that_were_never_timed_are_predicted_within_a_few_per_cent(
    seed: int, count: int, most: float
) -> None:
    space = space_of(tied=seed % 2 == 0)
    truth = machine(Products(space.geometry), seed)
    samples = timed(space, design_plans(space, count, seed), truth, seed)
    table = fit_latency(space.geometry, samples, truth(samples[0].options))
    errors = errors_of(table, space, seed)
    assert np.sqrt((errors**2).mean()) < most
    assert np.abs(errors).max() < 3 * most
    assert table.plans == count


@pytest.mark.parametrize("seed", range(4))
def test_times_of_a_prompt_are_predicted_too(seed: int) -> None:
    space = space_of()
    truth = machine(Products(space.geometry, "prompt", 128), seed)
    samples = timed(space, design_plans(space, 20, seed, "prompt"), truth, seed)
    table = fit_latency(space.geometry, samples, truth(samples[0].options), "prompt", 128)
    assert np.sqrt((errors_of(table, space, seed) ** 2).mean()) < 0.04


def test_the_error_of_plans_left_out_is_that_of_new_plans() -> None:
    """Over several machines, it is right on average: the noise of the plans left out is in it."""
    stated, true = [], []
    for seed in range(8):
        space = space_of()
        truth = machine(Products(space.geometry), seed)
        samples = timed(space, design_plans(space, 24, seed), truth, seed)
        table = fit_latency(space.geometry, samples, truth(samples[0].options))
        stated.append(table.error**2)
        true.append((errors_of(table, space, seed) ** 2).mean() + NOISE**2)
    assert 0.7 < np.sqrt(np.mean(stated) / np.mean(true)) < 2.0


def test_speed_that_is_not_monotone_in_bits_is_found() -> None:
    """The slowest format has the fewest bits here, as with codebooks on a processor."""
    space = space_of()
    products = Products(space.geometry)
    slow = {"Q2_K": 4e-10, "IQ3_S": 5e-10}

    def truth(options: object) -> float:
        classes = products.classes(options)  # type: ignore[arg-type]
        return 1e-4 + sum(slow.get(c[0], 1e-10) * products.work(c) for c in classes)

    table = fit_latency(space.geometry, timed(space, design_plans(space, 16, 0), truth, 0), 1.0)
    assert sorted(table.types, key=lambda t: -table.types[t])[:2] == ["IQ3_S", "Q2_K"]
    seconds = table.seconds_of(space.geometry, space.decisions)[0]
    names = [option.name for option in space.decisions[0].options]
    assert seconds[names.index("Q2_K")] > seconds[names.index("Q4_K")]


def test_a_format_seen_elsewhere_falls_back_to_its_own_rate_and_an_unseen_one_to_that_of_all() -> None:
    space = space_of()
    truth = machine(Products(space.geometry), 3, classes=0.0)
    plans = design_plans(space, 20, 3)
    # Nobody times Q8_0 anywhere, nor Q5_K in the head.
    without = [
        tuple(
            0 if d.options[x].name == "Q8_0" or (d.name == "embed" and d.options[x].name == "Q5_K") else x
            for d, x in zip(space.decisions, plan, strict=True)
        )
        for plan in plans
    ]
    samples = timed(space, without, truth, 3)
    table = fit_latency(space.geometry, samples, truth(samples[0].options))
    assert "Q8_0" not in table.types
    assert ("Q5_K", 4096, 256) not in table.classes
    products = table.products(space.geometry)
    head = table.seconds(products, ("Q5_K", 4096, 256)) / products.work(("Q5_K", 4096, 256))
    own = truth({"layers.0.mlp.down_proj": GgmlOption("Q5_K")}) - truth({})
    assert head == pytest.approx(own / products.work(("Q5_K", 256, 768)), rel=0.15)
    unseen = table.seconds(products, ("Q8_0", 256, 256)) / products.work(("Q8_0", 256, 256))
    assert unseen == pytest.approx(table.rate, rel=0.5)
    assert min(table.types.values()) < table.rate < max(table.types.values())


def test_nothing_takes_less_than_no_time() -> None:
    """Noise alone, as large as all differences: no rate turns negative."""
    space = space_of()
    rng = np.random.default_rng(5)
    options = [space.site_options(space.plan(plan)) for plan in design_plans(space, 12, 5)]
    samples = [LatencySample(each, float(rng.lognormal(0, 0.5)), 0.1) for each in options]
    table = fit_latency(space.geometry, samples, 1.0)
    assert table.fixed >= 0
    assert table.rate >= 0
    assert min(table.types.values()) >= 0
    assert min(table.classes.values()) >= 0


def test_too_little_is_refused() -> None:
    space = space_of()
    samples = [LatencySample(space.site_options(space.plan(p)), 1.0, 0.0) for p in design_plans(space, 3, 0)]
    with pytest.raises(InputError, match="3 timed plans are too few for a table: time at least 4"):
        fit_latency(space.geometry, samples, 1.0)
    with pytest.raises(InputError, match=r"the baseline takes 0\.0 s"):
        fit_latency(space.geometry, samples * 2, 0.0)
    with pytest.raises(InputError, match="ratios are greater than 0"):
        LatencySample({}, float("nan"), 0.1)
    assert len(TYPES) == 8


def test_what_slows_a_round_down_cancels_in_its_ratios() -> None:
    space = space_of()
    truth = machine(Products(space.geometry), 1)
    options = [space.site_options(space.plan(plan)) for plan in design_plans(space, 12, 1)]
    true = np.array([truth(each) for each in options])
    rng = np.random.default_rng(6)
    moods = rng.lognormal(0, 0.4, 9)  # of the machine, round by round
    seconds = true[:, None] * moods * rng.lognormal(0, 0.01, (len(true), 9))
    samples = paired_samples(options, seconds)
    assert samples[0].ratio == 1.0
    ratios = np.array([sample.ratio for sample in samples])
    errors = np.array([sample.ratio_se for sample in samples])
    own = np.log(ratios) - np.log(true)
    missed = own - own.mean()  # the baseline's own error is in all ratios
    assert np.abs(missed).max() < 0.02
    assert 0.4 < np.sqrt(np.mean((missed / (errors / ratios)) ** 2)) < 2.0


def test_a_single_round_is_trusted_little() -> None:
    (base, other) = paired_samples([{}, {}], np.array([[2.0], [3.0]]))
    assert (base.ratio, other.ratio) == (1.0, pytest.approx(1.5))
    assert other.ratio_se == pytest.approx(0.045)


@pytest.mark.parametrize("seconds", [[[1.0]], [[1.0], [0.0]], [[1.0], [float("nan")]], [1.0, 2.0]])
def test_times_that_are_none_are_refused(seconds: list[object]) -> None:
    with pytest.raises(InputError, match="time"):
        paired_samples([{}, {}], np.array(seconds))
