from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from tightfit.search.facts import ReliabilityPoint
from tightfit.search.figures import front_figure, plan_figure, reliability_figure, sensitivity_figure
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize

MIB = 2**20


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    return summarize(fake_run())


def traces(figure: object) -> dict[str, object]:
    return {trace.name: trace for trace in figure.data}


def test_the_front_shows_every_plan_with_its_digest(summary: Summary) -> None:
    figure = front_figure(summary.front.rows, summary.predicted, summary.limit)
    found = traces(figure)
    assert list(found) == ["predicted front", "searched", "uniform", "two-width mix", "chosen"]
    shown = [
        (digest, x, y)
        for name in ("searched", "uniform", "two-width mix")
        for digest, x, y in zip(found[name].customdata, found[name].x, found[name].y, strict=True)
    ]
    assert sorted(shown) == sorted((r.digest, r.bytes / MIB, r.measured.kl) for r in summary.front.rows)
    assert list(found["chosen"].customdata) == [summary.result.chosen]
    assert list(found["predicted front"].x) == [point.bytes / MIB for point in summary.predicted]


def test_baselines_are_stars_and_diamonds_and_dominated_plans_hollow(summary: Summary) -> None:
    found = traces(front_figure(summary.front.rows))
    for name, kind, symbol in (("uniform", "uniform", "star"), ("two-width mix", "mix", "diamond")):
        rows = [row for row in summary.front.rows if row.kind == kind]
        assert list(found[name].marker.symbol) == [f"{symbol}-open" if r.dominated else symbol for r in rows]


def test_error_bars_are_standard_errors_and_stay_above_zero(summary: Summary) -> None:
    row = summary.chosen
    noisy = replace(
        row.measured, documents=(row.measured.documents[0], replace(row.measured.documents[1], kl=1e-9))
    )
    found = traces(front_figure([replace(row, measured=noisy)]))["searched"]
    assert found.error_y.array[0] == pytest.approx(noisy.kl_se)
    assert noisy.kl_se > 0.95 * noisy.kl
    assert found.y[0] - found.error_y.arrayminus[0] > 0


def test_a_loss_of_zero_is_drawn_although_the_axis_is_logarithmic(summary: Summary) -> None:
    row = summary.chosen
    lossless = replace(row.measured, documents=tuple(replace(d, kl=0.0) for d in row.measured.documents))
    rows = [replace(row, measured=lossless, chosen=False), summary.baseline]
    figure = front_figure(rows, summary.predicted, summary.limit)
    drawn = traces(figure)["searched"].y[0]
    low, high = figure.layout.yaxis.range
    assert low < math.log10(drawn) < high
    assert "loss 0 " in traces(figure)["searched"].hovertext[0]


def test_axes_open_on_the_measured_plans_and_the_budget(summary: Summary) -> None:
    figure = front_figure(summary.front.rows, summary.predicted, summary.limit)
    low, high = figure.layout.xaxis.range
    sizes = [row.bytes / MIB for row in summary.front.rows] + [summary.limit / MIB]
    assert low < min(sizes)
    assert max(sizes) < high
    assert high < summary.predicted[-1].bytes / MIB
    assert figure.layout.shapes[0].x0 == summary.limit / MIB
    assert figure.layout.yaxis.type == "log"


def test_axes_have_units_and_hovering_tells_what_a_point_is(summary: Summary) -> None:
    figure = front_figure(summary.front.rows, summary.predicted, summary.limit)
    assert figure.layout.xaxis.title.text == "weights, MiB"
    assert "nats/token" in figure.layout.yaxis.title.text
    row, text = summary.chosen, traces(figure)["searched"].hovertext[0]
    for part in (row.short, f"{row.bytes / MIB:.2f} MiB", "effective bits", "±", "perplexity", "chosen"):
        assert part in text


def test_labels_are_shown_not_read_as_markup(summary: Summary) -> None:
    row = replace(summary.chosen, label="<a href='http://x'>mix</a>")
    text = traces(front_figure([row]))["searched"].hovertext[0]
    assert "<a" not in text
    assert "&lt;a" in text


def test_every_figure_draws_with_nothing_but_the_budget_or_a_single_plan(summary: Summary) -> None:
    for rows, predicted, limit in (
        ([], [], None),
        ([], [], summary.limit),
        ([summary.chosen], [], None),
        ([], summary.predicted, summary.limit),
    ):
        figure = front_figure(rows, predicted, limit)
        low, high = figure.layout.xaxis.range
        assert low < high
        json.loads(figure.to_json())


@pytest.mark.parametrize("draw", ["front", "reliability", "sensitivity", "plan"])
def test_figures_are_transparent_and_keep_their_zoom(summary: Summary, draw: str) -> None:
    figure = {
        "front": lambda: front_figure(summary.front.rows, summary.predicted, summary.limit),
        "reliability": lambda: reliability_figure(summary.reliability),
        "sensitivity": lambda: sensitivity_figure(summary.sensitivity),
        "plan": lambda: plan_figure(summary.layout),
    }[draw]()
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert figure.layout.uirevision
    assert figure.layout.font.size >= 12


def test_reliability_has_equal_axes_and_a_line_where_both_agree() -> None:
    points = [ReliabilityPoint("a" * 64, 0.2, 0.25, 0.01), ReliabilityPoint("b" * 64, 0.4, 0.3)]
    figure = reliability_figure(points)
    line, marks = figure.data
    assert list(line.x) == list(line.y)
    assert figure.layout.xaxis.range == figure.layout.yaxis.range
    assert (list(marks.x), list(marks.y)) == ([0.2, 0.4], [0.25, 0.3])
    assert list(marks.customdata) == ["a" * 64, "b" * 64]
