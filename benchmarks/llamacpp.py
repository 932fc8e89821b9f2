"""What searching is worth in llama.cpp: the searched plan beside uniform types and llama.cpp's own mixes.

    .venv/bin/python benchmarks/llamacpp.py --against Q3_K Q3_K_M Q4_K_M

For every plan to compare with (a type everywhere, or a mix that ``llama-quantize`` makes by itself) one
search with exactly its bytes as the budget; all searches share one folder, so that sensing is done once. Both
plans are then measured on the same holdout text, and all files are run in llama.cpp in turn. KL is in nats
per token; speeds are ratios, searched over compared, paired by round.

With ``--no-slower`` formats are timed first, and every search must also keep the speed of generation that
their table predicts for the plan that it is compared with.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tightfit.exporters import get_exporter
from tightfit.proxies.latency import LatencyTable
from tightfit.search.agents.llamacpp import RECIPES, recipe_levels
from tightfit.search.inspection import inspect_settings
from tightfit.search.reopen import reopen
from tightfit.search.resolve import stored_plan
from tightfit.search.run import run_search
from tightfit.search.settings import Settings
from tightfit.search.shipping import stored_shipment
from tightfit.search.store import Store
from tightfit.search.tables import loss_text
from tightfit.spaces import GgmlOption, Plan, Space, format_size
from tightfit.workers.llamacpp.bench import bench_files
from tightfit.workers.llamacpp.speed import Speed
from tightfit.workers.measurement import Measurement, compare

UNIFORM = ("Q3_K", "IQ4_XS", "Q4_K", "Q5_K")


@dataclass(frozen=True)
class Pair:
    """A searched plan and the one that it is compared with, of at most the same bytes."""

    name: str
    limit: int
    searched: Plan
    against: Plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="lab")
    parser.add_argument("--text", default="python-docs", help="a text file, or python-docs")
    parser.add_argument("--against", nargs="*", default=[*UNIFORM, *RECIPES], help="types and mixes")
    parser.add_argument(
        "--types", nargs="*", default=["Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0"]
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--holdout", type=int, default=8192, help="tokens")
    parser.add_argument("--no-slower", action="store_true", help="bound speed as well as bytes")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--name", default="llamacpp")
    arguments = parser.parse_args()
    space = inspect_settings(_settings(arguments, 2**62)).space
    pairs = []
    for name in arguments.against:
        levels = _levels(space, name)
        limit, speed = space.bytes_of(levels), None
        if arguments.no_slower:
            # Any speed at all, so that formats are timed; once they are, the folder keeps their times.
            folder = run_search(_settings(arguments, limit, 1.0), say=lambda line: None)
            speed = _predicted_speed(folder, space, levels)
        folder = run_search(_settings(arguments, limit, speed), say=lambda line: None)
        with Store.open(folder, mode="ro") as store:
            pairs.append(Pair(name, limit, stored_plan(store, None), space.plan(levels)))
        print(f"searched at the bytes of {name}", flush=True)
    _report(arguments, pairs, folder)


def _predicted_speed(folder: Path, space: Space, levels: tuple[int, ...]) -> float:
    """Tokens per second of a plan under the table of times of a run."""
    with Store.open(folder, mode="ro") as store:
        table = LatencyTable.from_dict(store.get_fit("latency_generate") or {})
    return 1 / table.predict(space.geometry, space.site_options(space.plan(levels)))


def _settings(arguments: argparse.Namespace, limit: int, speed: float | None = None) -> Settings:
    return Settings.from_dict(
        {
            "name": arguments.name,
            "runs": arguments.runs,
            "model": arguments.model,
            "target": "llama.cpp",
            "budget": {"weights": f"{limit}B", "tokens_per_second": speed},
            "space": {"weights": {"types": arguments.types}},
            "text": {"source": arguments.text, "selection": 4096, "holdout": arguments.holdout},
            "sense": {
                "prescreen_tokens": 4096,
                "marginal_tokens": 1024,
                "fit_tokens": 2048,
                "certificate_plans": 4,
            },
            "search": {"evaluations": 16},
            "validate": {"prompt": arguments.prompt, "generate": arguments.generate},
            "workers": {"validation": 0},
        }
    )


def _levels(space: Space, name: str) -> tuple[int, ...]:
    if name not in RECIPES:
        return space.uniform_levels(GgmlOption(name))
    levels = recipe_levels(space, RECIPES[name])
    if levels is None:
        raise SystemExit(f"{name} needs a type that is not offered: add it to --types")
    return levels


def _report(arguments: argparse.Namespace, pairs: list[Pair], folder: Path) -> None:
    plans = {plan.digest: plan for pair in pairs for plan in (pair.searched, pair.against)}
    with Store.open(folder, mode="ro") as store:
        losses = _losses(store, plans)
        speeds = _speeds(arguments, store, plans, folder)
    print(
        f"{'against':<10}{'budget':>12}{'KL searched':>20}{'KL against':>20}{'ratio':>8}{'z':>7}"
        f"{'generation ×':>20}{'prompt ×':>20}"
    )
    for pair in pairs:
        own, other = losses[pair.searched.digest], losses[pair.against.digest]
        fast = [speeds[pair.searched.digest].ratio(speeds[pair.against.digest], what) for what in _RATES]
        cells = [f"{each.median:.3f} ± {each.spread:.3f}" for each in fast]
        print(
            f"{pair.name:<10}{format_size(pair.limit):>12}{loss_text(own.kl, own.kl_se):>20}"
            f"{loss_text(other.kl, other.kl_se):>20}{own.kl / other.kl:>8.3f}{-compare(own, other).z:>7.1f}"
            f"{cells[0]:>20}{cells[1]:>20}"
        )


_RATES = ("generation_rate", "prompt_rate")


def _losses(store: Store, plans: dict[str, Plan]) -> dict[str, Measurement]:
    opened = reopen(store)
    space = stored_shipment(store, next(iter(plans.values()))).space
    windows = opened.windows["holdout"]
    measure = opened.evaluator.measure
    return {d: measure(d, space.site_options(plan), "holdout", windows) for d, plan in plans.items()}


def _speeds(
    arguments: argparse.Namespace, store: Store, plans: dict[str, Plan], folder: Path
) -> dict[str, Speed]:
    files = []
    try:
        for digest, plan in plans.items():
            shipment = stored_shipment(store, plan, source=True)
            files.append(get_exporter("llama.cpp").export(shipment, folder / f"{digest[:16]}.gguf"))
        found = bench_files(files, arguments.prompt, arguments.generate, arguments.rounds)
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    speeds = dict(zip(plans, found, strict=True))
    failed = [speed.reason for speed in speeds.values() if not isinstance(speed, Speed)]
    if failed:
        raise SystemExit(f"a file could not be run: {failed[0]}")
    return {digest: speed for digest, speed in speeds.items() if isinstance(speed, Speed)}


if __name__ == "__main__":
    main()
