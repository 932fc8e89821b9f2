"""One visual language for every figure: colours, symbols, axes, error bars.

Colours are Okabe and Ito's, which people with colour-vision deficiencies can tell apart, and never
the only difference: symbols differ too. Backgrounds are transparent and text is a grey that reads
on white and on near-black, so that a figure sits on light and dark pages alike.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

INK = "#6b7684"
GRID = "rgba(128, 140, 153, 0.22)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

CHOSEN = "#D55E00"
PREDICTED = "#56B4E9"
BUDGET = "#CC79A7"
SELECTED = "#7F5AF0"
KINDS = {
    "searched": ("#0072B2", "circle", 9, "searched"),
    "uniform": ("#E69F00", "star", 13, "uniform"),
    "mix": ("#009E73", "hexagram", 12, "two-width mix"),
}
"""Per kind of plan: colour, symbol, size in pixels, name in the legend."""

SEQUENTIAL = "Viridis"
BITS_COLOURS = {
    2: "#440154",
    3: "#443983",
    4: "#31688E",
    5: "#21918C",
    6: "#35B779",
    8: "#90D743",
    16: "#FDE725",
    32: "#FFF7B2",
}
"""Viridis by bit width, the same in every figure: the brighter, the more bits."""


def layout(height: int, **more: Any) -> dict[str, Any]:
    """Return the layout that all figures share.

    Args:
        height: in pixels; the width follows the page.
        more: what this figure adds or replaces.
    """
    return {
        "height": height,
        "autosize": True,
        "template": "none",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": INK},
        "hoverlabel": {"font": {"family": FONT, "size": 13}, "align": "left"},
        "margin": {"l": 66, "r": 18, "t": 48, "b": 54},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "xanchor": "left",
            "yanchor": "bottom",
            "font": {"size": 12},
        },
        "uirevision": "tightfit",
        **more,
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title that names its unit."""
    return {
        "title": {"text": title, "standoff": 10, "font": {"size": 13}},
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "showline": True,
        "automargin": True,
        **more,
    }


def log_axis(title: str, low: float, high: float, **more: Any) -> dict[str, Any]:
    """Return a logarithmic axis that shows ``low`` to ``high``, with ticks in plain decimals."""
    ticks = log_ticks(low, high)
    bounds = [math.log10(low), math.log10(high)]
    labels = [plain(tick) for tick in ticks]
    return axis(title, type="log", range=bounds, tickvals=ticks, ticktext=labels, **more)


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from a decade below ``low`` to one above ``high``, fewer over more decades."""
    decades = math.log10(high / low)
    choices: list[tuple[float, tuple[int, ...]]] = [(0.8, (1, 2, 3, 5, 7)), (2.2, (1, 2, 5)), (4, (1, 3))]
    steps = next((steps for most, steps in choices if decades < most), (1,))
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    return [float(f"{step}e{exponent}") for exponent in exponents for step in steps]


def plain(value: float) -> str:
    """Write a number with three significant digits, without an exponent where that stays short."""
    if not 1e-6 <= abs(value) < 1e6:
        return f"{value:.3g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def error_bars(values: Sequence[float], errors: Sequence[float | None], colour: str) -> dict[str, object]:
    """Return bars of one standard error; on a logarithmic axis the lower end must stay positive."""
    known = [error or 0.0 for error in errors]
    return {
        "type": "data",
        "array": known,
        "arrayminus": [min(error, 0.95 * value) for value, error in zip(values, known, strict=True)],
        "color": colour,
        "thickness": 1.2,
        "width": 3,
    }


def log_floor(losses: Iterable[float]) -> float:
    """Return where a logarithmic axis draws losses of zero or, by noise, below: half the smallest other."""
    return 0.5 * min((loss for loss in losses if loss > 0), default=2e-4)


def see_through(colour: str, alpha: float) -> str:
    """Return a colour written as ``#rrggbb`` with some opacity, 0 to 1."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {alpha})"


def safe(text: str) -> str:
    """Escape a text for plotly, which reads some HTML; what came from a file must not be read so."""
    return html.escape(text, quote=False)
