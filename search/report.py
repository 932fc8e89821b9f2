"""``report.html``: everything that a run found, on one page that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from tightfit.exporters.base import write_whole
from tightfit.search.page import page, tag
from tightfit.search.report_facts import (
    cost_section,
    footer,
    memory_section,
    next_section,
    text_section,
    trust_section,
)
from tightfit.search.report_kv import cache_section, spending_section
from tightfit.search.report_results import (
    comparison_section,
    front_section,
    header,
    maps_section,
    tiles,
    verdict,
)
from tightfit.search.report_speed import speed_section
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize


def write_report(store: Store, path: str | Path) -> Path:
    """Write the report of a run, finished or not, replacing an earlier one at once.

    Args:
        store: the run.
        path: the HTML file, or a folder that gets a ``report.html``.

    Raises:
        InputError: there cannot be such a file.
    """
    path = Path(path)
    file = path / "report.html" if path.is_dir() else path
    return write_whole(file, render_report(summarize(store)))


def render_report(summary: Summary) -> str:
    """Return the page."""
    name = summary.model.name if summary.model else summary.name
    body = tag(
        "main",
        header(summary, name),
        verdict(summary),
        tiles(summary),
        front_section(summary),
        comparison_section(summary),
        speed_section(summary),
        maps_section(summary),
        spending_section(summary),
        cache_section(summary),
        trust_section(summary),
        memory_section(summary),
        text_section(summary),
        cost_section(summary),
        next_section(summary),
        footer(summary),
    )
    return page(f"Tightfit: {name}", body)
