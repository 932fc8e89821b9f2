"""Loss against speed: plans that were run in their tool, the bound on speed, and what was predicted."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from tightfit.proxies.latency import Phase
from tightfit.search.front_figure import LOSS, Mark, ring
from tightfit.search.hardware import Bound, SpeedRow
from tightfit.search.palette import (
    BUDGET,
    INK,
    KINDS,
    axis,
    error_bars,
    layout,
    log_axis,
    log_floor,
    plain,
    safe,
    see_through,
)
from tightfit.search.speed_points import MEASURES, Measure, Point, keeps

MIB = 2**20


def speed_figure(
    points: Sequence[Point],
    bounds: Sequence[Bound] = (),
    phase: Phase = "generate",
    marked: Mark | None = None,
) -> go.Figure:
    """Draw loss against speed, with the interval of the median and one standard error of the loss as bars.

    Baselines are stars, the chosen plan is ringed, plans that miss a bound on speed are grey.

    Args:
        points: plans whose losses were measured on the same tokens.
        bounds: on speed; that of the phase is drawn as a line.
        phase: what is on the horizontal axis.
        marked: a plan that somebody is looking at; drawn where it is one of the points.
    """
    figure, measure = go.Figure(), MEASURES[phase]
    floor = log_floor(point.row.measured.kl for point in points)
    slow = [point for point in points if not keeps(bounds, point.speed)]
    if slow:
        figure.add_trace(_trace("slower than asked", slow, measure, floor, see_through(INK, 0.6)))
    for kind, (colour, _, _, name) in KINDS.items():
        members = [point for point in points if point.run.kind == kind and point not in slow]
        if members:
            figure.add_trace(_trace(name, members, measure, floor, colour))
    for point in points:
        if point.row.chosen:
            figure.add_trace(ring("chosen", point.digest, *_place(point, floor)))
    for point in points:
        if marked and point.digest == marked.digest:
            figure.add_trace(ring("selected", point.digest, *_place(point, floor)))
    figure.update_layout(layout(420, showlegend=True))
    line = next((_level(bound, measure) for bound in bounds if bound.phase == phase), None)
    figure.update_xaxes(axis(measure.title, range=_across(points, line)))
    figure.update_yaxes(log_axis(LOSS, *_up(points, floor)))
    if line is not None:
        _draw_bound(figure, line, f"asked for: {plain(line)} {measure.unit}", phase)
    return figure


def ratio_figure(rows: Sequence[SpeedRow]) -> go.Figure:
    """Draw predicted against measured speed, both over the baseline's, with the line where both agree.

    Args:
        rows: plans with a prediction, such as :func:`~tightfit.search.speed_points.predicted_rows` returns.
    """
    figure, colour = go.Figure(), KINDS["searched"][0]
    predicted = [1 / row.predicted["generate"] for row in rows]
    # Ratios are of times, of which speeds are the inverse: the ends of the interval change places.
    spans = [tuple(1 / x for x in row.measured["generate"]) for row in rows]
    # Bars of a busy machine may be so long that all points would fall into one spot.
    ends = [*predicted, *(middle for middle, _, _ in spans)]
    margin = max(0.5 * (max(ends) - min(ends)), 0.05)
    line = [min(ends) - margin, max(ends) + margin]
    figure.add_trace(
        go.Scatter(
            x=line,
            y=line,
            mode="lines",
            name="prediction = measurement",
            line={"color": INK, "width": 1.5, "dash": "dot"},
            hoverinfo="skip",
        )
    )
    bars = {"type": "data", "color": colour, "thickness": 1.2, "width": 3}
    figure.add_trace(
        go.Scatter(
            x=predicted,
            y=[middle for middle, _, _ in spans],
            mode="markers",
            name="plans that were run",
            marker={"color": colour, "size": 8, "opacity": 0.8},
            error_y={
                **bars,
                "array": [high - middle for middle, high, _ in spans],
                "arrayminus": [middle - low for middle, _, low in spans],
            },
            hovertext=[
                f"<b>{safe(row.label)}</b><br>measured {plain(middle)} × the baseline's speed<br>"
                f"predicted {plain(x)} ×"
                for row, x, (middle, _, _) in zip(rows, predicted, spans, strict=True)
            ],
            hoverinfo="text",
            customdata=[row.digest for row in rows],
        )
    )
    figure.update_layout(layout(360))
    figure.update_xaxes(axis("predicted speed ÷ baseline", range=line))
    figure.update_yaxes(axis("measured speed ÷ baseline", range=line))
    return figure


def _trace(name: str, points: Sequence[Point], measure: Measure, floor: float, colour: str) -> go.Scatter:
    places = [_place(point, floor) for point in points]
    losses = [y for _, y in places]
    styles = [KINDS[point.run.kind] for point in points]
    return go.Scatter(
        x=[x for x, _ in places],
        y=losses,
        mode="markers",
        name=name,
        marker={
            "color": colour,
            "size": [size for _, _, size, _ in styles],
            "symbol": [symbol for _, symbol, _, _ in styles],
            "line": {"width": 1.5, "color": colour},
            "opacity": 1,
        },
        error_x={
            "type": "data",
            "array": [point.at.high - point.at.median for point in points],
            "arrayminus": [point.at.median - point.at.low for point in points],
            "color": colour,
            "thickness": 1.2,
            "width": 3,
        },
        error_y=error_bars(losses, [point.row.kl_se for point in points], colour),
        hovertext=[_hover(point, measure) for point in points],
        hoverinfo="text",
        customdata=[point.digest for point in points],
    )


def _place(point: Point, floor: float) -> tuple[float, float]:
    return point.at.median, max(point.row.measured.kl, floor)


def _level(bound: Bound, measure: Measure) -> float:
    """Where a bound in seconds is on the axis."""
    return measure.scale * (1 / bound.seconds if bound.phase == "generate" else bound.seconds)


def _across(points: Sequence[Point], line: float | None) -> list[float]:
    ends = [end for point in points for end in (point.at.low, point.at.high)]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    # A bound that is far off would press all plans into one spot; the words beside the figure name it.
    if line is not None and low / 2 <= line <= 2 * high:
        low, high = min(low, line), max(high, line)
    margin = 0.06 * (high - low) or 0.02 * high
    return [max(0.0, low - margin), high + margin]


def _up(points: Sequence[Point], floor: float) -> tuple[float, float]:
    losses = [point.row.measured.kl + s * (point.row.kl_se or 0.0) for point in points for s in (-1, 1)]
    shown = [max(loss, floor) for loss in losses] or [floor]
    return 0.8 * min(shown), 1.25 * max(shown)


def _draw_bound(figure: go.Figure, line: float, text: str, phase: Phase) -> None:
    figure.add_vline(x=line, line={"color": BUDGET, "width": 2, "dash": "dash"})
    figure.add_annotation(
        x=line,
        y=0.99,
        yref="paper",
        text=text,
        textangle=-90,
        # On the side where plans keep it.
        xanchor="left" if phase == "generate" else "right",
        yanchor="top",
        showarrow=False,
        font={"color": BUDGET, "size": 12},
    )


def _hover(point: Point, measure: Measure) -> str:
    row, at = point.row, point.at
    se = f" ± {plain(row.kl_se)}" if row.kl_se is not None else ""
    lines = [
        f"<b>{safe(point.run.label)}</b>" + (" · chosen" if row.chosen else ""),
        f"{plain(at.median)} {measure.unit} ({plain(at.low)} to {plain(at.high)})",
        f"loss {plain(row.measured.kl)}{se} nats/token",
        f"{row.bytes / MIB:.2f} MiB of weights",
        f"plan {row.short}",
    ]
    return "<br>".join(lines)
