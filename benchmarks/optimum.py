"""How far from the true optimum: every plan of a small space is measured, then searched for.

    .venv/bin/python benchmarks/optimum.py

A tiny trained model, the seven matrices of its middle block with three widths each: 2,187 plans, all
measured on the holdout text. For five budgets a run searches without that knowledge; the table compares
the plan it settles on with the best plan that fits, on the same text, and counts its measurements.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

from tightfit.search.inspection import inspect_settings
from tightfit.search.progress import Progress
from tightfit.search.run import run_search
from tightfit.search.settings import Settings
from tightfit.search.stages import Bench, prepare
from tightfit.search.store import RUN_FILE, Store
from tightfit.search.summary import summarize
from tightfit.workers.lab import TINY, train

WIDTHS = [2, 3, 4]
SHARES = [0.15, 0.3, 0.45, 0.6, 0.75]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--free", default="layers.1.*", help="pattern of the free matrices")
    arguments = parser.parse_args()
    model = str(train(TINY))
    space = inspect_settings(_settings(arguments, model, "enumerate", 2**40)).space
    losses = _enumerate(arguments, model)
    print(f"{len(losses):,} plans measured; one run makes a share of that many measurements")
    print(
        f"{'budget':>8} {'optimum':>9} {'found':>9} {'distance':>9} {'rank':>6} {'measured':>9} {'share':>7}"
    )
    for share in SHARES:
        limit = int(space.floor + share * (space.ceiling - space.floor))
        folder = run_search(_settings(arguments, model, f"search-{share}", limit), say=lambda text: None)
        with Store.open(folder, mode="ro") as store:
            final = summarize(store).final
            made = len(store.measurements())
        if final is None:
            raise SystemExit(f"{folder}: no plan was measured on holdout text")
        fitting = sorted(loss for loss, size in losses.values() if size <= limit)
        rank = sum(loss < final.measured.kl for loss in fitting)
        print(
            f"{share:>8.0%} {fitting[0]:>9.4f} {final.measured.kl:>9.4f} "
            f"{final.measured.kl / fitting[0] - 1:>9.2%} {rank:>6} {made:>9} {made / len(losses):>7.2%}",
            flush=True,
        )


def _settings(arguments: argparse.Namespace, model: str, name: str, limit: int) -> Settings:
    return Settings.from_dict(
        {
            "name": name,
            "runs": arguments.runs,
            "model": model,
            "seed": arguments.seed,
            "threads": 1,
            "budget": {"weights": f"{limit}B"},
            "space": {
                "weights": {
                    "bits": [8],
                    "groups": [64],
                    "zeros": ["integer"],
                    "only": {arguments.free: WIDTHS},
                }
            },
            "text": {
                "sequence": 64,
                "calibration": 2048,
                "selection": 2048,
                "validation": 2048,
                "holdout": 2048,
            },
            "sense": {
                "marginals": 24,
                "marginal_tokens": 2048,
                "fit_plans": 40,
                "fit_tokens": 2048,
                "certificate_plans": 16,
            },
        }
    )


def _enumerate(arguments: argparse.Namespace, model: str) -> dict[tuple[int, ...], tuple[float, int]]:
    """Measure every plan on the holdout text: (loss, weight bytes) by levels."""
    settings = _settings(arguments, model, "enumerate", 2**40)
    space = inspect_settings(settings).space
    folder = Path(settings.runs) / settings.name
    with Store.open(folder / RUN_FILE) as store:
        store.set_space(space)
        bench = prepare(settings, store, space, space.ceiling, folder, Progress())
        start = time.perf_counter()
        result = {}
        for levels in itertools.product(*(range(len(d.options)) for d in space.decisions)):
            result[levels] = (_loss(bench, levels), space.bytes_of(levels))
        print(f"enumerated in {time.perf_counter() - start:.0f} s")
    return result


def _loss(bench: Bench, levels: tuple[int, ...]) -> float:
    plan = bench.space.plan(levels)
    windows = bench.archive.windows("holdout")
    return bench.evaluator.measure(plan.digest, bench.space.site_options(plan), "holdout", windows).kl


if __name__ == "__main__":
    main()
