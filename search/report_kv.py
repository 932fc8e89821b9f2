"""Parts of the report about KV caches: where memory goes, which part spends what, what caches forget."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.search.facts import SpaceFacts
from tightfit.search.kv_words import cache_topics
from tightfit.search.loss_models import link_words
from tightfit.search.maps import KV_CACHE
from tightfit.search.memory_use import MemoryUse
from tightfit.search.page import Html, join, section, table, tag
from tightfit.search.palette import plain
from tightfit.search.spending import Spending, Spent, total_spending
from tightfit.search.summary import Summary
from tightfit.search.tables import place_text
from tightfit.spaces import format_size

MIB = 2**20
_MILLI = 1e-3


def memory_bar(size: int, cache: int, space: SpaceFacts, beside: MemoryUse, limit: int | None = None) -> Html:
    """Show where a plan's memory goes when it runs: a bar, its parts in words, and how they are counted.

    Args:
        size: bytes of the plan.
        cache: what of them are KV caches.
        space: of the run.
        beside: what stands beside the plan's bytes.
        limit: most bytes that the budget allows, which does not count the overhead.
    """
    weights, place = size - cache, place_text(space)
    parts = [("weights", weights), ("cache", cache), ("overhead", beside.overhead)]
    names = {"weights": "weights", "cache": KV_CACHE, "overhead": "overhead"}
    behind = {"weights": "", "cache": f" at {place}", "overhead": ", not in the budget"}
    top = max(size + beside.overhead, limit or 0)
    drawn = [tag("i", class_=name, style=f"width: {100 * part / top:.2f}%") for name, part in parts]
    if limit is not None:
        drawn.append(tag("b", style=f"left: {100 * limit / top:.2f}%"))
    words = [
        tag("span", tag("i", class_=name), f"{names[name]} {format_size(part)}{behind[name]}")
        for name, part in parts
    ]
    if limit is not None:
        words.append(tag("span", tag("b"), f"budget {format_size(limit)}"))
    peak = (
        f"Once the prompts have been read, before anything is evicted or quantized, the caches hold all keys "
        f"and values in {beside.dtype}: a peak of {format_size(beside.prefill)}, in place of "
        f"{format_size(cache)}. As plain 16-bit floats they would stay at {format_size(sum(beside.plain))}."
    )
    return tag(
        "div",
        tag("div", *drawn, class_="bar", aria_hidden="true"),
        tag("p", *words, class_="legend"),
        tag("p", peak, class_="note"),
        tag(
            "details",
            tag("summary", "How the overhead is counted"),
            tag("p", f"For target {beside.target}, {beside.formula}.", class_="note"),
        ),
        class_="memory",
        role="group",
        aria_label="Memory of the plan when it runs",
    )


def spending_section(summary: Summary) -> Html | None:
    """Show what the plan to use spends on what, beside the best uniform plan."""
    spent = summary.spent
    if spent is None:
        return None
    return section("Which part spends what", *spending_parts(spent, summary))


def spending_parts(spent: Spent, summary: Summary) -> Sequence[Html]:
    """Return bytes and predicted loss by part: as bars, as a table, and what the loss is.

    Args:
        spent: by a plan and perhaps the best uniform one.
        summary: of the run.
    """
    names = ["the plan", *([spent.rival.label] if spent.rival else [])]
    short = ["Plan", *(["Uniform"] if spent.rival else [])]
    scored = any(part.terms is not None for part in spent.parts)
    header = ["Part"]
    for name in short:
        header += [f"{name}, MiB", f"{name}, loss"] if scored else [f"{name}, MiB"]
    total = total_spending(spent.parts)
    rows = [_spending_cells(part, len(names), scored) for part in (*spent.parts, total)]
    classes = ["" for _ in spent.parts] + ["total"]
    notes = []
    if spent.rival:
        notes.append(f"Uniform: {spent.rival.label}, the best uniform plan that was measured.")
    if scored and summary.link:
        linked = link_words(summary.link["model"])
        notes.append(
            "Loss: what each part adds inside the loss model, in 10⁻³ nats/token; the sum goes through "
            f"{linked}."
        )
    bars = [_bars(spent, i, name) for i, name in enumerate(names)]
    return (
        join([tag("div", *bars, class_="memory")]),
        table("Bytes and predicted loss by part", header, rows, classes),
        tag("p", " ".join(notes), class_="note") if notes else Html(""),
    )


def _spending_cells(part: Spending, plans: int, scored: bool) -> list[str]:
    cells = [part.name]
    for i in range(plans):
        cells.append(f"{part.bytes[i] / MIB:.2f}" if part.bytes is not None else "")
        if scored:
            cells.append(plain(part.terms[i] / _MILLI) if part.terms is not None else "")
    return cells


def _bars(spent: Spent, plan: int, name: str) -> Html:
    """Two bars of one plan: its bytes and its predicted loss, each by matrices, embedding and caches."""
    bars = [("Bytes", {k: float(v) for k, v in _grouped(spent, plan, loss=False).items()})]
    if any(part.terms is not None for part in spent.parts):
        bars.append(("Loss", _grouped(spent, plan, loss=True)))
    drawn = []
    for what, sizes in bars:
        total = sum(sizes.values()) or 1.0
        inner = [
            tag("i", class_=group, style=f"width: {100 * size / total:.2f}%") for group, size in sizes.items()
        ]
        words = [
            tag("span", tag("i", class_=group), f"{_GROUPS[group]} {size / total:.0%}")
            for group, size in sizes.items()
        ]
        drawn += [
            tag("p", tag("span", f"{what} of {name}"), *words, class_="legend"),
            tag("div", *inner, class_="bar thin", aria_hidden="true"),
        ]
    return join(drawn)


_GROUPS = {"weights": "matrices", "embedding": "embedding, head, norms", "cache": KV_CACHE}


def _grouped(spent: Spent, plan: int, *, loss: bool) -> dict[str, float]:
    """Sum bytes or losses of one plan by group; losses below zero count as none."""
    sums = dict.fromkeys(_GROUPS, 0.0)
    for part in spent.parts:
        values = part.terms if loss else part.bytes
        if values is not None and part.name.startswith(("attn.", "mlp.")):
            sums["weights"] += max(0.0, values[plan])
        elif values is not None and part.name == KV_CACHE:
            sums["cache"] += max(0.0, values[plan])
        elif values is not None and part.bytes is not None:
            sums["embedding"] += max(0.0, values[plan])
    return sums


def cache_section(summary: Summary) -> Html | None:
    """Say what compressed caches forget: after more context, and of what was planted far back."""
    pairs = cache_topics(summary)
    if not pairs:
        return None
    items = [join([tag("dt", topic), tag("dd", words)]) for topic, words in pairs]
    return section("What the caches forget", tag("dl", *items, class_="words"))
