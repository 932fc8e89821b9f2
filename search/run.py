"""A run: one search, one folder, one store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.search import control
from tightfit.search.agents.optuna_agents import check_mode
from tightfit.search.cost import estimate_cost
from tightfit.search.facts import SpaceFacts
from tightfit.search.hardware import LEAST_PLANS, bounds_of
from tightfit.search.identity import (
    adopt,
    check_inputs,
    compare_settings,
    compare_space,
    is_finished,
    set_finished,
)
from tightfit.search.inspection import Inspection, inspect_settings
from tightfit.search.machine import peak_memory
from tightfit.search.memory_sides import memory_sides
from tightfit.search.progress import Progress
from tightfit.search.settings import Settings
from tightfit.search.speed_tables import latency_words, speed_table
from tightfit.search.store import RUN_FILE, Store
from tightfit.search.summary import Summary, summarize
from tightfit.search.tables import feasible_range, front_table, predicted_table
from tightfit.search.words import comparison, duration, proposals, shortfalls, trust
from tightfit.spaces import InfeasibleError, InputError, Space

REPORT_FILE = "report.html"

if TYPE_CHECKING:
    from tightfit.search.stages import Bench

Say = Callable[[str], None]


def run_search(
    settings: Settings, *, dry: bool = False, say: Say = print, progress: Progress | None = None
) -> Path:
    """Search for the best plan within the budget and write it, with its report, into the run's folder.

    A folder that holds an earlier run is continued: nothing that was measured is measured again, and a
    run that has come to its end just shows its result.

    Args:
        settings: what to search.
        dry: stop after the feasible range and the cost estimate; nothing is written.
        say: called with every piece of output, in order.
        progress: where progress lines go.

    Returns:
        The run's folder.

    Raises:
        InputError: model, text or space cannot be used, the folder holds a run of other settings, or
            another process is working on it.
        InfeasibleError: the budget is below the floor of the space; or the run has ended, and no plan keeps
            the bound on speed.
        StoppedError: somebody asked the run to stop; what it has measured is kept.
    """
    inspection = inspect_settings(settings)
    _check_lengths(settings, inspection.space)
    for agent in settings.search.agents:
        check_mode(agent, settings.search.mode)
    cost = estimate_cost(settings, inspection.space)
    say(_header(settings, inspection))
    tool = f" and {cost.tool_tokens:,} in llama.cpp" if cost.tool_tokens else ""
    say(
        f"cost: about {sum(cost.tokens.values()):,} tokens through the model{tool}, "
        f"roughly {duration(cost.seconds)} on this machine"
    )
    folder = Path(settings.runs) / settings.name
    if dry:
        return folder
    progress = progress or Progress()
    progress.checkpoint = lambda: control.check(folder, say)
    with control.holding(folder), Store.open(folder / RUN_FILE) as store:
        change = compare_settings(store, settings)
        if is_finished(store, settings):
            check_inputs(store, settings)
            say("this run is finished; its result:\n")
            say(render(summarize(store)))
            _check_speed(store)
            return folder
        moved = compare_space(store, inspection.space, inspection.prefix)
        for line in (*change.words, *([moved] if moved else [])):
            say(f"changed: {line}")

        def take_over() -> None:
            adopt(store, settings, change, inspection.space, inspection.limit, inspection.budget_text)
            _describe(store, inspection)

        if not store.get("identity"):  # nothing can be lost, and others see sooner what this is
            take_over()
        store.put("cost", cost.to_dict())
        store.add_event("prepare", "started")
        try:
            _work(settings, store, inspection, take_over, progress, say)
        except (control.StoppedError, KeyboardInterrupt):
            _leave(store, folder, say)
            raise
        _finish(store, settings, folder, say)
        _check_speed(store)
    return folder


def _check_speed(store: Store) -> None:
    """Raise an error where a run ended with a plan that misses a bound on speed; it is kept and labelled."""
    result = store.get("result")
    if result and result.get("too_slow"):
        raise InfeasibleError(
            "no plan that was run keeps the bound on speed: the one that misses it least is kept as the "
            "result and labelled; ask for less speed, or allow other formats."
        )


def _work(
    settings: Settings,
    store: Store,
    inspection: Inspection,
    take_over: Callable[[], None],
    progress: Progress,
    say: Say,
) -> None:
    """Go through all stages."""
    # Imported here, since it brings torch with it.
    from tightfit.search import stages

    folder = store.path.parent
    stages.sweep_files(folder)
    space, limit = inspection.space, inspection.limit
    bench = stages.prepare(settings, store, space, limit, folder, progress, take_over)
    for line in shortfalls(summarize(store)):
        say(f"text: {line}")
    try:
        with stages.whole_run_crew(bench):
            _search(bench, store, say)
    finally:
        bench.book()
    store.put("peak_memory", peak_memory())


def _search(bench: Bench, store: Store, say: Say) -> None:
    from tightfit.search import stages

    settings = bench.settings
    _begin(bench, "sense")
    sensed = stages.sense(bench)
    _begin(bench, "fit")
    fitted = stages.fit(bench, sensed)
    model = fitted.fit.model
    sides = stages.speed_sides(bench) + memory_sides(settings.budget.to_budget(), bench.space)
    task = stages.make_task(bench, sensed, model, sides)
    _begin(bench, "solve")
    stages.solve_task(bench, task, model)
    say("\n" + predicted_table(summarize(store)) + "\n")
    _begin(bench, "certify")
    for line in stages.certify(bench, sensed, fitted):
        say(line)
    _begin(bench, "explore")
    candidates = stages.explore(bench, task, model)
    _begin(bench, "validate")
    stages.validate(bench, candidates)


def _begin(bench: Bench, stage: str) -> None:
    bench.book()
    bench.store.add_event(stage, "started")


def _check_lengths(settings: Settings, space: Space) -> None:
    """Refuse what is longer than the model's context: it would fail, or lose sense without a word."""
    geometry = space.geometry
    asked = settings.validation
    bounds = bounds_of(settings)
    if bounds and space.size < LEAST_PLANS:
        raise InputError(
            f"budget.{bounds[0].name}: the space has only {space.size} plans, too few to make a table of "
            f"times from (at least {LEAST_PLANS}): offer more formats, or leave the bound out."
        )
    runs = asked.hardware or bounds
    if runs and asked.prompt + asked.generate > geometry.max_context:
        raise InputError(
            f"validate.prompt and validate.generate: {asked.prompt} + {asked.generate} tokens are more than "
            f"the longest context of {settings.model}, {geometry.max_context}."
        )


def _header(settings: Settings, inspection: Inspection) -> str:
    geometry = inspection.space.geometry
    lines = [
        f"{settings.model}: {geometry.family}, {geometry.layers} layers, {geometry.parameters:,} parameters",
        feasible_range(SpaceFacts.of(inspection.space), inspection.limit),
        *(f"space.weights.{key} {pattern!r}: {n} sites" for (key, pattern), n in inspection.matches.items()),
        *inspection.notes,
    ]
    return "\n".join(lines)


def _describe(store: Store, inspection: Inspection) -> None:
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
            "context": facts.context,
            "batch": facts.batch,
            "prefix": inspection.prefix,
        },
    )


def _leave(store: Store, folder: Path, say: Say) -> None:
    """Show how far the run has come; the best plan so far is in the store already."""
    from tightfit.search.report import write_report

    store.add_event("report", "stopped")
    summary = summarize(store)
    if summary.front:
        say("\n" + front_table(summary))
    write_report(store, folder / REPORT_FILE)


def _finish(store: Store, settings: Settings, folder: Path, say: Say) -> None:
    from tightfit.search.report import write_report

    store.add_event("report", "finished")
    summary = summarize(store)
    say(render(summary))
    write_report(store, folder / REPORT_FILE)
    if any(agent.startswith("optuna:") for agent in settings.search.agents):
        from tightfit.search.study import write_study

        say(f"\nstudy: {write_study(store, folder)}")
    set_finished(store, settings)
    say(f"\nreport: {folder / REPORT_FILE}")


def render(summary: Summary) -> str:
    """Return the end of a run as text: front, certificates, comparison, verdict, what to do next."""
    parts = [front_table(summary)]
    parts += [f"{name}: {text}" for name, text in trust(summary)]
    parts += [text for text in (proposals(summary), comparison(summary)) if text]
    if summary.reach and not summary.reach["kept"]:
        parts += ["", f"speed: {summary.reach['text']}"]
    if summary.speeds:
        parts += ["", speed_table(summary), *latency_words(summary)]
    if summary.result:
        parts += ["", summary.result.verdict, "", "next:", *(f"  {line}" for line in summary.result.next)]
    return "\n".join(parts)
