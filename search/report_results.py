"""Sections of the report that show the result: verdict, key numbers, front, comparison, maps."""

from __future__ import annotations

from tightfit.search.figures import front_figure, plan_figure, sensitivity_figure
from tightfit.search.maps import SiteMap
from tightfit.search.page import Html, escaped, figure, join, section, table, tag
from tightfit.search.report_speed import speed_facts
from tightfit.search.speed_points import asked_bounds
from tightfit.search.summary import Front, PlanRow, Summary
from tightfit.search.tables import (
    loss_text,
    marks,
    nats_text,
    perplexity_text,
    place_text,
    shown_rows,
    size_cells,
)
from tightfit.search.words import comparison
from tightfit.spaces import format_size
from tightfit.workers.measurement import Paired

MIB = 2**20


def header(summary: Summary, name: str) -> Html:
    """Show what the report is about."""
    model, facts = summary.model, []
    if model and model.parameters:
        facts.append(f"{model.parameters:,} parameters")
    if model and model.layers:
        facts.append(f"{model.layers} layers")
    if model and model.family:
        facts.append(f"{model.family} family")
    if summary.budget:
        facts.append(f"budget {summary.budget}")
    facts.append(f"run {summary.name}")
    return tag(
        "header",
        tag("p", "Tightfit report", class_="kicker"),
        tag("h1", name),
        tag("p", " · ".join(facts), class_="lead"),
    )


def verdict(summary: Summary) -> Html:
    """Show the one line to remember."""
    result = summary.result
    if result is None:
        stage = f" It was last heard of in the stage “{summary.stage}”." if summary.stage else ""
        words = "This run has no result yet: what follows is as far as it has come." + stage
        return tag("div", tag("p", words), class_="verdict", role="status")
    good = result.fits and result.agrees is not False
    notes = []
    if result.too_slow:
        notes.append("The plan misses the bound on speed, and no plan that was run keeps it.")
    if result.fits is False and (not result.too_slow or _too_large(summary)):
        notes.append("The plan does not keep the budget.")
    if result.offered and result.offered != result.chosen:
        notes.append(_why_offered(summary))
    return tag(
        "div",
        tag("p", result.verdict),
        tag("p", " ".join(notes), class_="note") if notes else None,
        class_=f"verdict {'good' if good else 'bad'}",
        role="status",
    )


def _why_offered(summary: Summary) -> str:
    """Say why a baseline is offered in place of the plan that the search chose."""
    final, chosen = summary.final, summary.chosen
    loses_more = final and chosen and final.measured.kl > chosen.measured.kl
    if loses_more and asked_bounds(summary):
        return (
            "A baseline is nearer to the bound on speed than the plan that the search chose; it is offered."
        )
    return "On the holdout text a baseline loses less than the plan that the search chose; it is offered."


def _too_large(summary: Summary) -> bool:
    counted = summary.result.recounted_bytes if summary.result else None
    return counted is not None and summary.limit is not None and counted > summary.limit


def tiles(summary: Summary) -> Html | None:
    """Show the key numbers of the plan to use."""
    row = summary.final
    if row is None:
        return None
    measured, baseline = row.measured, summary.baseline
    sizes = _sizes(summary, row)
    shown = [
        *sizes,
        _tile("Loss, KL", nats_text(measured.kl), "", f"{_plus_minus(row)}nats/token on {measured.split}"),
        _tile(
            "Perplexity",
            perplexity_text(measured.perplexity),
            "",
            f"uncompressed {perplexity_text(measured.reference_perplexity)}",
        ),
        _tile("Top-1 agreement", f"{measured.agreement:.1%}", "", "same next token as uncompressed"),
    ]
    if row.effective_bits is not None:
        bits = _tile("Effective bits", f"{row.effective_bits:.3f}", "", "stored per governed weight")
        shown.insert(len(sizes), bits)
    if baseline and baseline.digest != row.digest and baseline.measured.kl > 0:
        ratio = measured.kl / baseline.measured.kl
        shown.append(_tile("KL ÷ best baseline", f"{ratio:.3f}", "×", baseline.label))
    shown += [_tile(*facts) for facts in speed_facts(summary, row.digest)]
    return tag("dl", *shown, class_="tiles")


def _sizes(summary: Summary, row: PlanRow) -> list[Html]:
    space, total = summary.space, f"{row.bytes / MIB:.2f}"
    if space is None or space.context is None:
        return [_tile("Weights", total, "MiB", _of_budget(summary, row))]
    weights = f"at {place_text(space)}; weights {row.weight_bytes / MIB:.2f} MiB"
    return [
        _tile("Weights and KV cache", total, "MiB", _of_budget(summary, row)),
        _tile("KV cache", f"{row.cache_bytes / MIB:.2f}", "MiB", weights),
    ]


def _tile(name: str, value: str, unit: str, beside: str) -> Html:
    number = tag("dd", f"{value} ", tag("small", unit) if unit else None, class_="value")
    return tag("div", tag("dt", name), number, tag("dd", beside, class_="beside"), class_="tile")


def _plus_minus(row: PlanRow) -> str:
    return f"± {nats_text(row.kl_se)} " if row.kl_se is not None else ""


def _of_budget(summary: Summary, row: PlanRow) -> str:
    if summary.limit is None:
        return ""
    left = summary.limit - row.bytes
    return f"of {summary.limit / MIB:.2f} MiB; {format_size(abs(left))} {'left' if left >= 0 else 'too many'}"


def front_section(summary: Summary) -> Html | None:
    """Show loss against size, as a figure and as tables."""
    front = summary.front
    if front is None and not summary.predicted:
        return None
    rows = front.rows if front else ()
    caption = "What the loss model promises at each size; no plan was measured yet."
    if front:
        caption = (
            f"Measured on {front.split}: {front.tokens:,} tokens of {front.documents} documents. Bars are "
            "one standard error; hollow marks are dominated; the line is what the loss model promises."
        )
    drawing = figure("front", front_figure(rows, summary.predicted, summary.limit), caption)
    others = [_other_front(other, summary) for other in summary.fronts[1:]]
    return section("Size against loss", drawing, _front_table(front, summary) if front else None, *others)


def _other_front(front: Front, summary: Summary) -> Html:
    words = f"Measured on {front.split}: {front.tokens:,} tokens, {len(front.rows)} plans"
    return tag("details", tag("summary", words), _front_table(front, summary))


def _front_table(front: Front, summary: Summary) -> Html:
    rows, hidden = shown_rows(front)
    classes = ["chosen" if row.chosen else "dominated" if row.dominated else "" for row in rows]
    caches = summary.beside is not None
    sizes = ["Weights, MiB", "KV, MiB", "Both, MiB"] if caches else ["MiB"]
    header = ["What", *sizes, "Bits", "Predicted", "KL ± se", "Minus chosen", "Perplexity", "Top-1", "Plan"]
    caption = f"Plans measured on {front.split}, ascending in size"
    note = tag("p", f"{hidden} more dominated plans are not shown.", class_="note") if hidden else None
    listed = table(caption, header, [_front_cells(row, caches) for row in rows], classes)
    return join([tag("div", listed, class_="tight") if caches else listed, note])


def _front_cells(row: PlanRow, caches: bool) -> list[str]:
    measured, versus = row.measured, row.versus_chosen
    return [
        join([escaped(row.label), *(tag("span", mark, class_="mark") for mark in marks(row))]),
        *(size_cells(row.bytes, row.cache_bytes) if caches else [f"{row.bytes / MIB:.2f}"]),
        f"{row.effective_bits:.3f}" if row.effective_bits is not None else "",
        nats_text(row.predicted) if row.predicted is not None else "",
        loss_text(measured.kl, row.kl_se),
        _difference(versus) if versus and row.kl_se is not None else "",
        perplexity_text(measured.perplexity),
        f"{measured.agreement:.1%}",
        tag("code", row.short),
    ]


def _difference(paired: Paired) -> str:
    sign = "−" if paired.difference < 0 else "+"
    return sign + loss_text(abs(paired.difference), paired.se)


def comparison_section(summary: Summary) -> Html | None:
    """Show the paired comparison with the best baseline."""
    sentence = comparison(summary)
    return section("Against the best baseline", tag("p", sentence)) if sentence else None


def maps_section(summary: Summary) -> Html | None:
    """Show where the model is sensitive beside where the plan spends its bits."""
    sensitivity, plan = summary.sensitivity, summary.layout
    parts = []
    if sensitivity:
        caption = f"Brighter loses more. Shown is the {sensitivity.what}."
        drawing = figure("sensitivity", sensitivity_figure(sensitivity), caption, tools=False)
        parts.append(section("Where the model is sensitive", drawing))
    if plan:
        caption = "Brighter gets more bits. Point at a cell for its full format." + cache_key(plan)
        drawing = figure("plan", plan_figure(plan), caption, tools=False)
        parts.append(section("The plan", drawing, _plan_table(plan)))
    return tag("div", *parts, class_="pair") if parts else None


def cache_key(plan: SiteMap) -> str:
    """Say how to read the cells of KV caches, where a plan has some."""
    if not any(cell.cache for cell in plan.all()):
        return ""
    return " KV: bits of keys / of values, and the share of tokens kept if not all are."


def _plan_table(plan: SiteMap) -> Html:
    rows = [
        [str(layer), *(cell.option if cell else "" for cell in cells)]
        for layer, cells in zip(plan.layers, plan.cells, strict=True)
    ]
    if plan.caches:
        rows = [[*row, cell.option if cell else ""] for row, cell in zip(rows, plan.caches, strict=True)]
    apart = "; ".join(f"{cell.site}: {cell.option}" for cell in plan.apart)
    inner = table(
        "Options of the plan by layer and module",
        ["Layer", *plan.modules, *(["kv"] if plan.caches else [])],
        rows,
    )
    return tag("details", tag("summary", "As a table"), tag("p", apart, class_="note"), inner)
