"""What running plans in their tool gave, in tables and sentences for terminal, report and app."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tightfit.search.hardware import SpeedRow
from tightfit.search.summary import Summary
from tightfit.search.tables import render_table
from tightfit.workers.llamacpp.speed import NoSpeed, Quantity, Speed

if TYPE_CHECKING:
    from tightfit.proxies.latency import Phase

HEADER = (
    "run in llama.cpp",
    "tokens/s",
    "÷ baseline",
    "predicted",
    "prompt tokens/s",
    "first token",
    "memory",
    "file",
)
"""Columns of :func:`speed_cells`."""

_MIB = 2**20
_WORDS: dict[str, str] = {"generate": "generated tokens", "prompt": "prompts"}


def speed_table(summary: Summary) -> str:
    """Return the plans that were run as a text table, with what was run below it."""
    rows = [list(speed_cells(row, summary)) for row in summary.speeds]
    return f"{render_table(list(HEADER), rows, right=set(range(1, len(HEADER))))}\n{setting(summary)}"


def speed_cells(row: SpeedRow, summary: Summary) -> tuple[str, ...]:
    """Return one plan that was run as cells: medians with half the width of their interval."""
    result = summary.result
    label = f"{row.label} (chosen)" if result and row.digest == result.chosen else row.label
    speed = row.speed
    if isinstance(speed, NoSpeed):
        return (label, speed.reason, *[""] * (len(HEADER) - 2))
    predicted = row.predicted.get("generate")
    return (
        label,
        _number(speed, "generation_rate"),
        _rate_ratio(row, "generate"),
        f"{1 / predicted:.3f}" if predicted else "",
        _number(speed, "prompt_rate"),
        f"{_number(speed, 'first_token', 1000.0)} ms",
        f"{speed.peak_bytes / _MIB:.1f} MiB",
        f"{speed.file_bytes / _MIB:.2f} MiB",
    )


def setting(summary: Summary) -> str:
    """Say what was run, where, and what the ratios are to."""
    speed = next((row.speed for row in summary.speeds if isinstance(row.speed, Speed)), None)
    if speed is None:
        return "none of these files could be run"
    first = next(row.label for row in summary.speeds if isinstance(row.speed, Speed))
    return (
        f"one thread of {speed.machine}, prompt of {speed.prompt} tokens, {speed.generate} generated; "
        f"medians of {len(speed.samples)} interleaved rounds ± half their interval; ratios to {first}"
    )


def latency_words(summary: Summary) -> list[str]:
    """Say how well the table of times predicts, and how often it was right about plans that were run."""
    lines = []
    for phase, data in summary.latency.items():
        lines.append(
            f"table of times, {_WORDS.get(phase, phase)}: from {data['plans']} plans, {data['error']:.1%} "
            "off for plans left out"
        )
    checked = [
        (row.predicted["generate"], row.measured["generate"])
        for row in summary.speeds[1:]
        if "generate" in row.predicted and "generate" in row.measured
    ]
    if checked:
        off = [abs(predicted / measured[0] - 1) for predicted, measured in checked]
        within = sum(error <= 0.1 for error in off)
        lines.append(
            f"predicted against measured: {within} of {len(off)} plans within 10 %, the furthest "
            f"{max(off):.1%} off"
        )
    return lines


def _number(speed: Speed, quantity: Quantity, scale: float = 1.0) -> str:
    """Write a median with half the width of its interval, to two digits of the latter."""
    found = speed.estimate(quantity)
    middle, spread = scale * found.median, scale * found.spread
    digits = 1 - math.floor(math.log10(spread)) if spread > 0 else 2 - math.floor(math.log10(middle))
    decimals = max(0, digits)
    return f"{middle:.{decimals}f} ± {spread:.{decimals}f}"


def _rate_ratio(row: SpeedRow, phase: Phase) -> str:
    """Speed over the baseline's, from times."""
    if phase not in row.measured:
        return ""
    middle, low, high = row.measured[phase]
    return f"{1 / middle:.3f} ± {(1 / low - 1 / high) / 2:.3f}"
