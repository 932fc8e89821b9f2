from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from tightfit.search.figures import plan_figure, sensitivity_figure
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    return summarize(fake_run())


def test_a_plan_is_drawn_with_its_bits(summary: Summary) -> None:
    figure = plan_figure(summary.layout)
    body, strip = figure.data
    assert [list(row) for row in body.text] == [[str(c.bits) for c in row] for row in summary.layout.cells]
    assert list(body.x) == ["q", "k", "v", "o", "gate", "up", "down"]
    assert list(strip.text[0]) == ["embed = head 8"]
    assert figure.layout.yaxis.autorange == "reversed"
    colours = {
        (z, text)
        for zs, texts in zip(body.z, body.text, strict=True)
        for z, text in zip(zs, texts, strict=True)
    }
    assert len(colours) == len({text for _, text in colours})


def test_sensitivity_is_drawn_on_a_logarithmic_scale(summary: Summary) -> None:
    figure = sensitivity_figure(summary.sensitivity)
    body = figure.data[0]
    low, high = figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax
    for zs, cells in zip(body.z, summary.sensitivity.cells, strict=True):
        for z, cell in zip(zs, cells, strict=True):
            assert z == pytest.approx(min(max(math.log10(cell.loss), low), high))
    assert "nats/token" in figure.layout.coloraxis.colorbar.title.text
    assert cell.option in body.hovertext[-1][-1]
    assert "±" in body.hovertext[-1][-1]


def test_sensitivities_of_zero_and_below_are_the_darkest(summary: Summary) -> None:
    sites = summary.sensitivity
    first = (
        replace(sites.cells[0][0], loss=-1e-6),
        replace(sites.cells[0][1], loss=0.0),
        *sites.cells[0][2:],
    )
    figure = sensitivity_figure(replace(sites, cells=(first, *sites.cells[1:])))
    low = figure.layout.coloraxis.cmin
    assert list(figure.data[0].z[0][:2]) == [low, low]
