from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.search.speeds import add_speeds

from tightfit.search.front_figure import Mark
from tightfit.search.hardware import Bound
from tightfit.search.palette import INK, see_through
from tightfit.search.speed_figure import ratio_figure, speed_figure
from tightfit.search.speed_points import Point, points_of
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    store = fake_run()
    digests = [*(entry["digest"] for entry in store.get("baselines")), *store.get("finalists")]
    add_speeds(store, {digest: 100.0 + 10 * i for i, digest in enumerate(digests)})
    return summarize(store)


@pytest.fixture
def points(summary: Summary) -> list[Point]:
    return points_of(summary, summary.front, "generate")


def traces(figure: object) -> dict[str, object]:
    return {trace.name: trace for trace in figure.data}


def at_least(rate: float) -> Bound:
    return Bound("tokens_per_second", "generate", 1 / rate, f"{rate:g} tokens/s")


def test_every_plan_is_shown_once_with_both_error_bars(points: list[Point]) -> None:
    found = traces(speed_figure(points))
    assert list(found) == ["searched", "uniform", "two-width mix", "chosen"]
    shown = {}
    for name in ("searched", "uniform", "two-width mix"):
        trace = found[name]
        for i, digest in enumerate(trace.customdata):
            ends = (trace.error_x.arrayminus[i], trace.error_x.array[i], trace.error_y.array[i])
            shown[digest] = (trace.x[i], trace.y[i], *ends)
    assert set(shown) == {point.digest for point in points}
    for point in points:
        at, row = point.at, point.row
        wanted = (at.median, row.measured.kl, at.median - at.low, at.high - at.median, row.kl_se)
        assert shown[point.digest] == pytest.approx(wanted)


def test_baselines_are_stars_and_the_chosen_plan_is_ringed(points: list[Point]) -> None:
    found = traces(speed_figure(points))
    assert set(found["uniform"].marker.symbol) == {"star"}
    assert set(found["two-width mix"].marker.symbol) == {"hexagram"}
    (chosen,) = [point for point in points if point.row.chosen]
    assert list(found["chosen"].customdata) == [chosen.digest]
    assert list(found["chosen"].x) == [chosen.at.median]


def test_a_bound_is_a_line_and_plans_that_miss_it_are_grey(points: list[Point]) -> None:
    rates = sorted(point.at.median for point in points)
    bound = (rates[2] + rates[3]) / 2
    figure = speed_figure(points, [at_least(bound)])
    slow = traces(figure)["slower than asked"]
    assert sorted(slow.x) == rates[:3]
    assert slow.marker.color == see_through(INK, 0.6)
    assert figure.layout.shapes[0].x0 == pytest.approx(bound)
    assert f"{bound:.0f} tokens/s" in figure.layout.annotations[0].text
    # Greyed by every bound, drawn only where it is on the axis.
    prompt = speed_figure(points, [at_least(bound)], "prompt")
    assert len(traces(prompt)["slower than asked"].x) == 3
    assert not prompt.layout.shapes
    assert "slower than asked" not in traces(speed_figure(points, [at_least(1.0)]))


def test_a_bound_far_away_does_not_press_the_plans_into_one_spot(points: list[Point]) -> None:
    high = max(point.at.high for point in points)
    near, far = (speed_figure(points, [at_least(x * high)]).layout.xaxis.range[1] for x in (1.5, 1e6))
    assert 1.5 * high < near < 2 * high
    assert high < far < 1.2 * high


def test_the_axes_hold_every_bar(points: list[Point]) -> None:
    layout = speed_figure(points).layout
    assert layout.xaxis.range[0] < min(point.at.low for point in points)
    assert layout.xaxis.range[1] > max(point.at.high for point in points)
    assert layout.yaxis.range[1] > math.log10(max(p.row.measured.kl + p.row.kl_se for p in points))


def test_a_plan_that_somebody_looks_at_is_marked_where_it_was_run(points: list[Point]) -> None:
    digest = points[0].digest
    selected = traces(speed_figure(points, marked=Mark(digest, 1, 1.0)))["selected"]
    assert (list(selected.customdata), list(selected.x)) == ([digest], [points[0].at.median])
    assert "selected" not in traces(speed_figure(points, marked=Mark("0" * 64, 1, 1.0)))


def test_names_are_shown_not_read_as_markup(points: list[Point]) -> None:
    evil = replace(points[0], run=replace(points[0].run, label="<a href='http://x'>mix</a>"))
    (text,) = [text for trace in speed_figure([evil]).data if trace.hovertext for text in trace.hovertext]
    assert "<a" not in text
    assert "&lt;a" in text
    for part in ("tokens/s", "nats/token", "MiB of weights", points[0].row.short):
        assert part in text


def test_ratios_of_speeds_are_the_inverse_of_those_of_times(summary: Summary) -> None:
    row = replace(summary.speeds[1], predicted={"generate": 0.8}, measured={"generate": (0.5, 0.4, 1.0)})
    figure = ratio_figure([row])
    line, points = figure.data
    assert list(points.x) == [pytest.approx(1.25)]
    assert list(points.y) == [pytest.approx(2.0)]
    assert list(points.error_y.array) == [pytest.approx(0.5)]
    assert list(points.error_y.arrayminus) == [pytest.approx(1.0)]
    assert list(line.x) == list(line.y) == list(figure.layout.xaxis.range) == list(figure.layout.yaxis.range)
    assert line.x[0] < 1.25
    assert line.x[1] > 2.0


def test_long_bars_do_not_press_ratios_into_one_spot(summary: Summary) -> None:
    row = replace(summary.speeds[1], predicted={"generate": 0.9}, measured={"generate": (1.0, 0.01, 2.0)})
    low, high = ratio_figure([row]).layout.yaxis.range
    assert low < 1.0 < 1 / 0.9 < high < 2.0
