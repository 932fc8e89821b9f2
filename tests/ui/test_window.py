from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.search.speeds import add_speeds

from tightfit.ui import panels
from tightfit.ui.view import View
from tightfit.ui.window import Window


@pytest.fixture
def window(tmp_path: Path) -> Window:
    exports = tmp_path / "exports"
    exports.mkdir()
    return Window(tmp_path / "runs", exports)


def drawn(window: Window, view: View) -> tuple[dict[Any, Any], View]:
    """What was drawn, and the view after it."""
    updates = window.draw(view)
    (after,) = [value for value in updates.values() if isinstance(value, View)]
    return {c: u for c, u in updates.items() if not isinstance(u, View)}, after


def texts(updates: dict[Any, Any]) -> str:
    return " ".join(value for value in updates.values() if isinstance(value, str))


def test_without_a_run_it_says_how_to_start_and_offers_nothing(window: Window) -> None:
    updates, after = drawn(window, View())
    assert panels.nothing() in updates.values()
    assert after.folder is None
    visible = [u for u in updates.values() if isinstance(u, dict) and u["visible"]]
    assert visible == []


def test_only_what_changed_is_drawn_again(window: Window, small_run: Callable[..., object]) -> None:
    made = small_run("explore")
    first, view = drawn(window, View())
    assert "Best so far" in texts(first)
    assert drawn(window, view)[0] == {}
    made.measure((*made.levels(1)[:-1], 2), "agent", "selection")
    second, view = drawn(window, view)
    assert 0 < len(second) < len(first)
    assert '"figure"' in texts(second)
    picked, _ = drawn(window, view.picking(made.plans[0]))
    assert "Baseline uniform 3b" in texts(picked)
    assert len(picked) < len(first)


@pytest.mark.parametrize("until", ["inspect", "sense", "solve", "explore", "report"])
def test_every_stage_can_be_drawn(window: Window, small_run: Callable[..., object], until: str) -> None:
    small_run(until)
    updates, view = drawn(window, View())
    assert view.folder.name == "demo"
    assert "tiny &lt;b&gt;" in texts(updates)


def test_a_run_that_cannot_be_read_is_named_and_the_others_stay(
    window: Window, small_run: Callable[..., object], tmp_path: Path
) -> None:
    small_run("report")
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "run.db").write_text("no database" * 200)
    assert "cannot be opened as a Tightfit run" in texts(drawn(window, View(folder=broken))[0])
    assert "fits: plan of the test" in texts(drawn(window, View(folder=tmp_path / "runs" / "demo"))[0])


def test_a_new_run_appears_by_itself(window: Window, small_run: Callable[..., object]) -> None:
    _, view = drawn(window, View())
    assert list(window.tick(view)) == [window.state]
    small_run("inspect")
    assert len(window.tick(view)) > 5
    _, view = drawn(window, view)
    assert list(window.tick(view)) == [window.state]


def test_a_plan_of_the_predicted_front_is_solved_for(
    window: Window, small_run: Callable[..., object]
) -> None:
    made = small_run("solve")
    _, view = drawn(window, View())
    (digest, size) = (made.space.plan(made.levels(2)).digest, made.space.bytes_of(made.levels(2)))
    assert window.picked(view, digest).budget == size
    assert window.picked(view, "0" * 64) == view
    small_run("explore", name="later")
    _, view = drawn(window, View())
    assert window.picked(view, digest[:12]).digest == digest


def test_the_page_of_speeds_is_there_for_runs_that_have_some(
    window: Window, small_run: Callable[..., object]
) -> None:
    made = small_run("report", target="llama.cpp")
    updates, view = drawn(window, View())
    assert not updates[window._timed]["visible"]
    add_speeds(made.store, {made.plans[0]: 50.0, made.plans[1]: 60.0})
    updates, view = drawn(window, view)
    assert updates[window._timed]["visible"]
    assert "Run in llama.cpp" in texts(updates)


def test_weights_that_cannot_be_written_are_said_to_be_so(
    window: Window, small_run: Callable[..., object], tmp_path: Path
) -> None:
    made = small_run("report", target="llama.cpp")
    made.store.put("model", {**made.store.get("model"), "name": str(tmp_path / "gone")})
    _, view = drawn(window, View())
    with pytest.warns(UserWarning, match="No file was written: .*gone"):
        button = window.shipped(view)
    assert button["interactive"]
    assert list((tmp_path / "exports").glob("*.gguf")) == []


def test_no_event_is_an_endpoint_for_others(window: Window) -> None:
    assert window.blocks.fns
    assert {fn.api_visibility for fn in window.blocks.fns.values()} == {"private"}


def test_the_window_needs_no_torch() -> None:
    code = "import sys, tightfit.ui.window; print([n for n in ('torch', 'ray') if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr
