"""Speed: run plans in the tool that they are for, and make tables of times from it.

Every plan is written as the file that would be shipped, run, and deleted again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tightfit.exporters import Shipment, Source, get_exporter
from tightfit.proxies.latency import LatencyTable, Phase
from tightfit.proxies.latency_design import design_plans
from tightfit.proxies.latency_fit import fit_latency, paired_samples
from tightfit.search.agents import Proposal
from tightfit.search.agents.uniform import formats
from tightfit.search.cost import FEWEST_PLANS, PLANS_PER_FORMAT, runs_files
from tightfit.search.hardware import LEAST_PLANS, TIMES, bounds_of, speed_of, work_of
from tightfit.search.solvers import Side
from tightfit.search.speed import loosened, reach, sides_of
from tightfit.search.stages.prepare import Bench
from tightfit.spaces import Plan
from tightfit.workers.llamacpp.bench import bench_files, describe_host
from tightfit.workers.llamacpp.library import LlamaError
from tightfit.workers.llamacpp.speed import NoSpeed, Speed
from tightfit.workers.llamacpp.station import measure_speeds

_FOLDER = "hardware"


def speed_sides(bench: Bench) -> tuple[Side, ...]:
    """Return the bounds on speed as agents keep them, after timing what they need; none without bounds.

    Bounds are kept with as much to spare as predictions are usually off, where that is possible.
    Where no plan is predicted to keep them, they are loosened to what the nearest plan reaches, and a
    note says so: the search then goes on among the least-violating plans.
    """
    budget = bench.settings.budget.to_budget()
    if not bounds_of(bench.settings):
        return ()
    tables = _tables(bench)
    sides = sides_of(budget, bench.space, tables)
    # Predictions are off by about so much; a plan that only just keeps a bound would often miss it.
    margin = max(table.error for table in tables.values())
    careful = sides_of(budget, bench.space, tables, margin)
    smaller = [np.array(decision.costs, dtype=np.float64) for decision in bench.space.decisions]
    reached = reach(bench.space, bench.limit, smaller, sides)
    bench.store.put("speed_reach", {"kept": reached.kept, "text": reached.text})
    bench.progress.note(reached.text)
    if not reached.kept:
        return loosened(sides, reached.nearest.levels)
    return careful if reach(bench.space, bench.limit, smaller, careful).kept else sides


def run_finalists(bench: Bench, proposals: Sequence[Proposal]) -> dict[str, Speed | NoSpeed]:
    """Run finalists and their baselines where the settings ask for it; write what they take into the store.

    Returns:
        By the plan's digest; empty where the settings ask for nothing.
    """
    if not runs_files(bench.settings):
        bench.store.forget((), ("hardware",))  # of the run under other settings
        return {}
    # The uniform baseline first: all others are compared with it.
    ordered = sorted(proposals, key=lambda p: ("uniform", "mix", "searched").index(p.kind))
    found = _run(bench, [proposal.plan for proposal in ordered], "hardware", "running finalists in llama.cpp")
    timed = {digest: speed for digest, speed in found.items() if isinstance(speed, Speed)}
    held = bench.store.get_fit("latency_design")
    if held is None and len(timed) >= LEAST_PLANS:
        for phase, table in _fit(bench, [p.plan for p in ordered if p.plan.digest in timed], timed).items():
            bench.store.add_fit(f"latency_{phase}", table.to_dict())
    return found


def excesses(bench: Bench, found: Mapping[str, Speed | NoSpeed]) -> dict[str, float]:
    """Return by how much plans clearly miss the bounds on speed, relative; 0 where they do not."""
    bounds = bounds_of(bench.settings)
    return {
        digest: max([0.0, *(b.excess(speed) for b in bounds)]) if isinstance(speed, Speed) else math.inf
        for digest, speed in found.items()
    }


def misses(bench: Bench, speed: Speed | NoSpeed | None) -> bool:
    """Whether a plan that was run misses a bound on speed."""
    bounds = bounds_of(bench.settings)
    return bool(bounds) and isinstance(speed, Speed) and any(bound.missed(speed) for bound in bounds)


def sweep_files(folder: Path) -> None:
    """Delete the files that a killed run has left in its folder."""
    for left in (folder / _FOLDER).glob("*"):
        left.unlink()


def _tables(bench: Bench) -> dict[Phase, LatencyTable]:
    """Time designed plans and fit a table of times to each phase."""
    count = max(FEWEST_PLANS, PLANS_PER_FORMAT * len(formats(bench.space)))
    levels = design_plans(bench.space, count, bench.settings.seed)
    plans = [bench.space.plan(each) for each in levels]
    found = _run(bench, plans, "latency_design", "timing formats in llama.cpp")
    timed = {digest: speed for digest, speed in found.items() if isinstance(speed, Speed)}
    if len(timed) < LEAST_PLANS:
        reasons = [speed.reason for speed in found.values() if isinstance(speed, NoSpeed)]
        raise LlamaError(
            f"only {len(timed)} of {len(plans)} plans could be timed in llama.cpp, too few for a table of "
            f"times: {reasons[0]}."
        )
    tables = _fit(bench, [plan for plan in plans if plan.digest in timed], timed)
    for phase, table in tables.items():
        bench.store.add_fit(f"latency_{phase}", table.to_dict())
    return tables


def _fit(bench: Bench, plans: Sequence[Plan], speeds: dict[str, Speed]) -> dict[Phase, LatencyTable]:
    tables: dict[Phase, LatencyTable] = {}
    options = [bench.space.site_options(plan) for plan in plans]
    for phase in TIMES:
        seconds = np.array([TIMES[phase](speeds[plan.digest]) for plan in plans])
        samples = paired_samples(options, seconds)
        tokens = bench.settings.validation.prompt if phase == "prompt" else 1
        baseline = float(np.median(seconds[0]))
        tables[phase] = fit_latency(bench.space.geometry, samples, baseline, phase, tokens)
    return tables


def _run(bench: Bench, plans: Sequence[Plan], key: str, what: str) -> dict[str, Speed | NoSpeed]:
    """Run plans unless the store has the same bench already, of the same machine and without failures."""
    address = bench.settings.workers.address
    where = asdict(describe_host()) if address is None else {"address": address}
    work = {**work_of(bench.settings), **where}
    held: dict[str, Any] = bench.store.get_fit(key) or {}
    wanted = [plan.digest for plan in plans]
    known = [row["digest"] for row in held.get("runs", []) if "reason" not in row]
    if held.get("work") != work or known != wanted:
        found = _measure(bench, plans, what)
        rows = [{"digest": d, **asdict(s)} for d, s in zip(wanted, found, strict=True)]
        held = {"work": work, "runs": rows}
        bench.store.add_fit(key, held)
    return {row["digest"]: speed_of(row) for row in held["runs"]}


def _measure(bench: Bench, plans: Sequence[Plan], what: str) -> list[Speed | NoSpeed]:
    folder = bench.store.path.parent / _FOLDER
    folder.mkdir(exist_ok=True)
    asked = bench.settings.validation
    files: list[Path] = []
    try:
        with bench.progress.stage("speed", "writing files for llama.cpp") as tick:
            for done, plan in enumerate(plans, 1):
                files.append(_write(bench, plan, folder / f"{plan.digest[:16]}.gguf"))
                tick(done, len(plans))
        with bench.progress.stage("speed", what) as tick:
            address = bench.settings.workers.address
            if address is None:
                return bench_files(files, asked.prompt, asked.generate, asked.rounds, tick=tick)
            return measure_speeds(files, asked.prompt, asked.generate, asked.rounds, address, tick=tick)
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _write(bench: Bench, plan: Plan, file: Path) -> Path:
    model = bench.store.get("model")
    source = Source(bench.recipe.folder, bench.evaluator.packed, bench.evaluator.importance)
    named = {key: model[key] for key in ("name", "digest", "family")}
    return get_exporter("llama.cpp").export(Shipment(bench.space, plan, named, source), file)
