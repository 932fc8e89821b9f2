from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.search.speeds import add_speeds, add_times
from tests.search.test_speed_points import ask

from tightfit.search.report import render_report
from tightfit.search.report_speed import (
    speed_facts,
    speed_rows_table,
    speed_section,
    times_table,
)
from tightfit.search.store import Store
from tightfit.search.summary import summarize


@pytest.fixture
def store(fake_run: Callable[..., Store]) -> Store:
    store = fake_run()
    digests = [*(entry["digest"] for entry in store.get("baselines")), *store.get("finalists")]
    add_speeds(store, {digest: 100.0 + 10 * i for i, digest in enumerate(digests)})
    add_times(store, [(576, 1536), (192, 576)], {"Q4_0": 4e-10, "Q8_0": 2e-10})
    return store


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def test_only_runs_with_speeds_have_the_section(fake_run: Callable[..., Store]) -> None:
    summary = summarize(fake_run())
    assert speed_section(summary) is None
    assert speed_facts(summary, summary.result.chosen) == []


def test_the_section_holds_figure_table_and_words(store: Store) -> None:
    summary = summarize(store)
    page = speed_section(summary)
    assert re.findall(r'id="(speed-[a-z]+)"', page) == ["speed-generate"]
    text = text_of(page)
    for part in ("In llama.cpp", "One thread of a made-up processor", "medians of 3 interleaved rounds"):
        assert part in text
    assert text.count("2.1% off for plans left out") == 2
    assert len(summary.speeds) == len(summary.front.rows) + 1
    assert "1 more plan, not measured on it, is in the table." in text
    assert speed_section(summary) in render_report(summary)


def test_every_plan_that_was_run_has_its_row_with_its_loss(store: Store) -> None:
    summary = summarize(store)
    table = speed_rows_table(summary, summary.front, summary.speeds[0].digest)
    body = table[table.index("<tbody>") :]
    rows = [text_of(row) for row in re.findall("<tr.*?</tr>", body)]
    assert len(rows) == len(summary.speeds)
    for row, run in zip(rows, summary.speeds, strict=True):
        measured = summary.front.find(run.digest)
        assert run.label in row
        assert (f"{measured.measured.kl:.4f}" in row) if measured else ("nats" not in row)
    assert len(re.findall(r'<tr class="[a-z ]*selected">', table)) == 1
    assert len(re.findall(r'<tr class="chosen[a-z ]*">', table)) == 1
    assert "predicted" not in text_of(table)  # a column that would be empty
    with_one = replace(summary.speeds[1], predicted={"generate": 0.5})
    changed = replace(summary, speeds=(summary.speeds[0], with_one))
    assert "predicted" in text_of(speed_rows_table(changed, summary.front))
    assert "2.000" in text_of(speed_rows_table(changed, summary.front))


def test_a_plan_that_could_not_be_run_says_why_below_the_table(store: Store) -> None:
    first, *others = (row.digest for row in summarize(store).speeds)
    add_speeds(store, {first: 100.0, others[0]: None})
    page = speed_section(summarize(store))
    assert "the &lt;tool&gt; refused it" in page
    assert "<tool>" not in page
    assert speed_facts(summarize(store), others[0]) == [
        ("Tokens/s", "–", "", "could not be run: the <tool> refused it")
    ]


def test_predictions_are_drawn_where_there_are_some(store: Store) -> None:
    summary = summarize(store)
    rows = [replace(row, predicted={"generate": row.measured["generate"][0]}) for row in summary.speeds]
    page = speed_section(replace(summary, speeds=tuple(rows)))
    assert 'id="speed-ratio"' in page
    assert f"{len(rows) - 1} of {len(rows) - 1} plans within 10 %" in page


def test_bounds_are_in_the_tiles_and_beside_the_figures(store: Store) -> None:
    ask(store, tokens_per_second=120.0, latency="1s")
    summary = summarize(store)
    slow, fast = summary.speeds[0].digest, summary.speeds[-1].digest
    (name, value, unit, remark), (first, *_) = speed_facts(summary, slow)
    assert (name, value, unit, first) == ("Tokens/s", "100.0", "", "First token")
    assert remark == "± 3.0 in llama.cpp; at least 120 asked for: too slow"
    assert speed_facts(summary, fast)[0][3].endswith("; at least 120 asked for")
    assert speed_facts(summary, fast)[1][3].endswith("; at most 1000 asked for")
    page = render_report(summary)
    assert 'id="speed-prompt"' in page
    assert "Asked for: 120 tokens/s and 1000 ms to the first token." in page


def test_a_plan_that_is_too_slow_is_not_called_too_large(store: Store) -> None:
    result = {**store.get("result"), "fits": False, "too_slow": True}
    store.put("result", result)
    page = render_report(summarize(store))
    assert 'class="verdict bad"' in page
    assert "misses the bound on speed" in page
    assert "does not keep the budget" not in page
    store.put("result", {**result, "recounted_bytes": summarize(store).limit + 1})
    page = render_report(summarize(store))
    assert "misses the bound on speed" in page
    assert "does not keep the budget" in page


def test_a_baseline_that_is_offered_for_its_speed_is_not_said_to_lose_less(store: Store) -> None:
    summary = summarize(store)
    worse = max(summary.front.rows, key=lambda row: row.measured.kl).digest
    store.put("result", {**store.get("result"), "offered": worse, "fits": False, "too_slow": True})
    ask(store, tokens_per_second=1e6)
    page = render_report(summarize(store))
    assert "is nearer to the bound on speed" in page
    assert ">offered</span>" in speed_section(summarize(store))
    assert "loses less than the plan that the search chose" not in page


def test_times_are_in_picoseconds_per_weight_and_token(store: Store) -> None:
    latency = summarize(store).latency
    generate, prompt = (text_of(times_table(phase, latency[phase])) for phase in ("generate", "prompt"))
    # 4e-10 s a byte are 225 ps for each of 4.5 bits; a weight of a prompt is shared by its 16 tokens.
    assert "Bits 192 × 576 576 × 1536 Q4_0 4.5 225 225 Q8_0 8.5 212 212" in re.sub(r"\s+", " ", generate)
    assert "Q4_0 4.5 25 25 Q8_0 8.5 12.5 12.5" in re.sub(r"\s+", " ", prompt)
    partly = {**latency["generate"], "classes": [["Q4_0", 192, 576, 4e-10], ["Q8_0", 576, 1536, 2e-10]]}
    assert "Q4_0 4.5 225 · Q8_0 8.5 · 212" in text_of(times_table("generate", partly))
