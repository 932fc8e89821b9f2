from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize
from tightfit.spaces import Plan
from tightfit.workers.measurement import compare

STAGES = ("inspect", "sense", "solve", "validate", "report")


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    return summarize(fake_run())


def test_an_empty_store_has_a_summary(tmp_path: Path) -> None:
    with Store.open(tmp_path / "empty" / "run.db") as empty:
        found = summarize(empty)
    assert (found.name, found.stage, found.model, found.space, found.front) == (
        "empty",
        None,
        None,
        None,
        None,
    )
    assert (found.fronts, found.memory, found.predicted, found.final) == ((), (), (), None)


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_under_way_is_summarized_as_far_as_it_came(fake_run: Callable[..., Store], stage: str) -> None:
    found = summarize(fake_run(stage))
    reached = STAGES.index(stage)
    assert found.stage == stage
    assert found.model is not None
    assert found.space is not None
    assert (found.sensitivity is not None) == (reached >= STAGES.index("sense"))
    assert bool(found.predicted) == (found.layout is not None) == (reached >= STAGES.index("solve"))
    assert bool(found.fronts) == (reached >= STAGES.index("validate"))
    assert (found.chosen is not None) == (found.result is not None) == (stage == "report")


def test_the_most_trustworthy_text_comes_first(summary: Summary) -> None:
    assert [front.split for front in summary.fronts] == ["holdout", "validation"]
    assert summary.front is summary.fronts[0]
    assert (summary.front.documents, summary.front.tokens) == (12, 12 * 309)


def test_rows_say_what_each_plan_is(summary: Summary) -> None:
    rows = summary.front.rows
    assert [row.bytes for row in rows] == sorted(row.bytes for row in rows)
    assert {row.kind for row in rows} == {"searched", "uniform", "mix"}
    assert next(row.label for row in rows if row.kind == "uniform") == "uniform 3b-g64-float"
    assert [row.digest for row in rows if row.chosen] == [summary.result.chosen]
    assert [row.digest for row in rows if row.best_baseline] == [summary.result.best_baseline]
    assert summary.chosen.predicted == pytest.approx(summary.solution.loss_predicted)


def test_effective_bits_are_the_spaces(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    found, decisions = summarize(store), store.decisions()
    governed = sum(decision.weights for decision in decisions)
    row = found.final
    assert row.effective_bits == pytest.approx(8 * (row.bytes - store.get("space")["fixed"]) / governed)


def test_dominated_means_another_is_no_larger_and_no_worse(summary: Summary) -> None:
    for front in summary.fronts:
        for row in front.rows:
            beaten = any(
                other.bytes <= row.bytes
                and other.measured.kl <= row.measured.kl
                and (other.bytes, other.measured.kl) != (row.bytes, row.measured.kl)
                for other in front.rows
            )
            assert row.dominated == beaten
    assert any(row.dominated for row in summary.front.rows)
    assert not summary.chosen.dominated


def test_differences_are_paired_with_the_chosen_plan(summary: Summary) -> None:
    assert summary.chosen.versus_chosen is None
    baseline = summary.baseline
    assert baseline.versus_chosen == compare(baseline.measured, summary.chosen.measured)
    assert baseline.versus_chosen.difference > 0


def test_measurements_under_other_protocols_are_another_front(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    short = store.measurements("holdout")[0]
    store.add_measurement(replace(short, protocol="short", documents=short.documents[:3]))
    found = summarize(store)
    assert [(front.split, front.documents) for front in found.fronts] == [
        ("holdout", 12),
        ("holdout", 3),
        ("validation", 9),
    ]


def test_measurements_that_serve_proxies_are_on_no_front(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    partial = Plan(store.plans()[store.get("result")["chosen"]].plan.choices[:3])
    store.add_plan(partial, 10, "marginal")
    some = store.measurements("holdout")[0]
    store.add_measurement(replace(some, plan=partial.digest, split="sensing"))
    assert [front.split for front in summarize(store).fronts] == ["holdout", "validation"]


def test_where_a_baseline_wins_it_is_the_plan_to_use(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    result = store.get("result")
    store.put("result", {**result, "agrees": False, "offered": result["best_baseline"]})
    found = summarize(store)
    assert found.final.digest == result["best_baseline"]
    assert found.chosen.digest == result["chosen"]
    wanted = dict(store.plans()[result["best_baseline"]].plan.choices)
    shown = [cell for row in found.layout.cells for cell in row]
    assert {cell.decision: cell.option for cell in shown}.items() <= wanted.items()
    assert sum(part.planned for part in found.memory) == found.final.bytes


def test_unknown_keys_of_a_later_version_are_ignored(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    store.put("model", {**store.get("model"), "colour": "blue"})
    store.put("result", {**store.get("result"), "mood": 7})
    assert summarize(store).model.name == "smollm2-135m-offgrid"


def test_a_summary_is_of_one_moment(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    with Store.open(store.path, mode="ro") as reader:
        found = summarize(reader)
        store.put("peak_memory", 1)
        assert found.peak_memory == 2_410_000_000
        assert summarize(reader).peak_memory == 1


def test_reliability_takes_each_plan_of_the_certificates_once(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    variance = store.get_fit("certificate_variance")
    store.add_fit("certificate_band", {"tau": 0.5, "points": variance["points"][:5]})
    assert len(summarize(store).reliability) == len(variance["points"])


def test_reading_a_run_needs_neither_torch_nor_plotly() -> None:
    script = (
        "import sys, tightfit.search.tables, tightfit.search.words, tightfit.search.store\n"
        "assert not {'torch', 'plotly', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
