"""Page *Speed*: loss against speed of the plans that were run in llama.cpp, their table, one plan."""

from __future__ import annotations

from typing import Any

import gradio as gr

from tightfit.search.front_figure import Mark
from tightfit.search.page import join, tag
from tightfit.search.report_speed import latency_parts, speed_caption, speed_rows_table
from tightfit.search.speed_figure import speed_figure
from tightfit.search.speed_points import MEASURES, asked_bounds, points_of, speed_front
from tightfit.search.summary import Front
from tightfit.ui.plan_panels import Shown, plan_panel
from tightfit.ui.plot_click import drawn, plot_click
from tightfit.ui.runs import Run
from tightfit.ui.view import View

_HEIGHT = 400


class SpeedPage:
    """The components of the page, and how a run is drawn into them."""

    def __init__(self) -> None:
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=340, elem_classes="tf-box"):
                choices = [(measure.title, phase) for phase, measure in MEASURES.items()]
                self.phase = gr.Radio(choices, value="generate", label="Shown", elem_id="phase")
                self.figure = plot_click("speed", _HEIGHT, answer="#run-plan")
                self.caption = gr.HTML(apply_default_css=False)
            with gr.Column(scale=2, min_width=340), gr.Column(elem_classes="tf-box", min_width=0):
                self.plan = gr.HTML(apply_default_css=False, elem_id="run-plan")
        self.table = gr.HTML(apply_default_css=False, elem_id="speeds")

    @property
    def components(self) -> list[Any]:
        """Every component that :meth:`draw` may change."""
        return [self.phase, self.figure, self.caption, self.plan, self.table]

    def draw(self, run: Run, view: View, shown: Shown | None) -> dict[Any, Any]:
        """Return what each component shows of a run."""
        front = speed_front(run.summary)
        caption, drawing = self._draw_figure(run, front, view, shown)
        return {
            self.phase: gr.update(value=view.phase),
            self.figure: drawing,
            self.caption: tag("p", caption, class_="tf-note tf-caption") if caption else "",
            self.plan: plan_panel(run, shown),
            self.table: _table(run, front, shown),
        }

    def _draw_figure(self, run: Run, front: Front | None, view: View, shown: Shown | None) -> tuple[str, str]:
        points = points_of(run.summary, front, view.phase)
        if front is None or not points:
            words = "No plan was run and measured yet: the stage “validate” does so."
            return "", drawn(None, words, words=words)
        mark = Mark(shown.plan.digest, shown.bytes, shown.loss or 0.0) if shown else None
        figure = speed_figure(points, asked_bounds(run.summary), view.phase, mark)
        figure.update_layout(height=_HEIGHT)
        alt = f"Loss against {MEASURES[view.phase].title} of {len(points)} plans; the table below holds all."
        zoom = f"{run.folder} {front.protocol} {view.phase}"
        return speed_caption(run.summary, front, points, view.phase), drawn(figure, alt, zoom=zoom)


def has_speeds(run: Run) -> bool:
    """Say whether plans of a run were timed, so that there is something to show."""
    return bool(run.summary.speeds or run.summary.latency)


def _table(run: Run, front: Front | None, shown: Shown | None) -> str:
    if not has_speeds(run):
        return ""
    digest = shown.plan.digest if shown else None
    rows = [speed_rows_table(run.summary, front, digest)] if run.summary.speeds else []
    inner = join([tag("h2", "Run in llama.cpp"), *rows, *latency_parts(run.summary)])
    return tag("section", inner, class_="tf-card")
