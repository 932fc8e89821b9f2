"""Sections of the report that say how a result came about: trust, memory, text, cost, what is next."""

from __future__ import annotations

import json

from tightfit.search.facts import SpaceFacts
from tightfit.search.figures import reliability_figure
from tightfit.search.maps import KV_CACHE, MemoryPart, total_part
from tightfit.search.page import Html, figure, join, section, table, tag
from tightfit.search.report_kv import memory_bar
from tightfit.search.summary import Summary
from tightfit.search.words import duration, model_trust, proposals, shortfalls
from tightfit.spaces import format_size

MIB = 2**20


def trust_section(summary: Summary) -> Html | None:
    """Say how far the loss model can be trusted."""
    pairs = model_trust(summary)
    if not pairs:
        return None
    words = tag("dl", *(join([tag("dt", topic), tag("dd", words)]) for topic, words in pairs), class_="words")
    drawing = None
    if summary.reliability:
        caption = "Plans that no fit has seen: on the dotted line, prediction and measurement agree."
        drawing = figure("reliability", reliability_figure(summary.reliability), caption, tools=False)
    return section("How far to trust the loss model", tag("div", words, drawing, class_="pair"))


def memory_section(summary: Summary) -> Html | None:
    """Show which sizes are possible and where the bytes of the plan are."""
    space, parts = summary.space, summary.memory
    if space is None or not parts:
        return None
    total = total_part(parts)
    plan = ["Plan, MiB", "Plan, bits"] if total.planned is not None else []
    header = ["Part", "Weights", "Smallest, MiB", *plan, "Largest, MiB"]
    rows = [_memory_cells(part) for part in (*parts, total)]
    classes = ["" for _ in parts] + ["total"]
    recounted = summary.result.recounted_bytes if summary.result else None
    full = " and from full caches" if summary.beside else ""
    notes = [f"Counted from the packed tensors{full}: {recounted:,} bytes."] if recounted is not None else []
    title, caption, bar = "Memory of the weights", "Weight bytes by part", None
    if summary.beside:
        title, caption = "Memory of weights and KV cache", "Bytes by part"
        caches = sum(part.planned or 0 for part in parts if part.name == KV_CACHE)
        if total.planned is not None:
            bar = memory_bar(total.planned, caches, space, summary.beside, summary.limit)
    return section(
        title,
        bar,
        _range(space, total.planned, summary.limit),
        table(caption, header, rows, classes),
        *(tag("p", note, class_="note") for note in [*notes, *space.notes]),
    )


def _memory_cells(part: MemoryPart) -> list[str]:
    """Return the cells of a row: name, weights, floor, plan and its bits, ceiling."""
    plan = []
    if part.planned is not None:
        plan = [f"{part.planned / MIB:.2f}", f"{part.bits:.3f}" if part.bits is not None else ""]
    weights = f"{part.weights:,}" if part.weights else ""
    return [part.name, weights, f"{part.floor / MIB:.2f}", *plan, f"{part.ceiling / MIB:.2f}"]


def _range(space: SpaceFacts, plan: int | None, limit: int | None) -> Html:
    """A bar of possible sizes, filled up to the plan, with the budget as a line; and the same in words."""
    top = max(space.ceiling, limit or 0)

    def share(size: int) -> str:
        return f"{100 * size / top:.2f}%"

    parts = [
        tag(
            "i",
            class_="possible",
            style=f"left: {share(space.floor)}; width: {share(space.ceiling - space.floor)}",
        )
    ]
    words = [f"smallest {format_size(space.floor)}"]
    if plan is not None:
        parts.append(tag("i", class_="fill", style=f"width: {share(plan)}"))
        words.append(f"plan {format_size(plan)}")
    if limit is not None:
        parts.append(tag("i", class_="limit", style=f"left: {share(limit)}"))
        words.append(f"budget {format_size(limit)}")
    words.append(f"largest {format_size(space.ceiling)}")
    size = f"{space.decisions} decisions, 10^{space.plans_log10:.1f} plans"
    bar = tag("div", *parts, class_="range", aria_hidden="true")
    return join([bar, tag("p", f"{' · '.join(words)} · {size}", class_="note")])


def text_section(summary: Summary) -> Html | None:
    """Show the text: tokens asked for and used."""
    text = summary.text
    if text is None or not text.splits:
        return None
    rows = [
        [name, f"{split['asked']:,}", f"{split['used']:,}", f"{split['documents']:,}"]
        for name, split in text.splits.items()
    ]
    removed = f"; {text.removed_share:.1%} was repeated and removed" if text.removed_share is not None else ""
    short = [
        tag("p", f"Fewer tokens than asked for in {line}.", class_="note") for line in shortfalls(summary)
    ]
    source = tag("p", f"Source: {text.source}{removed}. No document is in two splits.", class_="note")
    header = ["Split", "Tokens asked", "Tokens used", "Documents"]
    return section("Text", source, table("Tokens by split", header, rows), *short)


def cost_section(summary: Summary) -> Html | None:
    """Show what each stage took."""
    stages = list(dict.fromkeys([*summary.timing, *summary.forward_tokens]))
    if not stages:
        return None
    rows = [
        [
            stage,
            duration(summary.timing[stage]) if stage in summary.timing else "",
            f"{summary.forward_tokens[stage]:,}" if stage in summary.forward_tokens else "",
        ]
        for stage in stages
    ]
    total = ["total", duration(sum(summary.timing.values())), f"{sum(summary.forward_tokens.values()):,}"]
    classes = ["" for _ in rows] + ["total"]
    facts = []
    if summary.estimate_seconds is not None:
        facts.append(f"Estimated beforehand: {duration(summary.estimate_seconds)}")
    if summary.peak_memory is not None:
        facts.append(f"Peak memory: {format_size(summary.peak_memory)}")
    words = [text for text in (" · ".join(facts), proposals(summary)) if text]
    note = join([tag("p", text, class_="note") for text in words])
    header = ["Stage", "Time", "Tokens forward"]
    return section("Cost", table("Time and tokens by stage", header, [*rows, total], classes), note)


def next_section(summary: Summary) -> Html | None:
    """Show the commands to go on with."""
    commands = summary.result.next if summary.result else ()
    return section("Next", tag("pre", tag("code", "\n".join(commands)))) if commands else None


def footer(summary: Summary) -> Html:
    """Show what identifies the run, and its settings."""
    facts = []
    if summary.result:
        facts.append(f"plan {summary.result.final}")
    if summary.model and summary.model.digest:
        facts.append(f"model {summary.model.digest}")
    settings = None
    if summary.settings:
        text = json.dumps(summary.settings, indent=2, ensure_ascii=False)
        settings = tag("details", tag("summary", "Settings of the run"), tag("pre", tag("code", text)))
    return tag("footer", tag("p", " · ".join(facts)) if facts else None, settings)
