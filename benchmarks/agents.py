"""What agents need to reach a loss: evaluations, and tokens with all sensing charged.

    .venv/bin/python benchmarks/agents.py --seeds 10
    .venv/bin/python benchmarks/agents.py --model smollm2-135m-offgrid --text wiki.txt --bits 3.75 --seeds 2

The first line uses a tiny trained model whose space has 2,187 plans: all are measured, so that the loss to
reach is a share above the true optimum of each budget. The second uses a real model; there the losses to
reach are shares above the best plan that any method found for that seed.

Five ways to search, each up to the same number of evaluations of whole plans on the selection text:
``exact`` goes through the k best plans of the fitted loss model, ``exact+evolution`` and
``exact+relinearize`` begin with some of these and go on from what was measured, ``nsga2`` and ``random``
know nothing but sizes. Random draws plans of the largest entropy in the last hundredth below the budget.
Methods that use the loss model are charged the tokens of pre-screen, marginals and fit plans, and
relinearize those of its backward passes; a backward pass counts as much as a forward one.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tightfit.proxies.prescreen import LABELS
from tightfit.proxies.sampling import sample_band, tilted
from tightfit.search.agents import History, Proposal, Task, Trial, get_agent
from tightfit.search.inspection import inspect_settings
from tightfit.search.progress import Progress
from tightfit.search.settings import Settings
from tightfit.search.stages import Bench, fit, make_task, prepare, sense
from tightfit.search.store import RUN_FILE, Store
from tightfit.spaces import Space
from tightfit.workers.lab import TINY, train
from tightfit.workers.measurement import Failure

METHODS = ("exact", "exact+evolution", "exact+relinearize", "nsga2", "random")
_STARTS = 4  # exact plans that the combined methods begin with
_BAND = 0.01


@dataclass(frozen=True)
class Step:
    """One evaluation of a search: the tokens spent up to it, and the best loss found by then."""

    tokens: int
    best: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="a real model instead of the enumerated tiny one")
    parser.add_argument("--text", default="python-docs")
    parser.add_argument("--bits", type=float, default=3.75, help="decoder bits of the real model's budget")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--evaluations", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument(
        "--shares", type=float, nargs="*", default=[0.3, 0.6], help="budgets of the tiny model"
    )
    parser.add_argument("--runs", default="runs")
    arguments = parser.parse_args()
    print(
        f"{'budget':<14} {'method':<18} {'within':>7} {'reached':>8} {'evaluations':>12} {'tokens':>12}",
        flush=True,
    )
    for name, limit in _budgets(arguments):
        curves: dict[str, list[tuple[list[Step], float]]] = {method: [] for method in arguments.methods}
        for seed in range(arguments.seeds):
            found = dict(_search(arguments, limit, seed))
            best = min(steps[-1].best for steps in found.values())
            target = _optimum(arguments, limit) if arguments.model is None else best
            for method, steps in found.items():
                curves[method].append((steps, target))
            if arguments.model:
                _print_finals(seed, found)
        _print_table(name, curves)


def _search(arguments: argparse.Namespace, limit: int, seed: int) -> Iterator[tuple[str, list[Step]]]:
    """Yield the course of every method. They share what is measured, but each is charged for its own."""
    with _opened(arguments, limit) as bench:
        own = replace(bench, settings=bench.settings.model_copy(update={"seed": seed}), limit=limit)
        sensed = sense(own)
        informed = make_task(own, sensed, fit(own, sensed).fit.model)
        settings = own.settings.sense
        # What sensing costs, whether or not an earlier run of this benchmark has left it on disk.
        sensing = _scored(own, settings.prescreen_tokens) * (1 + LABELS)
        sensing += settings.marginals * _scored(own, settings.marginal_tokens)
        sensing += settings.fit_plans * _scored(own, settings.fit_tokens)
        for method in arguments.methods:
            yield method, _run(arguments, own, informed, method, sensing)


def _scored(bench: Bench, tokens: int) -> int:
    return sum(window.scored for window in bench.archive.windows("sensing", tokens))


def _run(
    arguments: argparse.Namespace, bench: Bench, informed: Task, method: str, sensing: int
) -> list[Step]:
    task = informed if method.startswith("exact") else _ignorant(informed)
    spent = sensing if method.startswith("exact") else 0
    per_plan = sum(window.scored for window in bench.archive.windows("selection"))
    passes: set[tuple[int, ...]] = set()
    task = replace(task, sensitivity=_counted(informed, passes))
    name, steps, best = _agent_of(method), list[Step](), float("inf")
    history = History()
    while len(steps) < arguments.evaluations:
        proposals = _batch(arguments, task, method, history)
        if not proposals:
            break
        outcomes = bench.archive.measure_all([(p.plan, method) for p in proposals], "selection")
        trials = []
        for proposal, outcome in zip(proposals, outcomes, strict=True):
            measured = None if isinstance(outcome, Failure) else outcome
            trials.append(Trial(name, history.rounds(name), proposal, measured))
            best = min(best, trials[-1].loss if trials[-1].loss is not None else best)
            spent += per_plan
            steps.append(Step(spent + len(passes) * _pass_tokens(bench), best))
        history = history.with_trials(trials)
    return steps[: arguments.evaluations]


def _batch(arguments: argparse.Namespace, task: Task, method: str, history: History) -> Sequence[Proposal]:
    """What a method measures next, given what it has measured."""
    begins = not history.trials
    if method == "random":
        return _random(task, arguments.evaluations) if begins else ()
    if method == "exact" or (begins and method.startswith("exact")):
        count = arguments.evaluations if method == "exact" else _STARTS
        return get_agent("exact").propose(task, history, count) if begins else ()
    return get_agent(_agent_of(method)).propose(task, history, arguments.batch)


def _agent_of(method: str) -> str:
    return "optuna:nsga2" if method == "nsga2" else method.rpartition("+")[2]


def _random(task: Task, count: int) -> list[Proposal]:
    free = task.free_bytes
    low = free - _BAND * task.limit
    rng = np.random.default_rng([task.seed, 91])
    rows = sample_band(task.costs, tilted(task.costs, (low + free) / 2), low, free, count, rng)
    return [task.proposal(rng_row, "random") for rng_row in rng.permutation(rows).tolist()]


def _ignorant(task: Task) -> Task:
    """The same problem for a search that knows no loss: a byte is as good as any other."""
    total = float(sum(row[-1] for row in task.costs))
    sizes = [1.0 - row / total for row in task.costs]
    return replace(task, losses={"bytes": sizes})


def _counted(task: Task, passes: set[tuple[int, ...]]) -> Any:
    def score(levels: tuple[int, ...]) -> Any:
        assert task.sensitivity is not None
        passes.add(tuple(levels))
        return task.sensitivity(levels)

    return score


def _pass_tokens(bench: Bench) -> int:
    from tightfit.proxies.relinearization import cost_tokens
    from tightfit.search.stages.sensitivity import windows_of

    options = [len(decision.options) for decision in bench.space.decisions]
    return cost_tokens(sum(len(window.tokens) for window in windows_of(bench)), options)


def _print_table(name: str, curves: dict[str, list[tuple[list[Step], float]]]) -> None:
    for method, courses in curves.items():
        for share in (0.10, 0.05, 0.02, 0.01, 0.0):
            hits = [_first(steps, target * (1 + share)) for steps, target in courses]
            reached = [hit for hit in hits if hit is not None]
            # A search that never got there counts as more than all of its evaluations.
            typical = len(reached) > len(hits) / 2
            count = f"{median(hit[0] for hit in reached):g}" if reached else "-"
            tokens = f"{median(hit[1] for hit in reached):,.0f}" if reached else "-"
            note = "" if typical or not reached else " *"
            print(
                f"{name:<14} {method:<18} {share:>7.0%} {len(reached):>4}/{len(hits):<3} {count:>12} "
                f"{tokens:>12}{note}",
                flush=True,
            )


def _print_finals(seed: int, found: dict[str, list[Step]]) -> None:
    for method, steps in found.items():
        last = steps[-1]
        print(f"  seed {seed} {method:<18} {len(steps):>3} evaluations, best {last.best:.4f}", flush=True)


def _first(steps: Sequence[Step], loss: float) -> tuple[int, int] | None:
    for number, step in enumerate(steps, 1):
        if step.best <= loss * (1 + 1e-12):
            return number, step.tokens
    return None


# The problems


def _budgets(arguments: argparse.Namespace) -> Iterator[tuple[str, int]]:
    space = _space(arguments)
    if arguments.model is None:
        for share in arguments.shares:
            yield f"{share:.0%} of range", int(space.floor + share * (space.ceiling - space.floor))
        return
    outside = [d for d in space.decisions if d.name in ("embed", "head")]
    decoder = space.weights - sum(d.weights for d in outside)
    fixed = space.fixed_bytes + sum(d.costs[0] for d in outside)
    yield f"{arguments.bits:g} bits", fixed + int(arguments.bits * decoder / 8)


@contextmanager
def _opened(arguments: argparse.Namespace, limit: int) -> Iterator[Bench]:
    """A bench over a store of its own; what is measured stays in the folder."""
    settings = _settings(arguments, limit)
    folder = Path(settings.runs) / settings.name
    with Store.open(folder / RUN_FILE) as store:
        space = inspect_settings(settings).space
        store.set_space(space)
        yield prepare(settings, store, space, limit, folder, Progress())


_LOSSES: dict[tuple[int, ...], tuple[float, int]] = {}


def _optimum(arguments: argparse.Namespace, limit: int) -> float:
    """Least loss of any plan within the limit, every plan measured once and for all."""
    if not _LOSSES:
        with _opened(arguments, limit) as bench:
            space = bench.space
            every = list(itertools.product(*(range(len(d.options)) for d in space.decisions)))
            plans = [(space.plan(levels), "enumerated") for levels in every]
            with bench.progress.stage("explore", "measuring every plan") as tick:
                outcomes = bench.archive.measure_all(plans, "selection", tick=tick)
            for levels, outcome in zip(every, outcomes, strict=True):
                assert not isinstance(outcome, Failure)
                _LOSSES[levels] = outcome.kl, space.bytes_of(levels)
    return min(loss for loss, size in _LOSSES.values() if size <= limit)


def _space(arguments: argparse.Namespace) -> Space:
    return inspect_settings(_settings(arguments, 2**62)).space


def _settings(arguments: argparse.Namespace, limit: int) -> Settings:
    own = _tiny() if arguments.model is None else _real(arguments)
    common = {"runs": arguments.runs, "seed": 0, "budget": {"weights": f"{limit}B"}}
    return Settings.from_dict({**common, **own})


def _tiny() -> dict[str, Any]:
    tokens = dict.fromkeys(("calibration", "selection", "validation", "holdout"), 2048)
    return {
        "name": "agents-tiny",
        "model": str(train(TINY)),
        "threads": 1,
        "space": {
            "weights": {
                "bits": [3],
                "only": {"layers.1.*": [2, 3, 4]},
                "pin": {"embed": "8b-g64-int"},
            }
        },
        "text": {"sequence": 64, **tokens},
        "sense": {"marginals": 12, "marginal_tokens": 2048, "fit_plans": 8, "fit_tokens": 2048},
    }


def _real(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "name": "agents-real",
        "model": arguments.model,
        "space": {"weights": {"bits": [2, 3, 4, 5, 6], "pin": {"embed": "8b-g64-float"}}},
        "text": {"source": arguments.text, "selection": 1024},
        "sense": {"prescreen_tokens": 1024, "marginals": 48, "fit_plans": 12},
    }


if __name__ == "__main__":
    main()
