"""Page *Layers*: where the model is sensitive beside where the plan spends its bits, and one decision."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import gradio as gr

from tightfit.search.figures import plan_figure, sensitivity_figure
from tightfit.search.maps import plan_map
from tightfit.search.page import tag
from tightfit.search.report_results import cache_key
from tightfit.ui.plan_panels import Shown, matrix_panel, spending_panel
from tightfit.ui.plot_click import drawn, plot_click
from tightfit.ui.runs import Run
from tightfit.ui.view import View, shown_decision

_HEIGHT = 240


class LayersPage:
    """The components of the page, and how a run is drawn into them."""

    def __init__(self) -> None:
        with gr.Row(equal_height=False):
            with gr.Column(scale=4, min_width=320), gr.Column(elem_classes="tf-box", min_width=0):
                gr.HTML(_title("Where the model is sensitive"), apply_default_css=False)
                self.sensitivity = plot_click("sensitivity", _HEIGHT, answer="#matrix")
                self.sensitive = gr.HTML(apply_default_css=False)
            with gr.Column(scale=4, min_width=320), gr.Column(elem_classes="tf-box", min_width=0):
                gr.HTML(_title("The plan"), apply_default_css=False)
                self.layout = plot_click("layout", _HEIGHT, answer="#matrix")
                self.planned = gr.HTML(apply_default_css=False)
            with gr.Column(scale=4, min_width=320, elem_id="matrix-column"):
                self.pick = gr.Dropdown(label="Matrix", choices=[], visible=False, elem_id="matrices")
                self.matrix = gr.HTML(apply_default_css=False, elem_id="matrix")
        self.spent = gr.HTML(apply_default_css=False, elem_id="spent")

    @property
    def components(self) -> list[Any]:
        """Every component that :meth:`draw` may change."""
        return [
            self.sensitive,
            self.sensitivity,
            self.planned,
            self.layout,
            self.pick,
            self.matrix,
            self.spent,
        ]

    def draw(self, run: Run, view: View, shown: Shown | None) -> dict[Any, Any]:
        """Return what each component shows of a run."""
        sensitivity, decision = run.summary.sensitivity, shown_decision(run, view)
        layout = plan_map(run.sites, run.decisions, shown.plan) if shown else None
        names = [decision.name for decision in run.decisions]
        return {
            self.sensitive: _caption(f"Brighter loses more: {sensitivity.what}." if sensitivity else ""),
            self.sensitivity: _sensitivity(run),
            self.planned: _caption(
                f"Plan {shown.plan.short}, {shown.label}. Brighter gets more bits.{cache_key(layout)}"
                if shown and layout
                else ""
            ),
            self.layout: drawn(
                plan_figure(layout) if layout else None,
                "Bits of each matrix in the plan, by layer and module.",
                str(run.folder),
                "There is no plan yet: the stage “solve” finds the first one.",
            ),
            self.pick: gr.update(
                label="Matrix or cache" if run.summary.beside else "Matrix",
                choices=names,
                value=decision.name if decision else None,
                visible=bool(names),
            ),
            self.matrix: matrix_panel(run, decision, shown),
            self.spent: spending_panel(run, shown),
        }


@lru_cache(maxsize=4)
def _sensitivity(run: Run) -> str:
    sites = run.summary.sensitivity
    return drawn(
        sensitivity_figure(sites) if sites else None,
        "Loss of each matrix alone, by layer and module; the list beside it names every matrix.",
        str(run.folder),
        "No option is scored yet: that is what the stage “sense” does.",
    )


def _title(title: str) -> str:
    return tag("h2", title, class_="tf-heading")


def _caption(words: str) -> str:
    return tag("p", words, class_="tf-note tf-caption") if words else ""
