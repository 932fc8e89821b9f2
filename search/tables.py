"""Plain-text tables for the terminal, at most 110 columns wide."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tightfit.search.facts import PredictedPoint, SpaceFacts
from tightfit.search.palette import plain
from tightfit.spaces import format_size

if TYPE_CHECKING:
    # An inspection writes tables too, and has no use for what reading a store brings with it.
    from tightfit.search.summary import Front, PlanRow, Summary

MIB = 2**20
WIDTH = 110
"""Columns that a table may take."""

_DETAILS = re.compile(r"-(?:g\d+|r\d+|s\d+|row|sym|int|float|block|token)(?=[-,\s]|$)")
"""What a format's name says beyond bits and the share of tokens kept."""
_KEPT = {1.0: "", 0.75: " ¾", 0.5: " ½", 0.25: " ¼", 0.125: " ⅛"}
_KEEP = re.compile(r"-keep([\d.]+)")

MOST_DOMINATED = 12
"""Dominated plans of a front that a table still shows; baselines and the chosen plan always are."""


def front_table(summary: Summary, front: Front | None = None, *, whole: bool = False) -> str:
    """Write measured plans as a table, ascending in bytes, with what they were measured on above it.

    Args:
        summary: the run.
        front: one of its fronts; by default the most trustworthy one.
        whole: show every plan, the worst of the dominated ones too.
    """
    front = front or summary.front
    if front is None:
        return "No plan was measured yet."
    rows, hidden = (list(front.rows), 0) if whole else shown_rows(front)
    space = summary.space
    caches = space is not None and space.context is not None
    header = ["", "plan", "what", "MiB", "bits", "pred.", "KL ± se", "ppl", "top-1", ""]
    if caches:
        header = ["", "plan", "what", "weights", "KV", "MiB", "bits", "pred.", "KL ± se", ""]
    cells = [_kv_cells(row) if caches else _cells(row) for row in rows]
    right = {i for i, name in enumerate(header) if i > 2 and name}
    table = render_table(header, cells, right)
    excess = max(len(line) for line in table.splitlines()) - WIDTH
    if excess > 0:  # the origin in words is the one column that can give way
        shortened = brief_labels([row[2] for row in cells]) if caches else [row[2] for row in cells]
        room = max(8, max(len(row[2]) for row in cells) - excess)
        shown = [_shorten(text, room) for text in shortened]
        cells = [[*row[:2], text, *row[3:]] for row, text in zip(cells, shown, strict=True)]
        table = render_table(header, cells, right)
    above = (
        f"{front.split}: {front.tokens:,} tokens of {front.documents} documents, "
        f"reference perplexity {front.reference_perplexity:.2f}"
    )
    below = "bits: stored per governed weight; KL in nats/token; ·: another plan is no larger and no worse"
    more = [f"{hidden} more such plans are not shown"] if hidden else []
    sizes = [f"MiB: of weights, of KV cache at {place_text(space)}, and of both"] if space and caches else []
    return "\n".join([above, table, *sizes, "; ".join([below, *more])])


def front_tables(summary: Summary) -> str:
    """Write every measured plan, one table per front, the most trustworthy first."""
    tables = [front_table(summary, front, whole=True) for front in summary.fronts]
    return "\n\n".join(tables) or front_table(summary)


def predicted_table(summary: Summary, points: int = 12) -> str:
    """Write the predicted front as a table: evenly spaced sizes, and the plan that the budget allows.

    Args:
        summary: the run.
        points: how many rows, beside the budget's own.
    """
    front, solution = summary.predicted, summary.solution
    if not front:
        return "The loss model is not solved yet."
    chosen = None
    if summary.limit is not None:
        chosen = max((p for p in front if p.bytes <= summary.limit), key=lambda p: p.bytes, default=None)
    caches = any(point.cache_bytes for point in front)
    step = max(1, (len(front) - 1) / max(points - 1, 1))
    picked = {round(i * step) for i in range(points) if round(i * step) < len(front)}
    rows = [point for i, point in enumerate(front) if i in picked or point is chosen]
    cells = [_predicted_cells(point, point is chosen, caches) for point in rows]
    sizes = ["weights", "KV", "MiB"] if caches else ["MiB"]
    header = ["plan", *sizes, "bits", "predicted loss", ""]
    lines = [
        "front predicted by the loss model (loss in nats/token)",
        render_table(header, cells, right=set(range(1, len(header) - 1))),
    ]
    if solution and solution.gap is not None and solution.loss_predicted is not None:
        lines.append(
            f"plan for the budget: predicted loss {nats_text(solution.loss_predicted)}, proven within "
            f"{100 * solution.gap:.2g}% of the loss model's optimum"
        )
    return "\n".join(lines)


def _predicted_cells(point: PredictedPoint, fits: bool, caches: bool) -> list[str]:
    bits = f"{point.effective_bits:.3f}" if point.effective_bits is not None else ""
    return [
        point.digest[:12],
        *(size_cells(point.bytes, point.cache_bytes) if caches else [f"{point.bytes / MIB:.2f}"]),
        bits,
        nats_text(point.loss),
        "largest within the budget" if fits else "",
    ]


def front_rows(summary: Summary) -> list[dict[str, Any]]:
    """Return every measured plan as plain data, front by front, the most trustworthy first."""
    return [_plain_row(front, row) for front in summary.fronts for row in front.rows]


def front_csv(summary: Summary) -> str:
    """Return :func:`front_rows` as CSV with a header, or nothing where there are none."""
    rows = front_rows(summary)
    if not rows:
        return ""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().rstrip("\n")


def _plain_row(front: Front, row: PlanRow) -> dict[str, Any]:
    measured = row.measured
    return {
        "split": front.split,
        "tokens": front.tokens,
        "documents": front.documents,
        "plan": row.digest,
        "label": row.label,
        "kind": row.kind,
        "weight_bytes": row.weight_bytes,
        "kv_bytes": row.cache_bytes,
        "bytes": row.bytes,
        "effective_bits": row.effective_bits,
        "predicted_loss": row.predicted,
        "kl": measured.kl,
        "kl_se": row.kl_se,
        "kl_p99": measured.kl_p99,
        "delta_nll": measured.delta_nll,
        "perplexity": measured.perplexity,
        "reference_perplexity": measured.reference_perplexity,
        "top1_agreement": measured.agreement,
        "chosen": row.chosen,
        "offered": row.offered,
        "best_baseline": row.best_baseline,
        "dominated": row.dominated,
    }


def shown_rows(front: Front) -> tuple[list[PlanRow], int]:
    """Return the rows worth showing, and how many are left out: the worst of the dominated plans."""
    plain = [row for row in front.rows if row.dominated and row.kind == "searched" and not row.chosen]
    dropped = {row.digest for row in sorted(plain, key=lambda row: row.measured.kl)[MOST_DOMINATED:]}
    return [row for row in front.rows if row.digest not in dropped], len(dropped)


def marks(row: PlanRow) -> list[str]:
    """Say in words what stands out about a plan."""
    words = {
        "chosen": row.chosen,
        "offered": row.offered and not row.chosen,
        "best baseline": row.best_baseline,
    }
    return [word for word, holds in words.items() if holds]


def perplexity_text(perplexity: float) -> str:
    """Write a perplexity with two decimals, or three digits where it is beyond use."""
    return f"{perplexity:.2f}" if perplexity < 1000 else f"{perplexity:.3g}"


def nats_text(value: float) -> str:
    """Write nats with four decimals, or with three digits where four decimals hold fewer or far more."""
    return f"{value:.4f}" if 0.01 <= abs(value) < 100 else plain(value)


def loss_text(loss: float, se: float | None) -> str:
    """Write a loss in nats per token with its standard error, if that is known, to as many decimals."""
    text = nats_text(loss)
    if se is None:
        return f"{text} ± ?"
    decimals = len(text.partition(".")[2])
    return f"{text} ± {nats_text(se) if 'e' in text else f'{se:.{decimals}f}'}"


def split_text(size: int, cache: int) -> str:
    """Say how a plan's bytes are split: `` = 52.10 MiB of weights + 27.90 MiB of KV cache``, if they are."""
    if not cache:
        return ""
    return f" = {format_size(size - cache)} of weights + {format_size(cache)} of KV cache"


def brief_labels(labels: Sequence[str]) -> list[str]:
    """Leave the details of formats out of labels, unless labels would be the same then."""
    brief = [_KEEP.sub(lambda found: kept_text(float(found[1])), _DETAILS.sub("", x)) for x in labels]
    return brief if len(set(brief)) == len(set(labels)) else list(labels)


def place_text(space: SpaceFacts) -> str:
    """Say where KV caches are counted: ``8,192 tokens × 4``."""
    return f"{space.context or 0:,} tokens × {space.batch}"


def size_cells(size: int, cache: int) -> list[str]:
    """Write bytes as three cells: MiB of weights, of KV cache, and of both."""
    return [f"{part / MIB:.2f}" for part in (size - cache, cache, size)]


def kept_text(share: float) -> str:
    """Write the share of tokens that a cache keeps behind its bits: `` ½``, `` .3``, nothing for all."""
    return _KEPT.get(share, f" {share:.2g}".replace(" 0.", " ."))


def feasible_range(space: SpaceFacts, limit: int | None = None) -> str:
    """Say which sizes are possible at all and, given a budget, where it lies among them."""
    bits = space.context is None  # with caches in a plan's bytes, these say nothing about its weights alone
    what = "weights" if bits else f"weights and KV cache at {place_text(space)}"
    low, high = space.effective_bits(space.floor), space.effective_bits(space.ceiling)
    span = f" ({low:.3f} to {high:.3f} effective bits)" if bits else ""
    text = (
        f"feasible range: {format_size(space.floor)} to {format_size(space.ceiling)} of {what}{span}, "
        f"{space.decisions} decisions, 10^{space.plans_log10:.1f} plans"
    )
    if limit is None:
        return text
    if limit < space.floor:
        place = f"below the floor by {format_size(space.floor - limit)}"
    elif limit >= space.ceiling:
        place = "not below the ceiling: the largest plan fits"
    else:
        share = (limit - space.floor) / max(space.ceiling - space.floor, 1)
        place = f"{share:.0%} of the way"
        place += f" ({space.effective_bits(limit):.3f} effective bits)" if bits else ""
    return f"{text}\nbudget: {format_size(limit)} of {what}, {place}"


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]) -> str:
    """Align cells under a header and a rule; columns whose position is in ``right`` are right-aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        pairs = enumerate(zip(cells, widths, strict=True))
        return "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in pairs).rstrip()

    rule = "  ".join("─" * width for width in widths).rstrip()
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def _cells(row: PlanRow) -> list[str]:
    measured = row.measured
    return [
        "▶" if row.chosen else "·" if row.dominated else "",
        row.short,
        row.label,
        f"{row.bytes / MIB:.2f}",
        f"{row.effective_bits:.3f}" if row.effective_bits is not None else "",
        nats_text(row.predicted) if row.predicted is not None else "",
        loss_text(measured.kl, row.kl_se),
        perplexity_text(measured.perplexity),
        f"{measured.agreement:.1%}",
        ", ".join(marks(row)),
    ]


def _kv_cells(row: PlanRow) -> list[str]:
    """Cells with the split of the bytes, in place of what other files and tables still hold."""
    cells = _cells(row)
    return [*cells[:3], *size_cells(row.bytes, row.cache_bytes), *cells[4:7], cells[9]]


def _shorten(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"
