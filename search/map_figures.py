"""Heat maps of a model: layers by modules, KV caches beside them, embedding and head in a strip above."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tightfit.search.maps import Cell, SiteMap, cache_label
from tightfit.search.palette import BITS_COLOURS, SEQUENTIAL, layout, log_ticks, plain, safe

ROW = 20
"""Height of a layer in pixels."""

_TOP, _STRIP, _GAP, _BOTTOM = 12, 28, 28, 84
_MILLI = 1e-3
_CACHE, _BESIDE = 2.0, 0.3  # width of a cache's cell and of the gap before it, in columns
_DECADES = 3.0  # what is a thousand times less sensitive than the worst may look like nothing
_CACHE_DECADES = 4.0  # a cache may lose far more than any matrix, which should not make all of them alike


def sensitivity_figure(sites: SiteMap) -> go.Figure:
    """Draw how much each matrix loses alone, on a logarithmic colour scale: the brighter, the worse."""
    losses = [cell.loss for cell in sites.all() if cell.loss is not None and cell.loss > 0]
    high = max(losses, default=1.0)
    decades = _CACHE_DECADES if any(cell.cache for cell in sites.all()) else _DECADES
    low = max(min(losses, default=high / 10), high / 10**decades)
    low = min(low, high / 2)  # a colour scale needs two ends

    def value(cell: Cell) -> float | None:
        return None if cell.loss is None else math.log10(min(max(cell.loss, low), high))

    ticks = [tick for tick in log_ticks(low, high) if low <= tick <= high]
    figure = _heat_map(sites, value, lambda cell: "", _sensitivity_hover)
    figure.update_layout(
        coloraxis={
            "colorscale": SEQUENTIAL,
            "cmin": math.log10(low),
            "cmax": math.log10(high),
            "colorbar": {
                **_BAR,
                "title": {"text": "loss alone, 10⁻³ nats/token", "side": "bottom", "font": {"size": 13}},
                "tickvals": [math.log10(tick) for tick in ticks],
                "ticktext": [plain(tick / _MILLI) for tick in ticks],
            },
        }
    )
    return figure


def plan_figure(sites: SiteMap) -> go.Figure:
    """Draw a plan: the bits of every matrix, printed and coloured; the brighter, the more bits.

    A plan for llama.cpp has its types printed, and is coloured by the bits that they store. KV caches have
    the bits of keys and values printed with the share of tokens that is kept, and the colour of the bits
    that this leaves per value.
    """
    cells = sites.all()
    if any(cell.type for cell in cells):
        return _type_figure(sites)
    widths = list(BITS_COLOURS)

    def step(cell: Cell) -> float:
        return float(round(_cache_colour(cell)) if cell.cache else widths.index(cell.bits))

    used = [widths[place] for place in sorted({int(step(cell)) for cell in cells})]
    figure = _heat_map(sites, step, lambda cell: _label(cell, str(cell.bits)), _plan_hover)
    figure.update_layout(
        coloraxis={
            "colorscale": _steps(list(BITS_COLOURS.values())),
            "cmin": -0.5,
            "cmax": len(widths) - 0.5,
            "showscale": False,
        },
        annotations=[_key("bits:  " + _squares({str(bits): BITS_COLOURS[bits] for bits in used}, 8))],
    )
    return figure


def _type_figure(sites: SiteMap) -> go.Figure:
    used = {cell.type: cell.stored for cell in sites.all() if cell.type and cell.stored}
    types = sorted(used, key=lambda name: (used[name], name))
    figure = _heat_map(
        sites,
        lambda cell: _brightness(cell.stored) if cell.stored else _cache_colour(cell) if cell.cache else None,
        lambda cell: _label(cell, cell.type or cell.option),
        _plan_hover,
    )
    colours = list(BITS_COLOURS.values())
    scale = [(i / (len(colours) - 1), colour) for i, colour in enumerate(colours)]
    figure.update_layout(
        coloraxis={"colorscale": scale, "cmin": 0, "cmax": len(colours) - 1, "showscale": False},
        annotations=[_key(_squares({name: bits_colour(used[name]) for name in types}, 4))],
    )
    return figure


def _cache_colour(cell: Cell) -> float:
    return _brightness(cell.cache.bits) if cell.cache else 0.0


def _label(cell: Cell, matrix: str) -> str:
    """What is printed on a cell of a plan."""
    return cache_label(cell.cache) if cell.cache else matrix


def _brightness(bits: float) -> float:
    """Where stored bits per weight lie between the widths that have colours, counted in widths."""
    return float(np.interp(bits, list(BITS_COLOURS), range(len(BITS_COLOURS))))


def bits_colour(bits: float) -> str:
    """Return the colour of stored bits per weight, between those of the widths around it."""
    place, colours = _brightness(bits), list(BITS_COLOURS.values())
    low = min(int(place), len(colours) - 2)
    pairs = [(int(colours[low][i : i + 2], 16), int(colours[low + 1][i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (place - low) * (b - a)):02X}" for a, b in pairs)


_BAR: dict[str, Any] = {
    "orientation": "h",
    "x": 0.5,
    "xanchor": "center",
    "y": 0,
    "yanchor": "top",
    "ypad": 12,
    "thickness": 10,
    "len": 0.9,
    "outlinewidth": 0,
}


def _heat_map(
    sites: SiteMap,
    value: Callable[[Cell], float | None],
    text: Callable[[Cell], str],
    hover: Callable[[Cell], str],
) -> go.Figure:
    body = ROW * len(sites.layers)
    strip = _STRIP + _GAP if sites.apart else 0
    figure = go.Figure(layout=layout(_TOP + strip + body + _BOTTOM))
    modules = [_short(module) for module in sites.modules]
    figure.add_trace(_trace(sites.cells, value, text, hover, x=modules, y=[*sites.layers]))
    if sites.caches:
        column = [[cell] for cell in sites.caches]
        figure.add_trace(_trace(column, value, text, hover, x=["KV"], y=[*sites.layers], axes=("x3", "y")))
    if sites.apart:
        labelled = lambda cell: f"{safe(cell.site)} {text(cell)}".strip()
        figure.add_trace(
            _trace(
                [sites.apart],
                value,
                labelled,
                hover,
                x=[c.site for c in sites.apart],
                y=[""],
                axes=("x2", "y2"),
            )
        )
    split = body / (strip + body) if body else 0.0
    columns = len(modules)
    total = columns + _BESIDE + _CACHE if sites.caches else columns
    bare = {"showgrid": False, "zeroline": False, "fixedrange": True, "ticks": ""}
    figure.update_layout(
        margin={"l": 52, "r": 8, "t": _TOP, "b": _BOTTOM},
        xaxis={"side": "top", "type": "category", "domain": [0, columns / total], **bare},
        yaxis={
            "title": {"text": "layer", "standoff": 6, "font": {"size": 13}},
            "autorange": "reversed",
            "domain": [0, split],
            "dtick": max(1, math.ceil(len(sites.layers) / 40)),
            **bare,
        },
        xaxis2={"anchor": "y2", "showticklabels": False, **bare},
        yaxis2={
            "anchor": "x2",
            "domain": [1 - _STRIP / (strip + body) if strip else 1, 1],
            "showticklabels": False,
            **bare,
        },
    )
    if sites.caches:
        beside = {"side": "top", "anchor": "y", "type": "category", "domain": [1 - _CACHE / total, 1]}
        figure.update_layout(xaxis3={**beside, **bare})
    return figure


def _trace(
    cells: Sequence[Sequence[Cell | None]],
    value: Callable[[Cell], float | None],
    text: Callable[[Cell], str],
    hover: Callable[[Cell], str],
    x: list[Any],
    y: list[Any],
    axes: tuple[str, str] = ("x", "y"),
) -> go.Heatmap:
    return go.Heatmap(
        z=[[value(cell) if cell else None for cell in row] for row in cells],
        x=x,
        y=y,
        text=[[text(cell) if cell else "" for cell in row] for row in cells],
        texttemplate="%{text}",
        hovertext=[[hover(cell) if cell else "" for cell in row] for row in cells],
        hoverinfo="text",
        hoverongaps=False,
        customdata=[[cell.decision if cell else None for cell in row] for row in cells],
        coloraxis="coloraxis",
        xgap=2,
        ygap=2,
        xaxis=axes[0],
        yaxis=axes[1],
    )


def _key(words: str) -> dict[str, Any]:
    """What the plan uses, as coloured labels where the other map has its colour bar."""
    return {
        "text": words,
        "x": 0.5,
        "y": 0,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "center",
        "yanchor": "top",
        "yshift": -14,
        "showarrow": False,
    }


def _squares(colours: Mapping[str, str], per_line: int) -> str:
    """Names with a square of their colour before them, so many a line that a phone shows them all."""
    words = [f"<span style='color:{colour}'>■</span> {name}" for name, colour in colours.items()]
    lines = [words[i : i + per_line] for i in range(0, len(words), per_line)]
    return "<br>".join("  ".join(line) for line in lines)


def _steps(colours: Sequence[str]) -> list[tuple[float, str]]:
    """A colour scale of equal steps, without transitions."""
    n = len(colours)
    return [(edge / n, colour) for i, colour in enumerate(colours) for edge in (i, i + 1)]


def _short(module: str) -> str:
    """``q`` for ``q_proj``: seven labels then fit side by side on a phone."""
    return module if "." in module else module.removesuffix("_proj")


def _sensitivity_hover(cell: Cell) -> str:
    if cell.loss is None:
        return _head(cell)
    se = f" ± {plain(cell.se)}" if cell.se is not None else ""
    return f"{_head(cell)}<br>{plain(cell.loss)}{se} nats/token alone"


def _plan_hover(cell: Cell) -> str:
    if cell.cache and not (cell.cache.shared or cell.cache.cutoff):
        k, v, keep = cell.cache.k_bits, cell.cache.v_bits, cell.cache.keep
        return f"{_head(cell)}<br>keys {k} bits, values {v} bits, {keep:.0%} of the tokens kept"
    return _head(cell) + (f": {plain(cell.stored)} stored bits per weight" if cell.stored else "")


def _head(cell: Cell) -> str:
    shared = "" if cell.decision in cell.site else f"<br>decided with {safe(cell.decision)}"
    return f"<b>{safe(cell.site)}</b>{shared}<br>{safe(cell.option)}"
