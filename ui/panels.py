"""What the page says of a run in words: its head, its verdict or how far it has come, why there is none."""

from __future__ import annotations

from tightfit.search.page import Html, join, tag
from tightfit.search.summary import Summary
from tightfit.search.tables import loss_text, split_text
from tightfit.search.words import duration
from tightfit.ui.runs import STAGES, Run, elapsed

MIB = 2**20

_EXAMPLE = """# search.yaml
model: smollm2-135m-offgrid
budget:
  weights: 76MiB"""


def nothing() -> Html:
    """Say how to start where there is no run to show."""
    return tag(
        "section",
        tag("h2", "No run yet"),
        tag("p", "Write down which model has to fit into how much memory, and start the search:"),
        tag("pre", tag("code", _EXAMPLE)),
        tag("pre", tag("code", "tightfit run search.yaml")),
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
    title = tag("div", tag("h1", "Runs"), class_="tf-title")
    return tag("div", tag("p", "Tightfit", class_="tf-kicker"), title, class_="tf-head")


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
        size = f"{best.bytes / MIB:.2f}{limit} MiB{split_text(best.bytes, best.cache_bytes)}"
        loss = loss_text(best.measured.kl, best.kl_se)
        return (
            f"Best so far: plan {best.short} ({best.label}) takes {size} and loses {loss} nats/token on "
            f"{best.measured.split}."
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
