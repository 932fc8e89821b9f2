"""HTML building blocks of the report: escaping tags, the frame of the page, its style and its script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from tightfit.search.page_style import BARS, SCRIPT, STYLE


class Html(str):
    """Text that is markup already; every other text is escaped by :func:`tag`."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Return a text as markup that shows it."""
    return text if isinstance(text, Html) else Html(html.escape(text))


def tag(name: str, *children: str | None, **attributes: str | int | None) -> Html:
    """Return an element; texts that are no :class:`Html` are escaped, None is left out.

    Attributes are written as Python allows: ``class_`` for ``class``, ``aria_label`` for ``aria-label``.
    """
    inner = "".join(escaped(child) for child in children if child)
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{pairs}>{inner}</{name}>")


def join(parts: Sequence[str | None]) -> Html:
    """Return elements one after another."""
    return Html("".join(part for part in parts if part))


def section(title: str, *parts: Html | None) -> Html:
    """Return a section under a heading."""
    return tag("section", tag("h2", title), *parts)


def table(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str] = ()
) -> Html:
    """Return a table that scrolls sideways on its own where the page is narrow.

    Args:
        caption: says what the table shows, for people who do not see the heading above it.
        header: names of the columns.
        rows: cells; the first of each row is its heading.
        classes: one class per row, or none.
    """
    head = tag("tr", *(tag("th", name, scope="col") for name in header))
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", cell) for cell in row[1:]),
            class_=(classes[i] or None) if classes else None,
        )
        for i, row in enumerate(rows)
    ]
    inner = tag("table", tag("caption", caption, class_="unseen"), tag("thead", head), tag("tbody", *body))
    return tag("div", inner, class_="scroll", role="region", tabindex=0, aria_label=caption)


def figure(name: str, drawing: go.Figure, caption: str, tools: bool = True) -> Html:
    """Return a figure with its caption; plotly.js itself is inlined once, by :func:`page`.

    Args:
        name: id of the element, once per page.
        drawing: the figure.
        caption: what it shows, in words.
        tools: whether it offers buttons to zoom and to save an image.
    """
    plot = drawing.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=name,
        config=_CONFIG if tools else {**_CONFIG, "displayModeBar": False},
        default_height=drawing.layout.height,
    )
    box = tag("div", Html(plot), class_="plot", role="img", aria_label=caption)
    return tag("figure", box, tag("figcaption", caption))


def page(title: str, body: Html) -> str:
    """Return a whole page that needs nothing from outside, and may not ask for it either."""
    head = join(
        [
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<meta name="color-scheme" content="light dark">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            tag("title", title),
            tag("style", Html(STYLE + BARS)),
            tag("script", Html(get_plotlyjs())),
        ]
    )
    script = tag("script", Html(SCRIPT))
    content = join([tag("head", head), tag("body", body, script)])
    return f"<!doctype html>\n{tag('html', content, lang='en')}\n"


_CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "responsive": True,
    # The last one would upload the figure.
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d", "sendChartToCloud"],
}

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
