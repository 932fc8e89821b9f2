"""Page *Layers*: where the model is sensitive beside where the plan spends its bits, and one matrix."""

from __future__ import annotations

from typing import Any

import gradio as gr

from tightfit.search.figures import plan_figure, sensitivity_figure
from tightfit.search.maps import plan_map
from tightfit.search.page import tag
from tightfit.ui import panels
from tightfit.ui.panels import Shown
from tightfit.ui.plot_click import PlotClick, drawn
from tightfit.ui.runs import Run
from tightfit.ui.view import View, shown_decision

_HEIGHT = 240


class LayersPage:
    """The components of the page, and how a run is drawn into them."""

    def __init__(self) -> None:
        with gr.Row(equal_height=False):
            with gr.Column(scale=4, min_width=320), gr.Group(elem_classes="tf-box"):
                self.sensitive = gr.HTML(apply_default_css=False)
                self.sensitivity = PlotClick("sensitivity", _HEIGHT)
            with gr.Column(scale=4, min_width=320), gr.Group(elem_classes="tf-box"):
                self.planned = gr.HTML(apply_default_css=False)
                self.layout = PlotClick("layout", _HEIGHT)
            with gr.Column(scale=4, min_width=320):
                self.pick = gr.Dropdown(label="Matrix", choices=[], visible=False, elem_id="matrices")
                self.matrix = gr.HTML(apply_default_css=False, elem_id="matrix")

    @property
    def components(self) -> list[Any]:
        """Every component that :meth:`draw` may change."""
        return [self.sensitive, self.sensitivity, self.planned, self.layout, self.pick, self.matrix]

    def draw(self, run: Run, view: View, shown: Shown | None) -> dict[Any, Any]:
        """Return what each component shows of a run."""
        sensitivity, decision = run.summary.sensitivity, shown_decision(run, view)
        layout = plan_map(run.sites, run.decisions, shown.plan) if shown else None
        names = [decision.name for decision in run.decisions]
        zoom = str(run.folder)
        return {
            self.sensitive: _title(
                "Where the model is sensitive",
                f"Brighter loses more: {sensitivity.what}." if sensitivity else "",
            ),
            self.sensitivity: drawn(
                sensitivity_figure(sensitivity) if sensitivity else None,
                "Loss of each matrix alone, by layer and module; the list beside it names every matrix.",
                zoom,
                "No option is scored yet: that is what the stage “sense” does.",
            ),
            self.planned: _title(
                "The plan",
                f"Plan {shown.plan.short}, {shown.label}: brighter gets more bits." if shown else "",
            ),
            self.layout: drawn(
                plan_figure(layout) if layout else None,
                "Bits of each matrix in the plan, by layer and module.",
                zoom,
                "There is no plan yet: the stage “solve” finds the first one.",
            ),
            self.pick: gr.update(
                choices=names, value=decision.name if decision else None, visible=bool(names)
            ),
            self.matrix: panels.matrix(run, decision, shown),
        }


def _title(title: str, words: str) -> str:
    return tag("div", tag("h2", title), tag("p", words, class_="tf-note"), class_="tf-heading")
