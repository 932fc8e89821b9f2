from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tightfit.search.figures import plan_figure, sensitivity_figure
from tightfit.search.map_figures import bits_colour
from tightfit.search.maps import Cell, cache_label
from tightfit.search.palette import BITS_COLOURS
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize
from tightfit.spaces import GgmlOption


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


def test_a_plan_for_llama_cpp_is_drawn_with_its_types(summary: Summary) -> None:
    types = ("Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q4_0", "IQ4_NL", "Q8_0")
    options = [GgmlOption(name) for name in types]

    def typed(cell: Cell, option: GgmlOption) -> Cell:
        stored = 8 * option.block_bytes / option.block
        return replace(cell, option=option.name, bits=option.bits, type=option.type, stored=stored)

    rows = tuple(
        tuple(typed(c, o) for c, o in zip(row, options, strict=True)) for row in summary.layout.cells
    )
    apart = tuple(typed(cell, GgmlOption("Q8_0")) for cell in summary.layout.apart)
    figure = plan_figure(replace(summary.layout, cells=rows, apart=apart))
    body, strip = figure.data
    assert list(body.text[0]) == list(types)
    assert list(strip.text[0]) == ["embed = head Q8_0"]
    places = dict(zip(types, body.z[0], strict=True))
    assert places["Q2_K"] < places["Q3_K"] < places["IQ4_XS"] < places["Q4_K"] < places["Q8_0"]
    assert places["Q4_K"] == places["Q4_0"] == places["IQ4_NL"]  # 4.5 bits each
    assert places["Q4_K"] == pytest.approx(2.5)  # between the colours of 4 and 5 bits
    assert "Q4_K: 4.5 stored bits per weight" in body.hovertext[0][3]
    (key,) = figure.layout.annotations
    shown = re.findall(r"</span> (\w+)", key.text)
    assert shown == ["Q2_K", "Q3_K", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_K", "Q8_0"]
    assert key.text.count("<br>") == 1


def test_colours_of_stored_bits_lie_between_those_of_the_widths_around_them() -> None:
    assert {bits: bits_colour(bits) for bits in BITS_COLOURS} == BITS_COLOURS
    assert bits_colour(1.5) == BITS_COLOURS[2]
    assert bits_colour(64) == BITS_COLOURS[32]
    channels = lambda colour: [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    low, middle, high = (channels(bits_colour(bits)) for bits in (4, 4.5, 5))
    assert middle == [pytest.approx((a + b) / 2, abs=0.51) for a, b in zip(low, high, strict=True)]


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


def test_caches_are_a_column_beside_the_matrices(fake_run: Callable[..., Store]) -> None:
    summary = summarize(fake_run(kv=True))
    figure = plan_figure(summary.layout)
    body, caches, _ = figure.data
    assert [row[0] for row in caches.text] == [cache_label(cell.cache) for cell in summary.layout.caches]
    assert [row[0] for row in caches.customdata] == [f"layers.{layer}.kv" for layer in range(4)]
    assert (caches.yaxis, list(caches.y)) == (body.yaxis, list(body.y))
    assert figure.layout.xaxis.domain[1] < figure.layout.xaxis3.domain[0]
    widths = list(BITS_COLOURS)
    cell = summary.layout.caches[0].cache
    assert caches.z[0][0] == min(range(len(widths)), key=lambda i: abs(widths[i] - cell.bits))
    assert (
        f"keys {cell.k_bits} bits, values {cell.v_bits} bits, {cell.keep:.0%} of the tokens"
        in (caches.hovertext[0][0])
    )
    shown = sensitivity_figure(summary.sensitivity)
    assert [row[0] for row in shown.data[1].customdata] == [row[0] for row in caches.customdata]


def test_figures_without_caches_have_no_room_for_them(summary: Summary) -> None:
    layout = plan_figure(summary.layout).layout
    assert tuple(layout.xaxis.domain) == (0, 1)
    assert "xaxis3" not in layout.to_plotly_json()
