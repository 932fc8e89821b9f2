from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gradio as gr
import pytest
from tests.search.speeds import add_speeds, add_times

from tightfit.ui.pages.speed import SpeedPage, has_speeds
from tightfit.ui.runs import Run, read
from tightfit.ui.view import View, shown_plan


@pytest.fixture
def page() -> SpeedPage:
    with gr.Blocks():
        return SpeedPage()


@pytest.fixture
def timed(small_run: Callable[..., Any]) -> Any:
    """A run whose plans of the holdout text were run, and one more."""
    made = small_run("report", target="llama.cpp")
    add_speeds(made.store, {digest: 50.0 + i for i, digest in enumerate(made.plans[:3])})
    add_times(made.store, [(64, 64)], {"Q4_0": 4e-10, "Q8_0": 2e-10})
    return made


def draw(page: SpeedPage, run: Run, **changes: Any) -> dict[Any, Any]:
    view = View(run.folder, **changes)
    return page.draw(run, view, shown_plan(run, view))


def test_everything_it_has_is_drawn(page: SpeedPage, timed: Any) -> None:
    run = read(timed.store.path.parent)
    assert has_speeds(run)
    assert list(draw(page, run)) == page.components


def test_the_figure_shows_the_phase_that_was_picked(page: SpeedPage, timed: Any) -> None:
    run = read(timed.store.path.parent)
    for phase, wanted in (("generate", [50.0, 51.0]), ("prompt", [80.0, 1000 * 16 / (4 * 51)])):
        updates = draw(page, run, phase=phase)
        assert updates[page.phase]["value"] == phase
        data = json.loads(updates[page.figure])["figure"]["data"]
        found = {
            digest: x
            for trace in data
            if trace["name"] in ("searched", "uniform")
            for digest, x in zip(trace["customdata"], trace["x"], strict=True)
        }
        assert found == pytest.approx(dict(zip(timed.plans[:2], wanted, strict=True)))
    assert "1 more plan, not measured on it, is in the table" in updates[page.caption]


def test_the_plan_that_was_picked_is_marked_and_told_of(page: SpeedPage, timed: Any) -> None:
    run = read(timed.store.path.parent)
    updates = draw(page, run, digest=timed.plans[0])
    mark = json.loads(updates[page.figure])["figure"]["data"][-1]
    assert (mark["name"], mark["customdata"]) == ("selected", [timed.plans[0]])
    assert timed.plans[0][:12] in updates[page.plan]
    assert "Tokens/s" in updates[page.plan]
    assert updates[page.table].count("selected") == 1
    assert "Times by type and shape" in updates[page.table]


def test_a_run_without_speeds_has_words(page: SpeedPage, small_run: Callable[..., Any]) -> None:
    run = read(small_run("report").store.path.parent)
    assert not has_speeds(run)
    updates = draw(page, run)
    assert "validate" in json.loads(updates[page.figure])["words"]
    assert updates[page.table] == ""
