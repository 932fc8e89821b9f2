"""What pages say in words and small tables: the head of a run, a plan, a matrix. Escaped by ``tag``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.search.page import Html, escaped, join, table, tag
from tightfit.search.palette import plain
from tightfit.search.resolve import Resolved
from tightfit.search.summary import Front, PlanRow, Summary
from tightfit.search.tables import loss_text, marks, nats_text, perplexity_text
from tightfit.search.words import duration
from tightfit.spaces import Decision, Plan, format_size
from tightfit.ui.runs import STAGES, Run, elapsed

MIB = 2**20

_EXAMPLE = """# search.yaml
model: smollm2-135m-offgrid
budget:
  weights: 76MiB"""


@dataclass(frozen=True)
class Shown:
    """The plan that a page shows.

    Attributes:
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


def nothing() -> Html:
    """Say how to start where there is no run to show."""
    return tag(
        "section",
        tag("h2", "No run yet"),
        tag("p", "Write down which model has to fit into how much memory, and start the search:"),
        tag("pre", tag("code", f"{_EXAMPLE}\n\n$ tightfit run search.yaml")),
        tag("p", "It appears here by itself as soon as it has begun.", class_="tf-note"),
        class_="tf-card tf-empty",
    )


def refused(why: str) -> Html:
    """Say why a run cannot be shown."""
    return tag(
        "section", tag("h2", "This run cannot be shown"), tag("p", why), class_="tf-card", role="alert"
    )


def bare_head() -> Html:
    """Show the head of a page without a run."""
    return tag("div", tag("p", "Tightfit", class_="tf-kicker"), tag("h1", "Runs"), class_="tf-title tf-bare")


def head(run: Run, note: str | None = None) -> Html:
    """Show what the run is about and how it is."""
    summary = run.summary
    model, facts = summary.model, [f"run {summary.name}"]
    if model and model.parameters:
        facts.append(f"{model.parameters:,} parameters")
    if model and model.layers:
        facts.append(f"{model.layers} layers")
    if summary.budget:
        facts.append(f"budget {summary.budget}")
    return tag(
        "div",
        tag("p", "Tightfit", class_="tf-kicker"),
        tag(
            "div",
            tag("h1", _name(summary)),
            tag("span", _state(run), class_=f"tf-state {run.state}", role="status"),
            class_="tf-title",
        ),
        tag("p", " · ".join(facts), class_="tf-lead"),
        tag("p", note, class_="tf-alert", role="alert") if note else None,
        class_="tf-head",
    )


def _name(summary: Summary) -> str:
    if summary.model:
        return summary.model.name
    return str((summary.settings or {}).get("model") or summary.name)


def _state(run: Run) -> str:
    if run.state == "finished":
        return "finished"
    return f"{run.state} · {run.summary.stage or 'prepare'}"


def verdict(run: Run) -> Html:
    """Show the one line to remember or, before there is one, the best so far and how far the run is."""
    result = run.summary.result
    if result:
        good = result.fits and result.agrees is not False
        words = tag("p", result.verdict)
        return tag("div", words, class_=f"tf-verdict {'good' if good else 'bad'}", role="status")
    return tag("div", tag("p", _so_far(run)), _steps(run), class_="tf-verdict", role="status")


def _so_far(run: Run) -> str:
    best = run.best
    if best:
        limit = f" of {run.summary.limit / MIB:.2f}" if run.summary.limit is not None else ""
        return (
            f"Best so far: plan {best.short} ({best.label}) takes {best.bytes / MIB:.2f}{limit} MiB "
            f"and loses {loss_text(best.measured.kl, best.kl_se)} nats/token on {best.measured.split}."
        )
    if run.summary.predicted:
        return (
            "The loss model is solved for every budget; no whole plan was measured on the search's text yet."
        )
    if run.scores:
        return "Every option is scored; the loss model is next."
    if run.measured:
        return f"Sensing: {run.measured} measurements so far."
    return "Nothing was measured yet."


def _steps(run: Run) -> Html:
    stage = run.summary.stage if run.summary.stage in STAGES else STAGES[0]
    now = STAGES.index(stage)
    items = [
        tag(
            "li",
            name,
            class_="done" if i < now else "now" if i == now else None,
            aria_current="step" if i == now else None,
        )
        for i, name in enumerate(STAGES)
    ]
    facts, since = [], elapsed(run)
    if run.share is not None:
        facts.append(f"about {run.share:.0%} of the estimated work")
    if run.measured:
        facts.append(f"{run.measured:,} measurements")
    if since is not None and run.state == "running":
        facts.append(f"{duration(since)} in this stage")
    bar = (
        tag("div", tag("i", style=f"width: {run.share:.1%}"), class_="tf-bar", aria_hidden="true")
        if run.share is not None
        else None
    )
    return join([tag("ol", *items, class_="tf-steps"), bar, tag("p", " · ".join(facts), class_="tf-note")])


def plan(run: Run, shown: Shown | None) -> Html:
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
    bits = summary.space.effective_bits(shown.bytes) if summary.space else None
    limit = shown.budget if shown.budget is not None else summary.limit
    tiles = [_tile("Weights", f"{shown.bytes / MIB:.2f}", "MiB", _room(shown.bytes, limit))]
    if bits is not None:
        tiles.append(_tile("Effective bits", f"{bits:.3f}", "", "stored per weight"))
    if row:
        se = f"± {nats_text(row.kl_se)} on " if row.kl_se is not None else "on "
        tiles.append(_tile("Loss, measured", nats_text(row.measured.kl), "", f"{se}{row.measured.split}"))
    else:
        tiles.append(_tile("Loss, measured", "–", "", "not measured"))
    loss = nats_text(shown.loss) if shown.loss is not None else "–"
    tiles.append(_tile("Loss, predicted", loss, "", "nats/token"))
    return tag("dl", *tiles, class_="tf-tiles")


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
    apart = [
        f"{site.name}: {choices.get(site.decision, '')}"
        for site in run.sites
        if site.layer is None and site.tied_to is None
    ]
    return tag(
        "details",
        tag("summary", f"Options of plan {shown.plan.short} by layer"),
        tag("p", "; ".join(apart), class_="tf-note") if apart else None,
        table("Options of the plan by layer and module", ["Layer", *modules], rows),
        class_="tf-card",
    )


def matrix(run: Run, decision: Decision | None, shown: Shown | None) -> Html:
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
        bits = f"{8 * size / decision.weights:.2f}"
        rows.append([join(name), bits, f"{size / MIB:.3f}", _milli(score.value, score.se) if score else ""])
    classes = ["chosen" if option.name == taken else "" for option in decision.options]
    shared = [site for site in decision.sites if site != decision.name]
    return tag(
        "section",
        tag("h2", decision.name),
        tag(
            "p",
            f"{decision.weights:,} weights" + (f" · {' + '.join(shared)}" if shared else ""),
            class_="tf-note",
        ),
        table(f"Options of {decision.name}", header, rows, classes),
        tag("p", f"Loss alone in 10⁻³ nats/token: {run.scores_are}.", class_="tf-note")
        if run.scores_are
        else None,
        class_="tf-card",
    )


def _milli(value: float, se: float | None) -> str:
    return f"{plain(1e3 * value)} ± {plain(1e3 * se)}" if se is not None else plain(1e3 * value)
