"""The page: what a run is and how it goes on top, the pages below, drawn anew when its store changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from tightfit.search.control import Wish, ask, state
from tightfit.spaces import TightfitError
from tightfit.ui import panels
from tightfit.ui.pages.front import PLAN_COLUMN, READY, WRITING, FrontPage, digest_of
from tightfit.ui.pages.layers import LayersPage
from tightfit.ui.pages.speed import SpeedPage, has_speeds
from tightfit.ui.plan_panels import MIB
from tightfit.ui.runs import Run, failure, find_runs, read, resume, starting, version
from tightfit.ui.view import View, shown_plan

REFRESH_SECONDS = 2.0

Updates = dict[Any, Any]


class Window:
    """The whole page over a folder of runs.

    Args:
        path: a run's folder, or a folder of runs.
        exports: folder that plans are written to, for the browser to download.

    Attributes:
        blocks: the page, ready to be launched.
        state: what a tab looks at, a :class:`View`; every event gets it first and gives it back.
    """

    def __init__(self, path: Path, exports: Path) -> None:
        self._path = path
        with gr.Blocks(title="Tightfit", analytics_enabled=False, fill_width=True) as self.blocks:
            self.state = gr.State(View())
            self._timer = gr.Timer(REFRESH_SECONDS)
            with gr.Row(elem_id="top", equal_height=False):
                self._head = gr.HTML(apply_default_css=False, scale=1)
                with gr.Column(scale=0, min_width=300, elem_id="controls"):
                    self._runs = gr.Dropdown(label="Run", choices=[], visible=False, elem_id="runs")
                    with gr.Row():
                        self._pause = gr.Button("Pause", size="md", min_width=80, visible=False)
                        self._resume = gr.Button(
                            "Resume", size="md", variant="primary", min_width=80, visible=False
                        )
                        self._stop = gr.Button("Stop", size="md", min_width=80, visible=False)
            self._verdict = gr.HTML(apply_default_css=False)
            with gr.Tabs(visible=False) as self._tabs:
                with gr.Tab("Front"):
                    self._front = FrontPage(exports)
                with gr.Tab("Layers"):
                    self._layers = LayersPage()
                with gr.Tab("Speed", visible=False) as self._timed:
                    self._speed = SpeedPage()
            self._listen()

    def _listen(self) -> None:
        front, layers, speed = self._front, self._layers, self._speed
        self.blocks.load(self._begin, **self._wiring())
        self._timer.tick(self.tick, **self._wiring())

        def pick(view: View, event: gr.EventData) -> Updates:
            return self.draw(self.picked(view, str(event.key)))

        def pick_row(view: View, event: gr.SelectData) -> Updates:
            return self.draw(self.picked(view, str(event.row_value[PLAN_COLUMN])))

        def pick_cell(view: View, event: gr.EventData) -> Updates:
            return self.draw(replace(view, decision=str(event.key)))

        front.figure.select(pick, **self._wiring())
        speed.figure.select(pick, **self._wiring())
        front.table.select(pick_row, **self._wiring())
        layers.sensitivity.select(pick_cell, **self._wiring())
        layers.layout.select(pick_cell, **self._wiring())
        self._on(front.budget.release, front.budget, lambda view, mib: view.solving(int(mib * MIB)))
        self._on(front.texts.input, front.texts, lambda view, key: replace(view, front=key))
        self._on(layers.pick.input, layers.pick, lambda view, name: replace(view, decision=name))
        self._on(speed.phase.input, speed.phase, lambda view, phase: replace(view, phase=phase))
        self._on(self._runs.input, self._runs, lambda view, folder: view.of(Path(folder)))
        self._pause.click(lambda view: self._wish(view, "pause"), **self._wiring())
        self._stop.click(lambda view: self._wish(view, "stop"), **self._wiring())
        self._resume.click(self._go_on, **self._wiring())
        self._ship()

    def _ship(self) -> None:
        """Writing the weights takes a while: it keeps nothing else waiting."""
        button = self._front.ship
        apart: dict[str, Any] = {
            "api_visibility": "private",
            "show_progress": "hidden",
            "concurrency_id": "ship",
        }
        started = button.click(lambda: gr.update(value=WRITING, interactive=False), None, button, **apart)
        done = started.then(self.shipped, [self.state], button, **apart)
        done.then(self.draw, **self._wiring())

    def shipped(self, view: View) -> Any:
        """Write the weights of the plan that is shown, and say why if that cannot be done."""
        run = self._read(view)
        try:
            shown = shown_plan(run, view) if run else None
            if run and shown:
                self._front.write_weights(run, shown)
        except TightfitError as error:
            # It stays until it is closed: there is a choice to make.
            gr.Warning(f"No file was written: {error}", duration=None)
        return gr.update(value=READY, interactive=True)

    def _wiring(self, *inputs: Any) -> dict[str, Any]:
        """What all events share. They take turns, so that none draws over what another changed."""
        shown = [self._head, self._runs, self._pause, self._resume, self._stop, self._verdict, self._tabs]
        pages = [part for page in (self._front, self._layers, self._speed) for part in page.components]
        return {
            "inputs": [self.state, *inputs],
            "outputs": [self.state, *shown, self._timed, *pages],
            "show_progress": "hidden",
            "api_visibility": "private",
            "concurrency_id": "view",
            "concurrency_limit": 1,
            "trigger_mode": "always_last",
        }

    def _on(self, event: Any, component: Any, change: Callable[[View, Any], View]) -> None:
        event(lambda view, value: self.draw(change(view, value)), **self._wiring(component))

    def _begin(self, view: View) -> Updates:
        return self.draw(View())

    def tick(self, view: View) -> Updates:
        """Return what has changed in the run or around it; nothing, as a rule."""
        return {self.state: gr.skip()} if self._signs(view.folder) == view.seen else self.draw(view)

    def _signs(self, folder: Path | None) -> object:
        """What has to change for a page to be drawn anew."""
        runs = tuple(find_runs(self._path))
        if folder is None:
            return runs
        return runs, version(folder), _state(folder), starting(folder), failure(folder)

    def picked(self, view: View, digest: str) -> View:
        """Return the view of a plan: a stored one by its digest, a predicted one by solving for its size."""
        run = self._read(view)
        if run is None:
            return view
        point = next((p for p in run.summary.predicted if p.digest.startswith(digest)), None)
        found = digest_of(run, digest)
        if found:
            return view.picking(found)
        return view.solving(point.bytes) if point else view

    def _wish(self, view: View, wish: Wish) -> Updates:
        if view.folder is None:
            return {self.state: gr.skip()}
        try:
            ask(view.folder, wish)
        except TightfitError as error:
            gr.Warning(str(error))
        else:
            if wish != "run":
                gr.Info(f"Asked to {wish}: the run does so after what it is measuring now.")
        return self.draw(view)

    def _go_on(self, view: View) -> Updates:
        """Let a paused run go on, or start a process for one that nobody works on."""
        if view.folder is None:
            return {self.state: gr.skip()}
        if _state(view.folder) == "paused":
            return self._wish(view, "run")
        try:
            if not starting(view.folder):
                resume(view.folder)
        except TightfitError as error:
            gr.Warning(str(error))
        return self.draw(view)

    def _read(self, view: View) -> Run | None:
        try:
            return read(view.folder) if view.folder else None
        except TightfitError:
            return None

    def draw(self, view: View) -> Updates:
        """Return what has changed on the page of a view."""
        folders = find_runs(self._path)
        if view.folder not in folders:
            view = view.of(folders[0] if folders else None)
        view = replace(view, seen=self._signs(view.folder))
        updates = {**self._draw_runs(folders, view.folder), **self._draw_run(view)}
        prints = {component._id: _fingerprint(update) for component, update in updates.items()}
        changed = {c: update for c, update in updates.items() if view.sent.get(c._id) != prints[c._id]}
        return {**changed, self.state: replace(view, sent={**view.sent, **prints})}

    def _draw_runs(self, folders: list[Path], folder: Path | None) -> Updates:
        choices = [(found.resolve().name, str(found)) for found in folders]
        value = str(folder) if folder else None
        return {self._runs: gr.update(choices=choices, value=value, visible=len(folders) > 1)}

    def _draw_run(self, view: View) -> Updates:
        if view.folder is None:
            return self._draw_nothing(panels.nothing())
        try:
            run = read(view.folder)
            shown = shown_plan(run, view)
        except TightfitError as error:
            return self._draw_nothing(panels.refused(str(error)))
        begins = starting(view.folder) and run.state == "stopped"
        return {
            self._head: panels.head(run, failure(view.folder) if run.state == "stopped" else None),
            self._verdict: panels.verdict(run),
            self._tabs: gr.update(visible=True),
            self._pause: gr.update(visible=run.state == "running"),
            self._resume: gr.update(
                visible=run.state in ("paused", "stopped"),
                interactive=not begins,
                value="Starting…" if begins else "Resume",
            ),
            self._stop: gr.update(visible=run.state in ("running", "paused")),
            **self._front.draw(run, view, shown),
            **self._layers.draw(run, view, shown),
            self._timed: gr.update(visible=has_speeds(run)),
            **self._speed.draw(run, view, shown),
        }

    def _draw_nothing(self, words: str) -> Updates:
        hidden = gr.update(visible=False)
        buttons = dict.fromkeys((self._pause, self._resume, self._stop), hidden)
        return {self._head: panels.bare_head(), self._verdict: words, self._tabs: hidden, **buttons}


def _state(folder: Path) -> str | None:
    """The state of a run, or None while it cannot be told."""
    try:
        return state(folder)
    except TightfitError:
        return None


def _fingerprint(update: Any) -> str:
    return hashlib.sha256(json.dumps(update, default=str).encode()).hexdigest()
