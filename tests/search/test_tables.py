from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.search.facts import SpaceFacts
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize
from tightfit.search.tables import (
    MOST_DOMINATED,
    WIDTH,
    brief_labels,
    feasible_range,
    front_csv,
    front_rows,
    front_table,
    front_tables,
    kept_text,
    loss_text,
    nats_text,
    predicted_table,
    render_table,
    shown_rows,
)

SPACE = SpaceFacts(
    decisions=10, plans_log10=6.02, floor=60 * 2**20, ceiling=100 * 2**20, fixed=0, weights=100 * 2**20
)


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    return summarize(fake_run())


def test_the_front_table_has_one_aligned_line_per_plan(summary: Summary) -> None:
    above, header, rule, *lines, below = front_table(summary).splitlines()
    assert above.startswith("holdout: 3,708 tokens of 12 documents")
    assert header.split()[:6] == ["plan", "what", "MiB", "bits", "pred.", "KL"]
    assert len(lines) == len(summary.front.rows)
    assert set(rule) == {"─", " "}
    end = header.index("MiB") + 3
    for line, row in zip(lines, summary.front.rows, strict=True):
        assert line[:end].endswith(f"{row.bytes / 2**20:.2f}")
        assert loss_text(row.measured.kl, row.kl_se) in line
        assert line.startswith("▶" if row.chosen else "·" if row.dominated else " ")
    assert "nats/token" in below


def test_the_front_table_marks_the_chosen_plan_and_the_best_baseline(summary: Summary) -> None:
    lines = front_table(summary).splitlines()
    (chosen,) = [line for line in lines if summary.result.chosen[:12] in line]
    (baseline,) = [line for line in lines if summary.result.best_baseline[:12] in line]
    assert chosen.endswith("chosen")
    assert baseline.endswith("best baseline")


def test_long_names_and_broken_plans_do_not_widen_the_table(summary: Summary) -> None:
    row = summary.front.rows[0]
    broken = replace(
        row.measured, documents=tuple(replace(d, kl=1e5, nll=5e3) for d in row.measured.documents)
    )
    rows = (
        replace(
            row,
            label="mix of 3b-g64-float and 4b-g64-float from the front",
            bytes=40 * 2**30,
            measured=broken,
        ),
    )
    front = replace(summary.front, rows=(*rows, *summary.front.rows[1:]))
    lines = front_table(summary, front).splitlines()
    assert max(len(line) for line in lines) <= WIDTH
    assert "…" in front_table(summary, front)


def test_a_single_document_leaves_the_error_open(summary: Summary) -> None:
    row = summary.front.rows[0]
    single = replace(row, measured=replace(row.measured, documents=row.measured.documents[:1]))
    assert "± ?" in front_table(summary, replace(summary.front, rows=(single,)))


def test_no_measured_plan_is_said_so(fake_run: Callable[..., Store]) -> None:
    assert front_table(summarize(fake_run("solve"))) == "No plan was measured yet."


def test_only_the_worst_dominated_plans_are_left_out(summary: Summary) -> None:
    dull = [
        replace(summary.front.rows[0], digest=f"{i:064x}", kind="searched", chosen=False, dominated=True)
        for i in range(MOST_DOMINATED + 5)
    ]
    front = replace(summary.front, rows=(*summary.front.rows, *dull))
    rows, hidden = shown_rows(front)
    assert hidden == 5
    assert set(summary.front.rows) <= set(rows)
    assert "5 more such plans are not shown" in front_table(summary, front)
    whole = front_table(summary, front, whole=True)
    assert "not shown" not in whole
    assert all(row.short in whole for row in front.rows)


def test_every_front_is_written_where_all_are_asked_for(
    summary: Summary, fake_run: Callable[..., Store]
) -> None:
    text = front_tables(summary)
    assert [text.count(f"{split}: ") for split in ("holdout", "validation")] == [1, 1]
    assert all(row.short in text for front in summary.fronts for row in front.rows)
    assert front_tables(replace(summary, fronts=())) == "No plan was measured yet."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.2098, "0.2098"),
        (11.01234, "11.0123"),
        (0.000812345, "0.000812"),
        (0.00000081, "8.1e-07"),
        (0.0, "0"),
        (-0.00123, "-0.00123"),
        (123456.7, "123457"),
    ],
)
def test_nats_keep_digits_however_small_the_loss(value: float, text: str) -> None:
    assert nats_text(value) == text


def test_a_loss_of_eight_bits_is_not_rounded_to_nothing() -> None:
    assert loss_text(0.00008412, 0.0000031) == "0.0000841 ± 0.0000031"
    assert loss_text(0.2098, None) == "0.2098 ± ?"


def test_the_feasible_range_places_the_budget() -> None:
    assert feasible_range(SPACE) == (
        "feasible range: 60.00 MiB to 100.00 MiB of weights (4.800 to 8.000 effective bits), "
        "10 decisions, 10^6.0 plans"
    )
    for limit, words in (
        (70, "70.00 MiB of weights, 25% of the way (5.600 effective bits)"),
        (50, "below the floor by 10.00 MiB"),
        (100, "the largest plan fits"),
        (60, "0% of the way"),
    ):
        assert words in feasible_range(SPACE, limit * 2**20)


def test_the_predicted_front_marks_the_plan_of_the_budget(fake_run: Callable[..., Store]) -> None:
    summary = summarize(fake_run("solve"))
    above, header, _, *lines, last = predicted_table(summary, points=5).splitlines()
    assert above == "front predicted by the loss model (loss in nats/token)"
    assert header.split() == ["plan", "MiB", "bits", "predicted", "loss"]
    sizes = [float(line.split()[1]) for line in lines]
    assert sizes == sorted(sizes)
    assert 5 <= len(lines) <= 6
    assert (sizes[0], sizes[-1]) == tuple(round(summary.predicted[i].bytes / 2**20, 2) for i in (0, -1))
    (marked,) = [line for line in lines if line.endswith("largest within the budget")]
    assert float(marked.split()[1]) <= summary.limit / 2**20
    assert f"{nats_text(summary.solution.loss_predicted)}, proven within 0.002%" in last


def test_there_is_no_predicted_front_before_solving(fake_run: Callable[..., Store]) -> None:
    assert predicted_table(summarize(fake_run("sense"))) == "The loss model is not solved yet."


def test_rows_are_plain_data_for_every_front(summary: Summary) -> None:
    rows = front_rows(summary)
    assert [row["split"] for row in rows] == [f.split for f in summary.fronts for _ in f.rows]
    (chosen,) = [row for row in rows if row["chosen"] and row["split"] == "holdout"]
    assert (chosen["kl"], chosen["weight_bytes"]) == (summary.chosen.measured.kl, summary.chosen.bytes)
    assert json.loads(json.dumps(rows)) == rows
    assert next(csv.DictReader(io.StringIO(front_csv(summary))))["kl"] == str(rows[0]["kl"])


def test_no_rows_are_no_csv(fake_run: Callable[..., Store]) -> None:
    assert front_csv(summarize(fake_run("solve"))) == ""


@given(
    st.lists(st.tuples(st.text("abcé▶", min_size=1, max_size=9), st.text("0123.", max_size=9)), max_size=5)
)
def test_tables_are_aligned(rows: list[tuple[str, str]]) -> None:
    lines = render_table(["name", "value"], rows, right={1}).splitlines()
    left = max(len(name) for name in ["name", *(name for name, _ in rows)])
    assert len(lines) == len(rows) + 2
    for line, (name, value) in zip(lines[2:], rows, strict=True):
        assert line[:left].rstrip() == name
        assert line[left + 2 :].strip() == value
        assert not value or len(line) == len(lines[1])


def test_sizes_are_split_where_plans_decide_about_caches(fake_run: Callable[..., Store]) -> None:
    summary = summarize(fake_run(kv=True))
    text, row = front_table(summary), summary.chosen
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "weights" in text.splitlines()[1]
    assert "MiB: of weights, of KV cache at 4,096 tokens × 2, and of both" in text
    line = next(line for line in text.splitlines() if row.short in line)
    sizes = (row.weight_bytes, row.cache_bytes, row.bytes)
    assert "  ".join(f"{size / 2**20:.2f}" for size in sizes) in re.sub(" {2,}", "  ", line)
    assert f"{row.effective_bits:.3f}" in line
    point = summary.predicted[0]
    split = "  ".join(f"{size / 2**20:.2f}" for size in (point.bytes - point.cache_bytes, point.cache_bytes))
    assert split in re.sub(" {2,}", "  ", predicted_table(summary))
    data = next(data for data in front_rows(summary) if data["plan"] == row.digest)
    assert (data["weight_bytes"], data["kv_bytes"], data["bytes"]) == sizes


def test_labels_lose_details_of_formats_unless_they_would_be_the_same() -> None:
    long = ["uniform 4b-g32-float + k4v4-g32-r16-s4-keep0.5", "mix 4+6b-g64-sym + k8v8-block, front first"]
    assert brief_labels(long) == ["uniform 4b + k4v4 ½", "mix 4+6b + k8v8, front first"]
    alike = ["uniform 4b-g32-float", "uniform 4b-g64-float"]
    assert brief_labels(alike) == alike


def test_the_share_of_tokens_kept_is_a_fraction_where_there_is_one() -> None:
    assert [kept_text(share) for share in (1.0, 0.75, 0.5, 0.3)] == ["", " ¾", " ½", " .3"]
