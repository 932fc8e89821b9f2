"""What running plans in llama.cpp gave, as a section of the report; its parts serve the app too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tightfit.proxies.latency import LatencyTable, Phase
from tightfit.search.hardware import SpeedRow
from tightfit.search.page import Html, escaped, figure, join, section, table, tag
from tightfit.search.palette import plain
from tightfit.search.speed_figure import ratio_figure, speed_figure
from tightfit.search.speed_points import (
    MEASURES,
    Point,
    asked_bounds,
    points_of,
    predicted_rows,
    speed_front,
)
from tightfit.search.speed_tables import HEADER, latency_words, setting, speed_cells
from tightfit.search.summary import Front, Summary
from tightfit.search.tables import loss_text
from tightfit.spaces import GgmlOption
from tightfit.workers.llamacpp.speed import NoSpeed

_TIMES: dict[str, str] = {"generate": "Generated tokens", "prompt": "Prompts"}
_FACTS: dict[Phase, str] = {"generate": "Tokens/s", "prompt": "First token"}
_PICO = 1e12


def speed_section(summary: Summary) -> Html | None:
    """Show the plans that were run; nothing where none was."""
    if not (summary.speeds or summary.latency):
        return None
    front = speed_front(summary)
    drawings = [_drawing(summary, front, phase) for phase in _phases(summary)]
    predicted = predicted_rows(summary)
    if predicted:
        caption = (
            "Predicted from a table of times before these plans were run: on the dotted line, prediction and "
            "measurement agree. Bars are the interval of the paired ratio."
        )
        drawings.append(figure("speed-ratio", ratio_figure(predicted), caption, tools=False))
    shown = [drawing for drawing in drawings if drawing]
    return section(
        "In llama.cpp",
        tag("div", *shown, class_="pair") if shown else None,
        *([speed_rows_table(summary, front)] if summary.speeds else []),
        *latency_parts(summary),
    )


def speed_facts(summary: Summary, digest: str) -> list[tuple[str, str, str, str]]:
    """Return name, value, unit and remark of what running a plan gave; nothing where it was not run."""
    run = next((row for row in summary.speeds if row.digest == digest), None)
    if run is None:
        return []
    if isinstance(run.speed, NoSpeed):
        return [(_FACTS["generate"], "–", "", f"could not be run: {run.speed.reason}")]
    bounds, facts = {bound.phase: bound for bound in asked_bounds(summary)}, []
    for phase, name in _FACTS.items():
        bound = bounds.get(phase)
        if phase != "generate" and bound is None:
            continue
        measure = MEASURES[phase]
        found = run.speed.estimate(measure.quantity)
        digits = 0 if measure.scale * found.median >= 1000 else 1
        value, half = (f"{measure.scale * x:.{digits}f}" for x in (found.median, found.spread))
        remark = f"± {half} in llama.cpp"
        if bound:
            end = (
                f"at least {1 / bound.seconds:g}"
                if phase == "generate"
                else f"at most {1000 * bound.seconds:g}"
            )
            remark += f"; {end} asked for" + (": too slow" if bound.missed(run.speed) else "")
        facts.append((name, value, "" if phase == "generate" else "ms", remark))
    return facts


def _phases(summary: Summary) -> list[Phase]:
    asked = {bound.phase for bound in asked_bounds(summary)}
    return [phase for phase in MEASURES if phase == "generate" or phase in asked]


def _drawing(summary: Summary, front: Front | None, phase: Phase) -> Html | None:
    points = points_of(summary, front, phase)
    if not points or front is None:
        return None
    drawn = speed_figure(points, asked_bounds(summary), phase)
    return figure(f"speed-{phase}", drawn, speed_caption(summary, front, points, phase))


def speed_caption(summary: Summary, front: Front, points: Sequence[Point], phase: Phase) -> str:
    """Say what a figure of speeds shows, and which plans it lacks."""
    asked = " and ".join(bound.asked for bound in asked_bounds(summary))
    words = (
        f"Loss measured on {front.split}; the lower and the further {MEASURES[phase].better}, the better. "
        "Across are the median and its interval, upright one standard error."
        + (f" Asked for: {asked}." if asked else "")
    )
    left = len(summary.speeds) - len(points)
    plans = "1 more plan, not measured on it, is" if left == 1 else f"{left} more, not measured on it, are"
    return f"{words} {plans} in the table." if left else words


def speed_rows_table(summary: Summary, front: Front | None, selected: str | None = None) -> Html:
    """Return the plans that were run as a table, with what was run below it.

    Args:
        summary: the run.
        front: where losses are taken from.
        selected: digest of a plan that somebody looks at.
    """
    header = ["What", *([f"KL on {front.split}"] if front else []), *HEADER[1:]]
    rows = [_cells(row, summary, front) for row in summary.speeds]
    header, rows = _without_empty(header, rows)
    classes = [_class(row, summary, selected) for row in summary.speeds]
    failed = [f"{row.label}: {row.speed.reason}." for row in summary.speeds if isinstance(row.speed, NoSpeed)]
    words = setting(summary)
    notes = [*(f"Could not be run: {line}" for line in failed), f"{words[0].upper()}{words[1:]}."]
    shown = tag("div", table("Plans run in llama.cpp", header, rows, classes), class_="tight")
    return join([shown, *(_note(note) for note in notes)])


def _class(row: SpeedRow, summary: Summary, selected: str | None) -> str:
    chosen = summary.result is not None and row.digest == summary.result.chosen
    names = ["chosen" if chosen else "", "selected" if row.digest == selected else ""]
    return " ".join(name for name in names if name)


def _cells(row: SpeedRow, summary: Summary, front: Front | None) -> list[str]:
    _, *cells = speed_cells(row, summary)
    if isinstance(row.speed, NoSpeed):
        cells = ["–", *cells[1:]]  # a whole sentence would take the width of the table
    measured = front.find(row.digest) if front else None
    result = summary.result
    chosen, offered = (result.chosen, result.offered) if result else (None, None)
    word = {offered: "offered", chosen: "chosen"}.get(row.digest)
    mark = tag("span", word, class_="mark") if word else None
    loss = loss_text(measured.measured.kl, measured.kl_se) if measured else ""
    return [join([escaped(row.label), mark]), *([loss] if front else []), *cells]


def _without_empty(header: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Leave out columns that have nothing to say, such as predictions where nothing was predicted."""
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def latency_parts(summary: Summary) -> list[Html]:
    """Return how well tables of times predict, and the tables, folded."""
    words = [f"{line[0].upper()}{line[1:]}." for line in latency_words(summary)]
    parts = [_note(line) for line in words]
    tables = [times_table(phase, data) for phase, data in summary.latency.items()]
    if tables:
        note = _note(
            "Picoseconds per weight and token, fitted to whole plans: what a matrix of this shape adds, "
            "divided by its weights. A dot is a pair that no plan had."
        )
        parts.append(tag("details", tag("summary", "Times by type and shape"), note, *tables))
    return parts


def times_table(phase: str, data: Mapping[str, Any]) -> Html:
    """Return a table of times: types by shapes, in picoseconds per weight and token."""
    found = LatencyTable.from_dict(data)
    shapes = sorted({(rows, cols) for _, rows, cols in found.classes}, key=lambda s: (s[0] * s[1], s))
    types = sorted({name for name, _, _ in found.classes}, key=lambda name: (_bits(name), name))
    name = _TIMES.get(phase, phase)
    header = [name, "Bits", *(f"{rows} × {cols}" for rows, cols in shapes)]
    cells = [[each, f"{_bits(each):.4g}", *(_time(found, each, shape) for shape in shapes)] for each in types]
    return table(f"{name}: picoseconds per weight and token by type and shape", header, cells)


def _time(found: LatencyTable, name: str, shape: tuple[int, int]) -> str:
    rate = found.classes.get((name, *shape))
    if rate is None:
        return "·"
    # Work is counted in bytes where a token reads every weight, and in weights where a prompt computes.
    work = _bits(name) / 8 if found.phase == "generate" else 1 / found.tokens
    return plain(_PICO * rate * work)


def _bits(name: str) -> float:
    option = GgmlOption(name)
    return 8 * option.block_bytes / option.block


def _note(words: str) -> Html:
    return tag("p", words, class_="note")
