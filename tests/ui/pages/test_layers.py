from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gradio as gr
import pytest

from tightfit.ui.pages.layers import LayersPage
from tightfit.ui.runs import Run, read
from tightfit.ui.view import View, shown_plan


@pytest.fixture
def page() -> LayersPage:
    with gr.Blocks():
        return LayersPage()


def draw(page: LayersPage, run: Run, **changes: Any) -> dict[Any, Any]:
    view = View(run.folder, **changes)
    return page.draw(run, view, shown_plan(run, view))


def cells(value: str) -> list[Any]:
    """Decisions of a map's cells, where a click finds them."""
    return [
        name for trace in json.loads(value)["figure"]["data"] for row in trace["customdata"] for name in row
    ]


def test_everything_it_has_is_drawn(page: LayersPage, small_run: Callable[..., object]) -> None:
    run = read(small_run("report").store.path.parent)
    assert list(draw(page, run)) == page.components


def test_every_cell_of_both_maps_is_a_decision(page: LayersPage, small_run: Callable[..., object]) -> None:
    made = small_run("report")
    updates = draw(page, read(made.store.path.parent))
    names = {decision.name for decision in made.space.decisions}
    assert set(cells(updates[page.sensitivity])) == names
    assert set(cells(updates[page.layout])) == names
    assert set(updates[page.pick]["choices"]) == names


def test_the_plan_map_shows_the_plan_that_was_picked(
    page: LayersPage, small_run: Callable[..., object]
) -> None:
    made = small_run("report")
    run = read(made.store.path.parent)
    for level, bits in ((0, "3"), (3, "6")):
        updates = draw(page, run, digest=made.plans[level])
        body = json.loads(updates[page.layout])["figure"]["data"][0]
        assert {text for row in body["text"] for text in row} == {bits}
        assert made.plans[level][:12] in updates[page.planned]


def test_a_matrix_that_was_picked_is_shown(page: LayersPage, small_run: Callable[..., object]) -> None:
    updates = draw(page, read(small_run("report").store.path.parent), decision="layers.1.mlp.up_proj")
    assert updates[page.pick]["value"] == "layers.1.mlp.up_proj"
    assert "layers.1.mlp.up_proj" in updates[page.matrix]


def test_before_anything_is_known_there_are_words(page: LayersPage, small_run: Callable[..., object]) -> None:
    updates = draw(page, read(small_run("inspect").store.path.parent))
    assert "sense" in json.loads(updates[page.sensitivity])["words"]
    assert "solve" in json.loads(updates[page.layout])["words"]
    assert updates[page.pick]["value"] is None


def test_caches_are_shown_and_picked_like_matrices(
    page: LayersPage, small_run: Callable[..., object]
) -> None:
    made = small_run("report", kv=True)
    updates = draw(page, read(made.store.path.parent), decision="layers.1.kv")
    names = {decision.name for decision in made.space.decisions}
    assert set(cells(updates[page.sensitivity])) == set(cells(updates[page.layout])) == names
    assert updates[page.pick]["label"] == "Matrix or cache"
    assert updates[page.pick]["value"] == "layers.1.kv"
    assert "KV cache of this layer" in updates[page.matrix]
    assert "KV: bits of keys" in updates[page.planned]
    assert "Which part spends what" in updates[page.spent]
