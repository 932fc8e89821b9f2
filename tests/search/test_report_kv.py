from __future__ import annotations

import html
import re
from collections.abc import Callable

import pytest

from tightfit.search.report import render_report
from tightfit.search.report_kv import memory_bar, spending_parts
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize
from tightfit.spaces import format_size

MIB = 2**20


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    return summarize(fake_run(kv=True))


def bar(summary: Summary) -> str:
    row = summary.final
    return memory_bar(row.bytes, row.cache_bytes, summary.space, summary.beside, summary.limit)


def test_the_bar_has_weights_caches_and_overhead_in_proportion(summary: Summary) -> None:
    row, beside = summary.final, summary.beside
    widths = [float(w) for w in re.findall(r"width: ([\d.]+)%", bar(summary))]
    whole = row.bytes + beside.overhead
    parts = (row.weight_bytes, row.cache_bytes, beside.overhead)
    assert widths == pytest.approx([100 * part / whole for part in parts], abs=0.006)
    (limit,) = re.findall(r"left: ([\d.]+)%", bar(summary))
    assert float(limit) == pytest.approx(100 * summary.limit / whole, abs=0.006)


def test_the_bar_says_what_it_shows_and_how_it_is_counted(summary: Summary) -> None:
    row, beside, text = summary.final, summary.beside, bar(summary)
    for part in (
        f"weights {format_size(row.weight_bytes)}",
        f"KV cache {format_size(row.cache_bytes)} at 4,096 tokens × 2",
        f"overhead {format_size(beside.overhead)}, not in the budget",
        f"budget {format_size(summary.limit)}",
        f"a peak of {format_size(beside.prefill)}",
        f"stay at {format_size(sum(beside.plain))}",
        html.escape(beside.formula),
    ):
        assert part in text


def test_what_each_part_spends_is_shown_beside_the_best_uniform_plan(summary: Summary) -> None:
    page = "".join(spending_parts(summary.spent, summary))
    row, rival = summary.final, summary.spent.rival
    assert f"{row.cache_bytes / MIB:.2f}" in page
    assert f"{rival.cache_bytes / MIB:.2f}" in page
    assert f"Uniform: {rival.label}" in page
    assert "the sum goes through the amplifying link" in page
    total = page[page.index('class="total"') :]
    assert f"{row.bytes / MIB:.2f}" in total
    assert f"KV cache {row.cache_bytes / row.bytes:.0%}" in page


def test_the_report_shows_caches_wherever_it_shows_weights(summary: Summary) -> None:
    page = render_report(summary)
    row = summary.final
    for part in (
        "Memory of weights and KV cache",
        "Which part spends what",
        "What the caches forget",
        "weights and KV cache, MiB",
        '<th scope="col">KV, MiB</th>',
        "<dt>Weights and KV cache</dt>",
        f"at 4,096 tokens × 2; weights {row.weight_bytes / MIB:.2f} MiB",
        '<th scope="col">kv</th>',
        "KV: bits of keys / of values",
        "Keys, values, cache",
    ):
        assert part in page


@pytest.mark.parametrize("stage", ["inspect", "sense", "solve", "validate"])
def test_a_run_under_way_has_a_report(fake_run: Callable[..., Store], stage: str) -> None:
    page = render_report(summarize(fake_run(stage, kv=True)))
    assert ("Which part spends what" in page) == (stage in ("solve", "validate"))
    assert "What the caches forget" not in page
