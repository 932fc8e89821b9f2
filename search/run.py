"""A run: one search, one folder, one store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.search.cost import estimate_cost
from tightfit.search.facts import SpaceFacts
from tightfit.search.inspection import Inspection, inspect_settings
from tightfit.search.machine import peak_memory
from tightfit.search.progress import Progress
from tightfit.search.settings import Settings
from tightfit.search.store import RUN_FILE, Store
from tightfit.search.summary import Summary, summarize
from tightfit.search.tables import feasible_range, front_table, predicted_table
from tightfit.search.words import comparison, duration, shortfalls, trust
from tightfit.spaces import InputError

# Settings that scores and measurements rest on: one run folder serves one value of each.
_IDENTITY = ("model", "seed", "threads", "device", "target", "space", "text")

REPORT_FILE = "report.html"

if TYPE_CHECKING:
    from tightfit.search.stages import Bench

Say = Callable[[str], None]


def run_search(
    settings: Settings, *, dry: bool = False, say: Say = print, progress: Progress | None = None
) -> Path:
    """Search for the best plan within the budget and write it, with its report, into the run's folder.

    A folder that holds an earlier run with the same settings is continued: nothing that was measured
    is measured again.

    Args:
        settings: what to search.
        dry: stop after the feasible range and the cost estimate; nothing is written.
        say: called with every piece of output, in order.
        progress: where progress lines go.

    Returns:
        The run's folder.

    Raises:
        InputError: model, text or space cannot be used, or the folder holds a run of other settings.
        InfeasibleError: the budget is below the floor of the space.
    """
    inspection = inspect_settings(settings)
    cost = estimate_cost(settings, inspection.space)
    say(_header(settings, inspection))
    say(
        f"cost: about {sum(cost.tokens.values()):,} tokens through the model, "
        f"roughly {duration(cost.seconds)} on this machine"
    )
    folder = Path(settings.runs) / settings.name
    if dry:
        return folder
    # Imported here, since it brings torch with it.
    from tightfit.search import stages

    with Store.open(folder / RUN_FILE) as store:
        _claim(store, settings)
        _describe(store, inspection)
        store.put("cost", cost.to_dict())
        progress = progress or Progress()
        bench = stages.prepare(settings, store, inspection.space, inspection.limit, folder, progress)
        for line in shortfalls(summarize(store)):
            say(f"text: {line}")
        _search(bench, store, say)
        store.put("timing", {name: round(seconds, 2) for name, seconds in progress.seconds.items()})
        store.put("peak_memory", peak_memory())
        _finish(store, folder, say)
    return folder


def _search(bench: Bench, store: Store, say: Say) -> None:
    from tightfit.search import stages

    sensed = stages.sense(bench)
    fitted = stages.fit(bench, sensed)
    model = fitted.fit.model
    task = stages.make_task(bench, sensed, model)
    stages.solve_task(bench, task, model)
    say("\n" + predicted_table(summarize(store)) + "\n")
    stages.certify(bench, sensed, fitted)
    candidates = stages.explore(bench, task, model)
    stages.validate(bench, candidates)


def _header(settings: Settings, inspection: Inspection) -> str:
    geometry = inspection.space.geometry
    lines = [
        f"{settings.model}: {geometry.family}, {geometry.layers} layers, {geometry.parameters:,} parameters",
        feasible_range(SpaceFacts.of(inspection.space), inspection.limit),
        *(f"space.weights.{key} {pattern!r}: {n} sites" for (key, pattern), n in inspection.matches.items()),
        *inspection.notes,
    ]
    return "\n".join(lines)


def _claim(store: Store, settings: Settings) -> None:
    """Take over a run folder, or refuse it where it holds a run of other settings."""
    held = store.get("settings")
    new = settings.to_dict()
    for key in _IDENTITY if held else ():
        if json.dumps(held.get(key)) != json.dumps(new.get(key)):
            raise InputError(
                f"{store.path.parent} holds a run with another {key} ({_brief(held.get(key))}, now "
                f"{_brief(new.get(key))}): give this run another name, or delete that folder."
            )
    store.put("settings", new)


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _describe(store: Store, inspection: Inspection) -> None:
    store.add_space(inspection.space)
    facts = SpaceFacts.of(inspection.space)
    store.put(
        "space",
        {
            "decisions": facts.decisions,
            "plans_log10": facts.plans_log10,
            "floor": facts.floor,
            "ceiling": facts.ceiling,
            "fixed": facts.fixed,
            "weights": facts.weights,
            "notes": list(inspection.notes),
            "patterns": {f"{key} {pattern}": n for (key, pattern), n in inspection.matches.items()},
            "config": dict(inspection.config),
        },
    )
    store.put("budget", {"limit": inspection.limit, "text": inspection.budget_text})


def _finish(store: Store, folder: Path, say: Say) -> None:
    from tightfit.search.report import write_report

    store.add_event("report", "finished")
    summary = summarize(store)
    say(render(summary))
    write_report(store, folder / REPORT_FILE)
    say(f"\nreport: {folder / REPORT_FILE}")


def render(summary: Summary) -> str:
    """Return the end of a run as text: front, certificates, comparison, verdict, what to do next."""
    parts = [front_table(summary)]
    parts += [f"{name}: {text}" for name, text in trust(summary)]
    parts += [text for text in (comparison(summary),) if text]
    if summary.result:
        parts += ["", summary.result.verdict, "", "next:", *(f"  {line}" for line in summary.result.next)]
    return "\n".join(parts)
