from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from tightfit.search.exporting import export_plan
from tightfit.search.store import Store
from tightfit.spaces import InputError, Plan
from tightfit.ui.pages.front import HEADERS, KV_HEADERS, MIB, PLAN_COLUMN, FrontPage, digest_of
from tightfit.ui.runs import Run, front_key, read
from tightfit.ui.view import View, shown_plan


@pytest.fixture
def page(tmp_path: Path) -> FrontPage:
    with gr.Blocks():
        return FrontPage(tmp_path)


def draw(page: FrontPage, run: Run, **changes: Any) -> dict[Any, Any]:
    view = View(run.folder, **changes)
    return page.draw(run, view, shown_plan(run, view))


def figure(page: FrontPage, updates: dict[Any, Any]) -> dict[str, Any]:
    return json.loads(updates[page.figure])["figure"]


def test_everything_it_has_is_drawn(page: FrontPage, small_run: Callable[..., object]) -> None:
    run = read(small_run("report").store.path.parent)
    assert list(draw(page, run)) == page.components


@pytest.mark.parametrize(("until", "shown"), [("inspect", False), ("solve", True), ("report", True)])
def test_a_slider_appears_once_budgets_can_be_solved_for(
    page: FrontPage, small_run: Callable[..., object], until: str, shown: bool
) -> None:
    made = small_run(until)
    slider = draw(page, read(made.store.path.parent))[page.budget]
    assert slider["visible"] == shown
    if shown:
        assert made.space.floor <= slider["minimum"] * MIB
        assert made.space.ceiling <= slider["maximum"] * MIB
        assert slider["minimum"] <= slider["value"] <= slider["maximum"]


def test_the_table_holds_the_plans_of_the_text_that_was_chosen(
    page: FrontPage, small_run: Callable[..., object]
) -> None:
    made = small_run("report")
    run = read(made.store.path.parent)
    selection = next(front for front in run.summary.fronts if front.split == "selection")
    for key, count in ((None, 2), (front_key(selection), 4)):
        updates = draw(page, run, front=key)
        table = updates[page.table]["value"]
        assert table["headers"] == HEADERS
        front = run.front(key)
        assert [row[1] for row in table["data"]] == [round(row.bytes / MIB, 2) for row in front.rows]
        assert [row[2] for row in table["data"]] == pytest.approx(
            [r.measured.kl for r in front.rows], abs=1e-4
        )
        assert [row[3] for row in table["data"]] == pytest.approx([r.kl_se for r in front.rows], abs=1e-4)
        assert [digest_of(run, row[PLAN_COLUMN]) for row in table["data"]] == made.plans[:count]
        points = [
            p for trace in figure(page, updates)["data"] if trace["name"] != "chosen" for p in trace["x"]
        ]
        assert len(points) >= count


def test_the_plan_shown_is_marked_measured_or_not(page: FrontPage, small_run: Callable[..., object]) -> None:
    made = small_run("report")
    run = read(made.store.path.parent)
    for changes in ({"digest": made.plans[0]}, {"budget": made.space.ceiling}):
        shown = shown_plan(run, View(run.folder, **changes))
        mark = figure(page, draw(page, run, **changes))["data"][-1]
        assert (mark["name"], mark["customdata"]) == ("selected", [shown.plan.digest])
        assert mark["x"] == [shown.bytes / MIB]


def test_the_export_is_the_plan_shown(
    page: FrontPage, small_run: Callable[..., object], tmp_path: Path
) -> None:
    made = small_run("report")
    run = read(made.store.path.parent)
    update = draw(page, run, budget=made.space.ceiling)[page.export]
    file = Path(update["value"])
    assert file.parent == tmp_path
    data = json.loads(file.read_text())
    shown = shown_plan(run, View(run.folder, budget=made.space.ceiling))
    assert Plan.from_dict(data).digest == data["digest"] == shown.plan.digest
    assert data["weight_bytes"] == made.space.ceiling
    assert data["model"]["name"] == "tiny <b>"


def test_before_anything_was_measured_there_are_words(
    page: FrontPage, small_run: Callable[..., object]
) -> None:
    updates = draw(page, read(small_run("sense").store.path.parent))
    assert "after the stage “solve”" in json.loads(updates[page.figure])["words"]
    assert not updates[page.export]["visible"]
    assert not updates[page.table]["visible"]


def test_weights_are_offered_where_a_tool_has_a_file_for_them(
    page: FrontPage, small_run: Callable[..., object]
) -> None:
    other = draw(page, read(small_run("report", name="other").store.path.parent))
    assert not other[page.ship]["visible"]
    assert not other[page.weights]["visible"]
    run = read(small_run("report", target="llama.cpp").store.path.parent)
    updates = draw(page, run)
    assert updates[page.ship]["visible"]
    assert not updates[page.weights]["visible"]


def test_the_weights_are_those_of_the_plan_shown(page: FrontPage, shipped_run: Path, tmp_path: Path) -> None:
    run = read(shipped_run)
    shown = shown_plan(run, View(run.folder))
    file = page.write_weights(run, shown)
    assert file.parent == tmp_path
    with Store.open(shipped_run, mode="ro") as store:
        wanted = export_plan(store, "llama.cpp", tmp_path / "wanted.gguf", shown.plan.digest).files[0]
    assert file.read_bytes() == wanted.read_bytes()
    updates = draw(page, run)
    assert not updates[page.ship]["visible"]
    assert updates[page.weights]["value"] == str(file)
    assert updates[page.weights]["label"].startswith("Download GGUF, ")
    written = file.stat().st_mtime_ns
    assert page.write_weights(run, shown) == file
    assert file.stat().st_mtime_ns == written


def test_without_the_model_no_weights_are_written_and_it_says_why(
    page: FrontPage, small_run: Callable[..., object], tmp_path: Path
) -> None:
    made = small_run("report", target="llama.cpp")
    made.store.put("model", {**made.store.get("model"), "name": str(tmp_path / "gone")})
    run = read(made.store.path.parent)
    with pytest.raises(InputError, match="gone"):
        page.write_weights(run, shown_plan(run, View(run.folder)))
    assert list(tmp_path.glob("*.gguf")) == []


def test_sizes_are_split_where_plans_decide_about_caches(
    page: FrontPage, small_run: Callable[..., object]
) -> None:
    run = read(small_run("report", kv=True).store.path.parent)
    updates, row = draw(page, run), run.summary.final
    table = updates[page.table]
    assert table["headers"] == table["value"]["headers"] == KV_HEADERS
    assert len(table["column_widths"]) == len(table["datatype"]) == len(KV_HEADERS)
    (cells,) = [cells for cells in table["value"]["data"] if cells[PLAN_COLUMN] == row.short]
    sizes = (row.weight_bytes, row.cache_bytes, row.bytes)
    assert cells[1:4] == [round(size / MIB, 2) for size in sizes]
    assert updates[page.budget]["label"] == "Another budget at 128 tokens × 3, MiB"
    assert figure(page, updates)["layout"]["xaxis"]["title"]["text"] == "weights and KV cache, MiB"
