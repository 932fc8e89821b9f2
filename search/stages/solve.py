"""Solve: the exact front of the loss model, and the plan of the budget with its proven gap."""

from __future__ import annotations

import numpy as np

from tightfit.proxies.additive import LinkAdditive
from tightfit.search.agents import Task
from tightfit.search.solvers import Side, solve, solve_front
from tightfit.search.stages.prepare import Bench
from tightfit.search.stages.sense import Sensed
from tightfit.search.stages.sensitivity import sensitivity_at

# Points of the front that are kept: enough for a smooth curve, few enough to list.
_POINTS = 200


def make_task(bench: Bench, sensed: Sensed, model: LinkAdditive, sides: tuple[Side, ...] = ()) -> Task:
    """Return what agents work on: the fitted loss table first, then what it was made from.

    ``sides`` are bounds on speed.
    """
    tables = {"fitted": list(model.weights), "calibrated": sensed.calibrated, "pre-screen": sensed.prescreen}
    settings = bench.settings
    mode, sensitivity = settings.search.mode, sensitivity_at(bench)
    return Task(bench.space, bench.limit, tables, settings.seed, mode, sensitivity, sides)


def solve_task(bench: Bench, task: Task, model: LinkAdditive) -> None:
    """Write the front and the solution of the budget into the store."""
    losses = task.losses["fitted"]
    with bench.progress.stage("solve", "solving for every budget"):
        front = solve_front(task.costs, losses)
        best = solve(task.costs, losses, task.free_bytes, sides=task.sides)
    kept = np.unique(np.linspace(0, len(front.costs) - 1, _POINTS).round().astype(int))
    rows = []
    for index in kept:
        levels = front.levels(int(index))
        weight_bytes = bench.space.bytes_of(levels)
        bench.store.add_plan(bench.space.plan(levels), weight_bytes, "front")
        rows.append(
            {
                "bytes": weight_bytes,
                "effective_bits": bench.space.effective_bits(weight_bytes),
                "loss": float(model.predict(np.array([levels]))[0]),
                "digest": bench.space.plan(levels).digest,
            }
        )
    bench.store.put("front", rows)
    bench.store.add_plan(bench.space.plan(best.levels), bench.space.bytes_of(best.levels), "exact")
    bench.store.put(
        "solution",
        {
            "digest": bench.space.plan(best.levels).digest,
            "loss_predicted": float(model.predict(np.array([best.levels]))[0]),
            "additive_loss": best.loss,
            "bound": best.bound,
            "gap": best.gap,
        },
    )
