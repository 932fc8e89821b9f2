"""Loss against size: measured plans, the predicted front, the budget, and the plan that somebody looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import plotly.graph_objects as go

from tightfit.search.facts import PredictedPoint
from tightfit.search.palette import (
    BUDGET,
    CHOSEN,
    INK,
    KINDS,
    PREDICTED,
    SELECTED,
    axis,
    error_bars,
    layout,
    log_axis,
    log_floor,
    plain,
    safe,
    see_through,
)
from tightfit.search.summary import PlanRow

MIB = 2**20
LOSS = "KL(reference ‖ plan), nats/token"


@dataclass(frozen=True)
class Mark:
    """A plan to point out in a figure, measured or not.

    Attributes:
        loss: measured if it was, predicted otherwise; nats per token.
    """

    digest: str
    bytes: int
    loss: float


def front_figure(
    rows: Sequence[PlanRow],
    predicted: Sequence[PredictedPoint] = (),
    limit: int | None = None,
    marked: Mark | None = None,
) -> go.Figure:
    """Draw loss against bytes: measured plans with error bars, the predicted front as a line.

    Filled marks are on the measured front; dominated ones are hollow and faint, those above the budget
    grey. Baselines are stars, the chosen plan is ringed. The axes open on the measured plans; a double
    click shows everything.

    Args:
        rows: plans measured on the same tokens.
        predicted: the exact front over the loss model.
        limit: the budget in bytes.
        marked: a plan that somebody is looking at.
    """
    figure = go.Figure()
    losses = [row.measured.kl for row in rows] + [point.loss for point in predicted]
    floor = log_floor([*losses, marked.loss] if marked else losses)
    if predicted:
        figure.add_trace(_predicted_trace(predicted, floor))
    # What matters most is drawn last, over the rest.
    above = [row for row in rows if limit is not None and row.bytes > limit]
    within = [row for row in rows if row not in above]
    if above:
        figure.add_trace(_above_trace(above, floor))
    best = {row.kind for row in within if not row.dominated}
    for dominated in (True, False):
        for kind in KINDS:
            members = [row for row in within if row.kind == kind and row.dominated == dominated]
            if members:
                trace = _measured_trace(kind, members, floor, dominated)
                # One entry per kind in the legend, which shows and hides all of it.
                figure.add_trace(trace.update(legendgroup=kind, showlegend=not dominated or kind not in best))
    chosen = [row for row in rows if row.chosen]
    if chosen:
        figure.add_trace(ring("chosen", chosen[0].digest, *_place(chosen[0], floor)))
    if marked:
        x, y = marked.bytes / MIB, max(marked.loss, floor)
        figure.add_trace(ring("selected", marked.digest, x, y))
    xs, ys = _window(rows, predicted, limit, floor, marked)
    figure.update_layout(layout(480, showlegend=True))
    caches = any(row.cache_bytes for row in rows) or any(point.cache_bytes for point in predicted)
    figure.update_xaxes(axis("weights and KV cache, MiB" if caches else "weights, MiB", range=xs))
    figure.update_yaxes(log_axis(LOSS, *ys))
    if limit is not None:
        _mark_budget(figure, limit)
    return figure


def _predicted_trace(points: Sequence[PredictedPoint], floor: float) -> go.Scatter:
    return go.Scatter(
        x=[p.bytes / MIB for p in points],
        y=[max(p.loss, floor) for p in points],
        mode="lines",
        name="predicted front",
        # The best plan at a size stays the best one until the next plan fits.
        line={"color": PREDICTED, "width": 2, "shape": "hv"},
        hovertext=[
            f"predicted front<br>{_size(p.bytes, p.cache_bytes, p.effective_bits)}<br>"
            f"predicted loss {plain(p.loss)} nats/token<br>plan {safe(p.digest[:12])}"
            for p in points
        ],
        hoverinfo="text",
        customdata=[p.digest for p in points],
    )


def _measured_trace(kind: str, rows: Sequence[PlanRow], floor: float, dominated: bool) -> go.Scatter:
    colour, symbol, size, name = KINDS[kind]
    faint = see_through(colour, 0.55) if dominated else colour
    trace = _points(rows, floor, faint, f"{name}, dominated" if dominated else name)
    symbols = f"{symbol}-open" if dominated else symbol
    marker = {"color": faint, "size": size, "symbol": symbols, "line": {"width": 1.5, "color": faint}}
    return trace.update(marker=marker)


def _above_trace(rows: Sequence[PlanRow], floor: float) -> go.Scatter:
    """Plans of every kind that the budget does not allow."""
    faint = see_through(INK, 0.6)
    styles = [KINDS[row.kind] for row in rows]
    marker = {
        "color": faint,
        "size": [size for _, _, size, _ in styles],
        "symbol": [
            f"{symbol}-open" if row.dominated else symbol
            for row, (_, symbol, _, _) in zip(rows, styles, strict=True)
        ],
        "line": {"width": 1.5, "color": faint},
    }
    return _points(rows, floor, faint, "above the budget").update(marker=marker)


def _points(rows: Sequence[PlanRow], floor: float, colour: str, name: str) -> go.Scatter:
    places = [_place(row, floor) for row in rows]
    losses = [y for _, y in places]
    return go.Scatter(
        x=[x for x, _ in places],
        y=losses,
        mode="markers",
        name=name,
        error_y=error_bars(losses, [row.kl_se for row in rows], colour),
        hovertext=[_measured_hover(row) for row in rows],
        hoverinfo="text",
        customdata=[row.digest for row in rows],
    )


def _place(row: PlanRow, floor: float) -> tuple[float, float]:
    return row.bytes / MIB, max(row.measured.kl, floor)


def ring(name: Literal["chosen", "selected"], digest: str, x: float, y: float) -> go.Scatter:
    """Return a ring around the point of the chosen plan, or a box around the one that is looked at."""
    colour, symbol = (CHOSEN, "circle-open") if name == "chosen" else (SELECTED, "square-open")
    return go.Scatter(
        x=[x],
        y=[y],
        mode="markers",
        name=name,
        marker={"symbol": symbol, "size": 22, "color": colour, "line": {"width": 3}},
        hoverinfo="skip",
        customdata=[digest],
    )


def _mark_budget(figure: go.Figure, limit: int) -> None:
    figure.add_vline(x=limit / MIB, line={"color": BUDGET, "width": 2, "dash": "dash"})
    figure.add_annotation(
        x=limit / MIB,
        y=0.99,
        yref="paper",
        text=f"budget {limit / MIB:.2f} MiB",
        textangle=-90,
        xanchor="right",
        yanchor="top",
        showarrow=False,
        font={"color": BUDGET, "size": 12},
    )


def _window(
    rows: Sequence[PlanRow],
    predicted: Sequence[PredictedPoint],
    limit: int | None,
    floor: float,
    marked: Mark | None = None,
) -> tuple[list[float], tuple[float, float]]:
    """Return the ranges of x (MiB) and y (nats per token) that hold measured plans, budget and mark."""
    sizes = [row.bytes / MIB for row in rows] or [point.bytes / MIB for point in predicted]
    sizes += [limit / MIB] if limit is not None else []
    sizes += [marked.bytes / MIB] if marked else []
    low, high = (min(sizes), max(sizes)) if sizes else (0.0, 1.0)
    margin = 0.06 * (high - low) or 0.02 * high
    left, right = low - margin, high + margin
    spread = [row.kl_se or 0.0 for row in rows]
    losses = [row.measured.kl + se for row, se in zip(rows, spread, strict=True)]
    losses += [row.measured.kl - se for row, se in zip(rows, spread, strict=True)]
    losses += [point.loss for point in predicted if left <= point.bytes / MIB <= right]
    losses += [marked.loss] if marked else []
    shown = [max(loss, floor) for loss in losses] or [floor]
    return [left, right], (0.8 * min(shown), 1.25 * max(shown))


def _measured_hover(row: PlanRow) -> str:
    measured = row.measured
    se = f" ± {plain(row.kl_se)}" if row.kl_se is not None else ""
    lines = [
        f"<b>{safe(row.label)}</b>" + (" · chosen" if row.chosen else ""),
        _size(row.bytes, row.cache_bytes, row.effective_bits),
        f"loss {plain(measured.kl)}{se} nats/token",
        f"perplexity {measured.perplexity:.2f}, top-1 agreement {measured.agreement:.1%}",
        f"predicted {plain(row.predicted)} nats/token" if row.predicted is not None else "",
        f"plan {row.short}" + (" · dominated" if row.dominated else ""),
    ]
    return "<br>".join(line for line in lines if line)


def _size(size: int, cache: int, effective_bits: float | None) -> str:
    bits = f", {effective_bits:.3f} effective bits" if effective_bits is not None else ""
    if not cache:
        return f"{size / MIB:.2f} MiB{bits}"
    weights = f"{(size - cache) / MIB:.2f} MiB of weights{bits}"
    return f"{size / MIB:.2f} MiB<br>{weights}<br>{cache / MIB:.2f} MiB of KV cache"
