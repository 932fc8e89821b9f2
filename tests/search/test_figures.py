from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tightfit.search.facts import ReliabilityPoint
from tightfit.search.figures import front_figure, plan_figure, reliability_figure, sensitivity_figure
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    return summarize(fake_run())


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
