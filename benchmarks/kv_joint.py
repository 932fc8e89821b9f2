"""Weights and caches from one budget, against a budget for each.

The batch is chosen so that caches make up a share of the uncompressed bytes, and the budget is a share of all
of them. Four ways to spend it:

- *joint*: the exact solutions of the program's loss models, at most three of them measured.
- *staged*: nineteen ways to split the budget, 5 % to 95 % for weights, as far as each side can have that;
  weights and then caches, with what is left, are solved exactly from the same scores; all plans are measured.
- *proportional*: both are compressed by the same factor, each solved exactly.
- *uniform*: one format for all matrices and one for all caches, the twelve most promising that fit.

What is measured is measured on the selection text, the best of each method once more on the holdout text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
from kv_common import HEADER, MIB, Levels, facts, line, opened, race, settings_of

from tightfit.search.agents import History, Task, get_agent
from tightfit.search.loss_models import LossModel, link_words
from tightfit.search.settings import Settings
from tightfit.search.solvers import solve
from tightfit.search.stages import Bench, fit, make_task, sense
from tightfit.spaces import Geometry, Load, kv_bytes, read_geometry
from tightfit.workers.sources import read_config

SPLITS = np.arange(1, 20) / 20
JOINT, UNIFORM = 3, 12  # plans that are measured


def measure(arguments: argparse.Namespace) -> None:
    """Print one table per share of caches."""
    geometry = read_geometry(read_config(arguments.model))
    for share in arguments.shares:
        settings, plain = problem(arguments, geometry, share)
        start = time.perf_counter()
        with opened(settings) as bench:
            sensed = sense(bench)
            model = fit(bench, sensed).fit.model
            task = make_task(bench, sensed, model)
            measured, seconds = bench.archive.made + bench.archive.reused, time.perf_counter() - start
            print(
                f"\n{facts(bench)}\ncaches {plain[1] / sum(plain):.1%} of {sum(plain) / MIB:.2f} MiB "
                f"uncompressed, batch {settings.budget.batch}, budget {bench.limit / MIB:.3f} MiB "
                f"({arguments.budget:.0%}); {measured} measurements of sensing and fitting; "
                f"{link_words(model.to_dict())}; sensed and fitted in {seconds:.0f} s"
            )
            _table(bench, task, model, plain, arguments.budget)


def problem(
    arguments: argparse.Namespace, geometry: Geometry, share: float
) -> tuple[Settings, tuple[int, int]]:
    """Return the settings at a share of caches, and the uncompressed bytes of weights and of caches."""
    value_bytes = arguments.plain_bits / 8 if arguments.plain_bits else geometry.dtype_bytes
    weights = int(geometry.parameters * value_bytes)
    one = kv_bytes(geometry, Load(arguments.context))
    batch = max(1, round(share / (1 - share) * weights / one))
    plain = weights, kv_bytes(geometry, Load(arguments.context, batch))
    settings = settings_of(
        arguments,
        "kv-joint",
        {"total": f"{int(arguments.budget * sum(plain))}B", "batch": batch},
        {"bits": arguments.weight_bits, "groups": [arguments.weight_group], "zeros": ["float"]},
        {"bits": arguments.kv_bits},
    )
    return settings, plain


def _table(bench: Bench, task: Task, model: LossModel, plain: tuple[int, int], budget: float) -> None:
    splits = [_split(task, model, share * task.free_bytes) for share in SPLITS]
    # Norms are part of the weights' share, though nobody decides about them.
    proportional = _split(task, model, budget * plain[0] - bench.space.fixed_bytes)
    joint = [proposal.levels for proposal in get_agent("exact").propose(task, History(), JOINT)]
    own = race(bench, "joint", [bench.space.plan(levels) for levels in joint])
    others = [
        race(bench, "staged", [bench.space.plan(levels) for levels in splits]),
        race(bench, "proportional", [bench.space.plan(proportional)]),
        race(bench, "uniform × uniform", [bench.space.plan(levels) for levels in _uniform(task, model)]),
    ]
    print(HEADER)
    for candidate in (own, *others):
        print(line(bench, candidate, own), flush=True)
    best = bench.space.levels(others[0].plan)
    at = [f"{share:.0%}" for share, levels in zip(SPLITS, splits, strict=True) if levels == best]
    print(f"staged: best where weights get {', '.join(at)} of what decisions may take")


def _split(task: Task, model: LossModel, share: float) -> Levels:
    """Solve weights alone and caches alone, weights with a share of the bytes as far as that is possible."""
    count = len(task.space.matrix_decisions)
    costs, scores = task.costs, model.weights
    floors, ceilings = zip(*(_range(part) for part in (costs[:count], costs[count:])), strict=True)
    most = min(ceilings[0], task.free_bytes - floors[1])
    weights = int(np.clip(share, min(most, max(floors[0], task.free_bytes - ceilings[1])), most))
    first = solve(costs[:count], scores[:count], weights)
    second = solve(costs[count:], scores[count:], task.free_bytes - first.cost)
    return (*first.levels, *second.levels)


def _range(costs: Sequence[np.ndarray]) -> tuple[int, int]:
    return sum(int(row.min()) for row in costs), sum(int(row.max()) for row in costs)


def _uniform(task: Task, model: LossModel) -> list[Levels]:
    """Uniform plans that fit, those of least predicted loss."""
    found = [proposal.levels for proposal in get_agent("uniform").propose(task, History(), 10_000)]
    order = np.argsort(model.predict(np.array(found)), kind="stable")[:UNIFORM]
    return [found[i] for i in order]
