"""What the pages say of one plan and of one matrix: facts and small tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightfit.search.kv_words import cache_topics
from tightfit.search.page import Html, escaped, join, table, tag
from tightfit.search.palette import plain
from tightfit.search.report_kv import memory_bar, spending_parts
from tightfit.search.report_speed import speed_facts
from tightfit.search.resolve import Resolved
from tightfit.search.spending import spend
from tightfit.search.summary import Front, PlanRow, Summary
from tightfit.search.tables import loss_text, marks, nats_text, perplexity_text, place_text
from tightfit.spaces import Decision, GgmlOption, Plan, format_size
from tightfit.ui.runs import Run

MIB = 2**20


@dataclass(frozen=True)
class Shown:
    """The plan that a page shows.

    Attributes:
        bytes: of its weights, and of its KV caches where it decides about them; those are ``cache``.
        label: where it came from, in words.
        loss: predicted loss in nats per token, where something predicts it.
        resolved: how it was solved, if it is the answer to a budget.
        budget: that budget in bytes.
    """

    plan: Plan
    bytes: int
    label: str
    loss: float | None = None
    resolved: Resolved | None = None
    budget: int | None = None
    cache: int = 0


def plan_panel(run: Run, shown: Shown | None) -> Html:
    """Show the facts of a plan."""
    if shown is None:
        words = "Once a plan was measured, a click on its point or its row shows it here."
        return tag("section", tag("h2", "Plan"), tag("p", words, class_="tf-note"), class_="tf-card")
    measured = [(front, row) for front in run.summary.fronts if (row := front.find(shown.plan.digest))]
    row = measured[0][1] if measured else None
    chips = [tag("span", word, class_="tf-chip") for word in (marks(row) if row else [])]
    return tag(
        "section",
        tag("h2", "Plan ", tag("code", shown.plan.short), *chips),
        tag("p", _origin(shown), class_="tf-note"),
        _tiles(run.summary, shown, row),
        _memory(run.summary, shown),
        _splits(measured) if measured else None,
        class_="tf-card",
        aria_label="The plan shown",
    )


def _origin(shown: Shown) -> str:
    if shown.resolved is None or shown.budget is None:
        return f"{shown.label[0].upper()}{shown.label[1:]}."
    gap = shown.resolved.solution.gap
    proof = "the least possible" if gap <= 0 else f"within {100 * gap:.2g}% of the least possible"
    return (
        f"Solved for {format_size(shown.budget)} from the stored scores: its additive loss is proven {proof}."
    )


def _tiles(summary: Summary, shown: Shown, row: PlanRow | None) -> Html:
    bits = summary.space.effective_bits(shown.bytes - shown.cache) if summary.space else None
    what = "Weights + KV cache" if summary.beside else "Weights"
    tiles = [_tile(what, f"{shown.bytes / MIB:.2f}", "MiB", _room(shown.bytes, _limit(summary, shown)))]
    if bits is not None:
        tiles.append(_tile("Effective bits", f"{bits:.3f}", "", "stored per weight"))
    if row:
        se = f"± {nats_text(row.kl_se)} on " if row.kl_se is not None else "on "
        tiles.append(_tile("Loss, measured", nats_text(row.measured.kl), "", f"{se}{row.measured.split}"))
    else:
        tiles.append(_tile("Loss, measured", "–", "", "not measured"))
    loss = nats_text(shown.loss) if shown.loss is not None else "–"
    tiles.append(_tile("Loss, predicted", loss, "", "nats/token"))
    tiles += [_tile(*facts) for facts in speed_facts(summary, shown.plan.digest)]
    return tag("dl", *tiles, class_="tf-tiles")


def _limit(summary: Summary, shown: Shown) -> int | None:
    return shown.budget if shown.budget is not None else summary.limit


def _memory(summary: Summary, shown: Shown) -> Html | None:
    """Where the memory of the plan goes when it runs, where it decides about KV caches."""
    if summary.space is None or summary.beside is None:
        return None
    return memory_bar(shown.bytes, shown.cache, summary.space, summary.beside, _limit(summary, shown))


def _room(size: int, limit: int | None) -> str:
    if limit is None:
        return ""
    left = limit - size
    return f"{format_size(abs(left))} {'below' if left >= 0 else 'above'} {limit / MIB:.2f} MiB"


def _tile(name: str, value: str, unit: str, beside: str) -> Html:
    number = tag("dd", f"{value} ", tag("small", unit) if unit else None, class_="value")
    return tag("div", tag("dt", name), number, tag("dd", beside, class_="beside"))


def _splits(measured: Sequence[tuple[Front, PlanRow]]) -> Html:
    header = ["Text", "KL ± se", "Minus chosen", "Perplexity", "Top-1"]
    rows = [
        [
            front.split,
            loss_text(row.measured.kl, row.kl_se),
            _difference(row),
            perplexity_text(row.measured.perplexity),
            f"{row.measured.agreement:.1%}",
        ]
        for front, row in measured
    ]
    if all(not row[2] for row in rows):
        header, rows = [*header[:2], *header[3:]], [[*row[:2], *row[3:]] for row in rows]
    return table("Losses of this plan by text", header, rows)


def _difference(row: PlanRow) -> str:
    versus = row.versus_chosen
    if versus is None or row.kl_se is None:
        return ""
    return ("−" if versus.difference < 0 else "+") + loss_text(abs(versus.difference), versus.se)


def options_by_layer(run: Run, shown: Shown | None) -> Html:
    """List a plan's options, one row per layer."""
    if shown is None:
        return Html("")
    choices = dict(shown.plan.choices)
    layers = sorted({site.layer for site in run.sites if site.layer is not None})
    modules = list(dict.fromkeys(site.module for site in run.sites if site.layer is not None))
    placed = {(site.layer, site.module): choices.get(site.decision, "") for site in run.sites}
    rows = [[str(layer), *(placed.get((layer, module), "") for module in modules)] for layer in layers]
    caches = {site: choices[d.name] for d in run.decisions if d.is_kv for site in d.sites}
    if caches:
        modules = [*modules, "kv"]
        rows = [[*row, caches.get(f"layers.{layer}.kv", "")] for row, layer in zip(rows, layers, strict=True)]
    apart = [
        f"{site.name}: {choices.get(site.decision, '')}"
        for site in run.sites
        if site.layer is None and site.tied_to is None
    ]
    return tag(
        "details",
        tag("summary", f"Options of plan {shown.plan.short} by layer"),
        tag("p", "; ".join(apart), class_="tf-note") if apart else None,
        tag("p", shares, class_="tf-note") if (shares := _shares(run, choices)) else None,
        table("Options of the plan by layer and module", ["Layer", *modules], rows),
        class_="tf-card",
    )


def _shares(run: Run, choices: Mapping[str, str]) -> str:
    """Say how much of the weights each type of llama.cpp holds; nothing for plans for other targets."""
    weights: Counter[GgmlOption] = Counter()
    for decision in run.decisions:
        option = decision.options[decision.index(choices[decision.name])]
        if isinstance(option, GgmlOption):
            weights[option] += decision.weights
    total = sum(weights.values())
    ordered = sorted(weights, key=lambda option: (option.block_bytes / option.block, option.name))
    shares = [f"{option.name} {weights[option] / total:.0%}" for option in ordered]
    return f"Share of the weights: {', '.join(shares)}." if shares else ""


def matrix_panel(run: Run, decision: Decision | None, shown: Shown | None) -> Html:
    """Show what every option of a decision costs and loses alone."""
    if decision is None:
        words = "Once options are scored, a click on a cell shows them here."
        return tag("section", tag("h2", "Matrix"), tag("p", words, class_="tf-note"), class_="tf-card")
    taken = dict(shown.plan.choices).get(decision.name) if shown else None
    header = ["Option", "Bits", "MiB", "Loss, 10⁻³"]
    rows = []
    for option, size in zip(decision.options, decision.costs, strict=True):
        score = run.scores.get((decision.name, option.name))
        name = [escaped(option.name)]
        if option.name == taken:
            name.append(tag("span", "plan", class_="tf-chip"))
        bits = f"{_bits(run, decision, size):.2f}"
        rows.append([join(name), bits, f"{size / MIB:.3f}", _milli(score.value, score.se) if score else ""])
    classes = ["chosen" if option.name == taken else "" for option in decision.options]
    listed = table(f"Options of {decision.name}", header, rows, classes)
    return tag(
        "section",
        tag("h2", decision.name),
        tag("p", _about(run, decision), class_="tf-note"),
        tag("div", listed, class_="tf-names") if decision.is_kv else listed,
        tag("p", f"Loss alone in 10⁻³ nats/token: {run.scores_are}.", class_="tf-note")
        if run.scores_are
        else None,
        class_="tf-card",
    )


def _bits(run: Run, decision: Decision, size: int) -> float:
    """Stored bits per weight or, of a cache, per value of the whole context."""
    beside = run.summary.beside
    if decision.is_kv and beside:
        return 16 * size / beside.plain_bytes(decision.sites)
    return 8 * size / decision.weights


def _about(run: Run, decision: Decision) -> str:
    """Say what a decision is about."""
    if decision.is_kv:
        layers = f"of {len(decision.sites)} layers" if len(decision.sites) > 1 else "of this layer"
        place = f" at {place_text(run.summary.space)}" if run.summary.space else ""
        return f"KV cache {layers}{place} · bits per value of the whole context, where 16 are plain floats"
    shared = [site for site in decision.sites if site != decision.name]
    return f"{decision.weights:,} weights" + (f" · {' + '.join(shared)}" if shared else "")


def spending_panel(run: Run, shown: Shown | None) -> Html:
    """Show which part of a plan spends what, beside the best uniform plan; nothing without KV caches."""
    summary, link = run.summary, run.summary.link
    if shown is None or summary.space is None or summary.beside is None:
        return Html("")
    fixed = summary.space.fixed
    spent = spend(run.decisions, fixed, link, shown.plan, summary.fronts, summary.limit, run.plans)
    title = tag("h2", "Which part spends what in plan ", tag("code", shown.plan.short))
    topics = cache_topics(summary) if summary.final and summary.final.digest == shown.plan.digest else []
    forgets = [tag("p", tag("b", f"{topic}: "), words) for topic, words in topics]
    return tag("section", title, *spending_parts(spent, summary), *forgets, class_="tf-card")


def _milli(value: float, se: float | None) -> str:
    return f"{plain(1e3 * value)} ± {plain(1e3 * se)}" if se is not None else plain(1e3 * value)
