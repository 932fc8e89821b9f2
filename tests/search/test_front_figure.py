from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from tightfit.search.front_figure import Mark, front_figure
from tightfit.search.palette import INK, see_through
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize

MIB = 2**20


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    return summarize(fake_run())


def traces(figure: object) -> dict[str, object]:
    return {trace.name: trace for trace in figure.data}


def test_the_front_shows_every_plan_once_with_its_digest(summary: Summary) -> None:
    figure = front_figure(summary.front.rows, summary.predicted, summary.limit)
    found = traces(figure)
    measured = [name for name in found if name not in ("predicted front", "chosen")]
    assert list(found) == ["predicted front", *measured, "chosen"]
    assert set(measured) >= {"above the budget", "searched", "uniform", "two-width mix, dominated"}
    shown = [
        (digest, x, y)
        for name in measured
        for digest, x, y in zip(found[name].customdata, found[name].x, found[name].y, strict=True)
    ]
    assert sorted(shown) == sorted((r.digest, r.bytes / MIB, r.measured.kl) for r in summary.front.rows)
    assert list(found["chosen"].customdata) == [summary.result.chosen]
    assert list(found["predicted front"].x) == [point.bytes / MIB for point in summary.predicted]


def test_plans_above_the_budget_are_grey_whatever_their_kind(summary: Summary) -> None:
    found = traces(front_figure(summary.front.rows, limit=summary.limit))
    above = found["above the budget"]
    assert list(above.customdata) == [r.digest for r in summary.front.rows if r.bytes > summary.limit]
    assert above.marker.color == see_through(INK, 0.6)
    assert set(above.marker.symbol) <= {"star", "star-open"}
    assert "above the budget" not in traces(front_figure(summary.front.rows))


def test_a_plan_that_somebody_looks_at_is_marked_and_inside_the_axes(summary: Summary) -> None:
    far = Mark("d" * 64, 2 * summary.limit, 1e-4)
    figure = front_figure(summary.front.rows, summary.predicted, summary.limit, far)
    mark = traces(figure)["selected"]
    assert (list(mark.customdata), list(mark.x), list(mark.y)) == (
        [far.digest],
        [far.bytes / MIB],
        [far.loss],
    )
    assert figure.layout.xaxis.range[1] > far.bytes / MIB
    assert figure.layout.yaxis.range[0] < math.log10(far.loss)


def test_a_kind_has_one_entry_in_the_legend(summary: Summary) -> None:
    figure = front_figure(summary.front.rows)
    kinds = [trace.legendgroup for trace in figure.data if trace.legendgroup and trace.showlegend]
    assert sorted(kinds) == ["mix", "searched", "uniform"]
    assert {trace.legendgroup for trace in figure.data if trace.legendgroup} == set(kinds)


def test_baselines_are_stars_and_dominated_plans_hollow_and_faint(summary: Summary) -> None:
    found = traces(front_figure(summary.front.rows))
    for name, kind, symbol in (("uniform", "uniform", "star"), ("two-width mix", "mix", "hexagram")):
        for dominated in (False, True):
            digests = [r.digest for r in summary.front.rows if (r.kind, r.dominated) == (kind, dominated)]
            trace = found.get(f"{name}, dominated" if dominated else name)
            assert list(trace.customdata if trace else ()) == digests
            if trace:
                assert trace.marker.symbol == (f"{symbol}-open" if dominated else symbol)
                assert trace.marker.color.startswith("rgba" if dominated else "#")


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


def test_sizes_are_those_of_weights_and_caches_where_plans_decide_about_both(
    fake_run: Callable[..., Store],
) -> None:
    summary = summarize(fake_run(kv=True))
    figure = front_figure(summary.front.rows, summary.predicted)
    assert figure.layout.xaxis.title.text == "weights and KV cache, MiB"
    chosen = next(trace for trace in figure.data if trace.name == "searched")
    assert f"{summary.chosen.cache_bytes / 2**20:.2f} MiB of KV cache" in chosen.hovertext[0]
    assert front_figure(summary.front.rows[:0]).layout.xaxis.title.text == "weights, MiB"
