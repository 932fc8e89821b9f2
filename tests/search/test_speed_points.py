from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.search.speeds import add_speeds, made_up

from tightfit.search.speed_points import (
    MEASURES,
    asked_bounds,
    keeps,
    points_of,
    predicted_rows,
    speed_front,
)
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize


@pytest.fixture
def store(fake_run: Callable[..., Store]) -> Store:
    return fake_run()


def ask(store: Store, **bounds: object) -> None:
    settings = store.get("settings")
    budget = {**settings["budget"], **bounds}
    store.put("settings", {**settings, "target": "llama.cpp", "budget": budget})


def run_plans(store: Store) -> Summary:
    """Finalists and baselines of the run, one of which could not be run."""
    digests = [*store.get("finalists"), *(entry["digest"] for entry in store.get("baselines"))]
    rates = {digest: 100.0 + i if i != 1 else None for i, digest in enumerate(digests)}
    add_speeds(store, rates)
    return summarize(store)


def test_what_was_asked_for_is_read_from_the_settings(store: Store) -> None:
    assert asked_bounds(summarize(store)) == []
    ask(store, tokens_per_second=50.0, latency="200ms")
    speed, latency = asked_bounds(summarize(store))
    assert (speed.seconds, latency.seconds) == (pytest.approx(1 / 50), pytest.approx(0.2))
    assert keeps([speed], made_up("a" * 64, 51.0))
    assert not keeps([speed], made_up("a" * 64, 49.0))
    assert not keeps([speed, latency], made_up("a" * 64, 1.0))


def test_points_are_plans_that_were_run_and_measured_on_one_text(store: Store) -> None:
    summary = run_plans(store)
    front = speed_front(summary)
    assert front is summary.front
    points = points_of(summary, front, "generate")
    assert {point.digest for point in points} == {row.digest for row in front.rows}
    validation = next(front for front in summary.fronts if front.split == "validation")
    assert len(points_of(summary, validation, "generate")) == len(summary.speeds) - 1  # one was not run
    for point, other in zip(points, points_of(summary, front, "prompt"), strict=True):
        assert point.at.low < point.at.median < point.at.high
        assert point.at.median == point.speed.estimate("generation_rate").median
        # Milliseconds: a prompt of 16 tokens at four times the rate.
        assert other.at.median == pytest.approx(1000 * 16 / (4 * point.at.median), rel=0.05)
    assert set(MEASURES) == {"generate", "prompt"}


def test_a_text_that_measured_none_of_them_is_passed_over(store: Store) -> None:
    add_speeds(store, dict.fromkeys(store.get("finalists")[1:3], 10.0))
    assert speed_front(summarize(store)).split == "validation"
    assert points_of(summarize(store), None, "generate") == []


def test_without_predictions_there_is_nothing_to_compare(store: Store) -> None:
    assert predicted_rows(run_plans(store)) == []
