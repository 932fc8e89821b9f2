from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tightfit.search import probes
from tightfit.search.probes import extrapolated, read_probes
from tightfit.search.store import Store
from tightfit.search.summary import summarize
from tightfit.workers.measurement import compare


def test_the_splits_are_those_that_runs_measure() -> None:
    from tightfit.search.stages.prepare import COPY, HALF

    assert (probes.HALF, probes.COPY) == (HALF, COPY)


def test_the_plan_is_probed_beside_the_best_baseline(fake_run: Callable[..., Store]) -> None:
    store = fake_run(kv=True)
    summary = summarize(store)
    found, result = summary.probes, summary.result
    held = {m.plan: m for m in store.measurements(probes.HALF)}
    assert found.plan.full == summary.front.find(result.chosen).measured
    assert found.plan.half == held[result.chosen]
    assert found.plan.per_doubling == compare(found.plan.full, found.plan.half)
    assert found.rival.half == held[result.best_baseline]
    assert found.rival.label == summary.front.find(result.best_baseline).label
    copied = next(m for m in store.measurements(probes.COPY) if m.plan == result.chosen)
    mean = sum(d.nll for d in copied.documents) / sum(d.tokens for d in copied.documents)
    assert found.plan.copying == pytest.approx(mean)
    assert found.plan.copying_reference == pytest.approx(3.27)


def test_windows_that_were_left_out_make_halves_that_do_not_compare(fake_run: Callable[..., Store]) -> None:
    store = fake_run(kv=True)
    summary = summarize(store)
    measured = [
        replace(m, documents=m.documents[1:]) if m.split == probes.HALF else m for m in store.measurements()
    ]
    found = read_probes(measured, store.get("probes"), summary.result, summary.fronts, 7)
    assert found.plan.half is None
    assert found.plan.per_doubling is None


@pytest.mark.parametrize(("stage", "kv"), [("report", False), ("validate", True)])
def test_runs_without_probes_have_none(fake_run: Callable[..., Store], stage: str, kv: bool) -> None:
    assert summarize(fake_run(stage, kv=kv)).probes is None


def test_every_doubling_changes_the_loss_alike() -> None:
    assert extrapolated(0.3, 0.1, 512, 4096) == pytest.approx(0.6)
    assert extrapolated(0.3, 0.1, 512, 512) == pytest.approx(0.3)
    assert extrapolated(0.3, -0.2, 512, 4096) == 0
