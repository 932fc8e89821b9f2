"""Figures: pure functions from rows of a summary to plotly figures, for the report and the app alike.

Points carry the digest of their plan as ``customdata``, so that a click can be told what it hit.
"""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from tightfit.search.facts import ReliabilityPoint
from tightfit.search.front_figure import Mark, front_figure
from tightfit.search.map_figures import plan_figure, sensitivity_figure
from tightfit.search.palette import INK, KINDS, error_bars, layout, log_axis, log_floor, plain, safe

__all__ = ["Mark", "front_figure", "plan_figure", "reliability_figure", "sensitivity_figure"]


def reliability_figure(points: Sequence[ReliabilityPoint]) -> go.Figure:
    """Draw predicted against measured loss of plans that no fit has seen, with the line where both agree."""
    figure = go.Figure()
    losses = [p.predicted for p in points] + [p.measured for p in points]
    low = 1.6 * log_floor(losses)
    high = max([2 * low, *(1.25 * loss for loss in losses)])
    figure.add_trace(
        go.Scatter(
            x=[low, high],
            y=[low, high],
            mode="lines",
            name="prediction = measurement",
            line={"color": INK, "width": 1.5, "dash": "dot"},
            hoverinfo="skip",
        )
    )
    measured = [max(p.measured, low) for p in points]
    figure.add_trace(
        go.Scatter(
            x=[max(p.predicted, low) for p in points],
            y=measured,
            mode="markers",
            name="plans not used in the fit",
            marker={"color": KINDS["searched"][0], "size": 8, "opacity": 0.8},
            error_y=error_bars(measured, [p.se for p in points], KINDS["searched"][0]),
            hovertext=[_reliability_hover(p) for p in points],
            hoverinfo="text",
            customdata=[p.digest for p in points],
        )
    )
    figure.update_layout(layout(420))
    figure.update_xaxes(log_axis("predicted loss, nats/token", low, high))
    figure.update_yaxes(log_axis("measured loss, nats/token", low, high))
    return figure


def _reliability_hover(point: ReliabilityPoint) -> str:
    se = f" ± {plain(point.se)}" if point.se is not None else ""
    return (
        f"measured {plain(point.measured)}{se} nats/token<br>"
        f"predicted {plain(point.predicted)} nats/token<br>plan {safe(point.digest[:12])}"
    )
