"""Solve: the exact front of the loss model, and the plan of the budget with its proven gap."""

from __future__ import annotations

import numpy as np

from tightfit.proxies.pools import PooledModel
from tightfit.search.agents import Task
from tightfit.search.loss_models import LossModel, additive_table, front_of, solve_model
from tightfit.search.solvers import Side
from tightfit.search.stages.prepare import Bench
from tightfit.search.stages.sense import Sensed
from tightfit.search.stages.sensitivity import sensitivity_at

# Points of the front that are kept: enough for a smooth curve, few enough to list.
_POINTS = 200


def make_task(bench: Bench, sensed: Sensed, model: LossModel, sides: tuple[Side, ...] = ()) -> Task:
    """Return what agents work on: the fitted loss table first, then what it was made from.

    Where matrices and caches have links of their own, the table is the fitted model's near its optimum.

    ``sides`` are bounds beside the bytes of a plan.
    """
    settings, space = bench.settings, bench.space
    levels: tuple[int, ...] = ()
    if isinstance(model, PooledModel):
        costs = [np.array(decision.costs, dtype=np.int64) for decision in space.decisions]
        free = min(bench.limit, space.ceiling) - space.fixed_bytes
        levels = solve_model(costs, model, free, sides).levels
    fitted, couplings = additive_table(model, levels)
    tables = {"fitted": fitted, "calibrated": sensed.calibrated, "pre-screen": sensed.prescreen}
    mode, sensitivity = settings.search.mode, sensitivity_at(bench, fitted)
    return Task(space, bench.limit, tables, settings.seed, mode, sensitivity, sides, couplings)


def solve_task(bench: Bench, task: Task, model: LossModel) -> None:
    """Write the front and the solution of the budget into the store."""
    with bench.progress.stage("solve", "solving for every budget"):
        front = front_of(task.costs, model)
        best = solve_model(task.costs, model, task.free_bytes, task.sides, front)
    kept = np.unique(np.linspace(0, len(front.costs) - 1, _POINTS).round().astype(int))
    rows = []
    for index in kept:
        levels = front.levels(int(index))
        plan = bench.space.plan(levels)
        size, cache = bench.space.charge(plan)
        bench.store.add_plan(plan, size, "front", cache)
        rows.append(
            {
                "bytes": size,
                "cache_bytes": cache,
                "effective_bits": bench.space.effective_bits(size - cache),
                "loss": float(model.predict(np.array([levels]))[0]),
                "digest": plan.digest,
            }
        )
    bench.store.put("front", rows)
    plan = bench.space.plan(best.levels)
    size, cache = bench.space.charge(plan)
    bench.store.add_plan(plan, size, "exact", cache)
    bench.store.put(
        "solution",
        {
            "digest": plan.digest,
            "loss_predicted": float(model.predict(np.array([best.levels]))[0]),
            "additive_loss": best.loss,
            "bound": best.bound,
            "gap": best.gap,
        },
    )
