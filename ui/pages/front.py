"""Page *Front*: loss against size, the table of measured plans, a slider over budgets, one plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import gradio as gr

from tightfit.exporters import EXPORTERS, Exporter, get_exporter
from tightfit.search.figures import Mark, front_figure
from tightfit.search.page import tag
from tightfit.search.shipping import stored_shipment
from tightfit.search.store import Store
from tightfit.search.summary import Front, PlanRow
from tightfit.search.tables import brief_labels, loss_text, marks, place_text
from tightfit.spaces import format_size
from tightfit.ui.plan_panels import MIB, Shown, options_by_layer, plan_panel
from tightfit.ui.plot_click import drawn, plot_click
from tightfit.ui.runs import Run, front_key
from tightfit.ui.view import View

HEADERS = ["What", "MiB", "KL", "± se", "Plan"]
KV_HEADERS = ["What", "Weights", "KV", "MiB", "KL", "± se", "Plan"]
PLAN_COLUMN = -1
"""Where both have the plan."""

READY, WRITING = "Write model as GGUF", "Writing…"
"""What the button says that writes the compressed model."""

_HEIGHT = 400
_WIDTHS: list[str | int] = [172, 64, 72, 70, 126]
_KV_WIDTHS: list[str | int] = [150, 84, 56, 60, 76, 82, 126]
_STEPS = 400


class FrontPage:
    """The components of the page, and how a run is drawn into them.

    Args:
        exports: folder that plans are written to, for the browser to download.
    """

    def __init__(self, exports: Path) -> None:
        self._exports = exports
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=340, elem_classes="tf-box"):
                self.texts = gr.Radio(label="Measured on", choices=[], visible=False, elem_id="texts")
                self.figure = plot_click("front", _HEIGHT, answer="#plan")
                self.budget = gr.Slider(
                    0,
                    1,
                    value=0,
                    label="Another budget, MiB",
                    info="Solves again from the stored scores; nothing is measured.",
                    buttons=[],
                    visible=False,
                    elem_id="budget",
                )
                self.caption = gr.HTML(apply_default_css=False)
            with gr.Column(scale=2, min_width=340):
                with gr.Column(elem_classes="tf-box", min_width=0):
                    self.plan = gr.HTML(apply_default_css=False, elem_id="plan")
                    with gr.Row(elem_id="exports"):
                        self.export = gr.DownloadButton(
                            "Export plan as JSON", size="md", min_width=150, visible=False, elem_id="export"
                        )
                        self.ship = gr.Button(READY, size="md", min_width=150, visible=False, elem_id="ship")
                        self.weights = gr.DownloadButton(
                            "Download", size="md", min_width=150, visible=False, elem_id="weights"
                        )
                self.table = gr.Dataframe(
                    headers=HEADERS,
                    datatype=_types(HEADERS),
                    type="array",
                    interactive=False,
                    show_label=False,
                    max_height=330,
                    buttons=[],
                    column_widths=_WIDTHS,
                    visible=False,
                    elem_id="plans",
                )
        self.options = gr.HTML(apply_default_css=False)

    @property
    def components(self) -> list[Any]:
        """Every component that :meth:`draw` may change."""
        return [
            self.texts,
            self.figure,
            self.caption,
            self.budget,
            self.plan,
            self.export,
            self.ship,
            self.weights,
            self.table,
            self.options,
        ]

    def draw(self, run: Run, view: View, shown: Shown | None) -> dict[Any, Any]:
        """Return what each component shows of a run."""
        front, summary = run.front(view.front), run.summary
        rows = front.rows if front else ()
        space, solvable = summary.space, summary.link is not None
        return {
            self.texts: self._draw_texts(run, front),
            self.figure: self._draw_figure(run, front, shown),
            self.caption: _caption(front),
            self.budget: gr.update(
                minimum=_mib_up(space.floor),
                maximum=_mib_up(space.ceiling),
                step=round(max(0.01, (space.ceiling - space.floor) / MIB / _STEPS), 2),
                value=_mib_up(summary.limit or space.ceiling),
                label=f"Another budget at {place_text(space)}, MiB"
                if summary.beside
                else "Another budget, MiB",
                visible=True,
            )
            if space and solvable and space.ceiling > space.floor
            else gr.update(visible=False),
            self.plan: plan_panel(run, shown),
            self.export: gr.update(value=self._write(run, shown), visible=True)
            if shown
            else gr.update(visible=False),
            **self._draw_weights(run, shown),
            self.table: _table(rows, caches=summary.beside is not None),
            self.options: options_by_layer(run, shown),
        }

    def _draw_texts(self, run: Run, front: Front | None) -> dict[str, Any]:
        fronts = run.summary.fronts
        choices = [(f"{f.split} ({len(f.rows)} plans)", front_key(f)) for f in fronts]
        return gr.update(choices=choices, value=front_key(front) if front else None, visible=len(fronts) > 1)

    def _draw_figure(self, run: Run, front: Front | None, shown: Shown | None) -> str:
        summary = run.summary
        if front is None and not summary.predicted:
            words = "No plan was measured yet. The first front appears after the stage “solve”."
            return drawn(None, "No plan was measured yet.", words=words)
        figure = front_figure(
            front.rows if front else (), summary.predicted, summary.limit, _mark(front, shown)
        )
        figure.update_layout(height=_HEIGHT)
        plans = len(front.rows) if front else 0
        alt = (
            f"Loss against size of {plans} measured plans and {len(summary.predicted)} predicted ones; "
            "the table beside it holds the measured ones."
        )
        return drawn(figure, alt, zoom=f"{run.folder} {front_key(front) if front else ''}")

    def _draw_weights(self, run: Run, shown: Shown | None) -> dict[Any, Any]:
        """Offer to write the file with the weights or, once it is written, to download it."""
        file = self._weights_file(run, shown) if shown else None
        there = file is not None and file.exists()
        size = format_size(file.stat().st_size) if file and there else ""
        return {
            self.ship: gr.update(visible=file is not None and not there),
            self.weights: gr.update(value=str(file), label=f"Download GGUF, {size}", visible=True)
            if there
            else gr.update(visible=False),
        }

    def _weights_file(self, run: Run, shown: Shown) -> Path | None:
        exporter = artefact_of(run)
        if exporter is None:
            return None
        # Runs of one name may lie in several folders; a digest alone does not tell their models apart.
        model = (run.summary.model.digest or "")[:8] if run.summary.model else ""
        return self._exports / f"{run.folder.name}-{model}-{shown.plan.short}{exporter.suffix}"

    def write_weights(self, run: Run, shown: Shown) -> Path | None:
        """Write the weights as they were measured, for the download, once.

        Raises:
            InputError: the run has no such exporter, its model is gone or another one, or what its matrices
                were rounded with is gone.
        """
        exporter, file = artefact_of(run), self._weights_file(run, shown)
        if exporter and file and not file.exists():
            with Store.open(run.folder, mode="ro") as store:
                exporter.export(stored_shipment(store, shown.plan, source=True), file)
        return file

    def _write(self, run: Run, shown: Shown) -> str:
        """Write the plan for the download, once."""
        exporter = get_exporter("json")
        file = self._exports / f"{run.folder.name}-{shown.plan.short}{exporter.suffix}"
        if not file.exists():
            with Store.open(run.folder, mode="ro") as store:
                exporter.export(stored_shipment(store, shown.plan), file)
        return str(file)


def artefact_of(run: Run) -> Exporter | None:
    """Return what writes the compressed model for the target of a run, if something does."""
    target = (run.summary.settings or {}).get("target")
    kinds = (e for e in EXPORTERS.values() if e.kind == "artefact" and e.needs_source)
    return next((exporter for exporter in kinds if exporter.target == target), None)


def _mark(front: Front | None, shown: Shown | None) -> Mark | None:
    if shown is None:
        return None
    row = front.find(shown.plan.digest) if front else None
    loss = row.measured.kl if row else shown.loss
    return Mark(shown.plan.digest, shown.bytes, loss) if loss is not None else None


def _caption(front: Front | None) -> str:
    if front is None:
        return ""
    words = (
        f"{front.tokens:,} tokens of {front.documents} documents. Bars are one standard error; hollow marks "
        "are dominated; the line is what the loss model promises."
    )
    return tag("p", words, class_="tf-note tf-caption")


def _types(headers: Sequence[str]) -> list[Literal["str", "number"]]:
    return ["str" if name in ("What", "Plan") else "number" for name in headers]


def _table(rows: Sequence[PlanRow], *, caches: bool) -> dict[str, Any]:
    headers, widths = (KV_HEADERS, _KV_WIDTHS) if caches else (HEADERS, _WIDTHS)
    labels = [row.label for row in rows]
    labels = brief_labels(labels) if caches else labels
    cells = [_cells(row, label, caches=caches) for row, label in zip(rows, labels, strict=True)]
    data = {"headers": headers, "data": cells}
    update: dict[str, Any] = gr.update(value=data, visible=bool(rows))
    if caches:
        update |= {"headers": headers, "datatype": _types(headers), "column_widths": widths}
    return update


def _cells(row: PlanRow, name: str, *, caches: bool) -> list[Any]:
    words = marks(row)
    label = f"{name} · {', '.join(words)}" if words else name
    # Numbers and not texts, so that sorting sorts them; as many decimals as elsewhere.
    loss, _, se = loss_text(row.measured.kl, row.kl_se).partition(" ± ")
    parts = (row.weight_bytes, row.cache_bytes, row.bytes) if caches else (row.bytes,)
    sizes = [round(part / MIB, 2) for part in parts]
    return [label, *sizes, float(loss), None if se == "?" else float(se), row.short]


def _mib_up(size: int) -> float:
    """Bytes as MiB, rounded up to hundredths: a slider's ends must not fall below the floor."""
    return -(-size * 100 // MIB) / 100


def digest_of(run: Run, short: str) -> str | None:
    """Return the digest of a stored plan by its first characters, as tables show them."""
    return next((digest for digest in run.plans if digest.startswith(short)), None)
