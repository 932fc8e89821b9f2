"""How far from the true optimum of weights and caches: every plan is measured, then searched for.

A tiny trained model; keys', values' and down projection of its middle block with three widths each, the
caches of its last two blocks with three widths for keys and three for values: 2,187 plans, all measured on
the holdout text. For five budgets a run searches without that knowledge; the table compares the plan it
settles on with the best plan that fits, on the same text, and counts its measurements.
"""

from __future__ import annotations

import argparse
import itertools

from kv_common import Levels, opened

from tightfit.search.run import run_search
from tightfit.search.settings import Settings
from tightfit.search.stages import Bench
from tightfit.search.store import Store
from tightfit.search.summary import summarize
from tightfit.spaces import Plan
from tightfit.workers.lab import TINY, train

FREE = ("layers.1.attn.k_proj", "layers.1.attn.v_proj", "layers.1.mlp.down_proj")
WIDTHS = [3, 4, 5]
CACHE_BITS = [2, 4, 8]
SHARES = [0.15, 0.3, 0.45, 0.6, 0.75]
CONTEXT, SEQUENCE = 40, 24  # the tiny model knows 64 tokens
TOKENS = 512
BATCH = 1  # caches then have about as many bytes to give as the free matrices


def measure(arguments: argparse.Namespace) -> None:
    """Print one line per budget."""
    model = str(train(TINY))
    with opened(_settings(arguments, model, "kv-every", 2**40)) as bench:
        losses = _enumerate(bench)
        space = bench.space
    caches = sum(d.costs[-1] - d.costs[0] for d in space.kv_decisions)
    matrices = space.ceiling - space.floor - caches
    print(
        f"{len(losses):,} plans measured, {space.floor:,} to {space.ceiling:,} B, of which matrices may take "
        f"{matrices:,} B more or less and caches {caches:,} B; {TOKENS:,} tokens of each part of the text"
    )
    print(
        f"{'budget':>7} {'plans':>6} {'optimum':>9} {'found':>9} {'distance':>9} {'rank':>5} {'made':>5} "
        f"{'share':>7}  optimum and found"
    )
    for share in SHARES:
        limit = int(space.floor + share * (space.ceiling - space.floor))
        settings = _settings(arguments, model, f"kv-search-{share}", limit)
        folder = run_search(settings, say=lambda text: None)
        with Store.open(folder, mode="ro") as store:
            final = summarize(store).final
            if final is None:
                raise SystemExit(f"{folder}: no plan was measured on holdout text")
            offered = store.plans()[final.digest].plan
            made = len(store.measurements())
        fitting = {levels: loss for levels, (loss, size) in losses.items() if size <= limit}
        best = min(fitting, key=lambda levels: fitting[levels])
        found = losses[space.levels(offered)][0]
        rank = sum(loss < found for loss in fitting.values())
        print(
            f"{share:>7.0%} {len(fitting):>6} {fitting[best]:>9.5f} {found:>9.5f} "
            f"{found / fitting[best] - 1:>9.2%} {rank:>5} {made:>5} {made / len(losses):>7.2%}  "
            f"{_brief(space.plan(best))}, {_brief(offered)}",
            flush=True,
        )


def _brief(plan: Plan) -> str:
    """Write the free choices of a plan: ``2 2 3 + k4v2 k8v4``."""
    chosen = dict(plan.choices)
    bits = " ".join(chosen[name].partition("b-")[0] for name in FREE)
    return f"{bits} + " + " ".join(chosen[f"layers.{i}.kv"].partition("-")[0] for i in (1, 2))


def _enumerate(bench: Bench) -> dict[Levels, tuple[float, int]]:
    """Measure every plan on the holdout text: (loss, bytes) by levels."""
    space, windows = bench.space, bench.archive.windows("holdout")
    result: dict[Levels, tuple[float, int]] = {}
    with bench.progress.stage("explore", "measuring every plan") as tick:
        # Caches come last, so that plans with the same weights follow one another and share their prompts.
        for levels in itertools.product(*(range(len(d.options)) for d in space.decisions)):
            plan = space.plan(levels)
            measured = bench.evaluator.measure(
                plan.digest, space.site_options(plan), "holdout", windows, space.kv_options(plan)
            )
            result[levels] = measured.kl, space.bytes_of(levels)
            tick(len(result), space.size)
    return result


def _settings(arguments: argparse.Namespace, model: str, name: str, limit: int) -> Settings:
    parts = ("calibration", "selection", "validation", "holdout")
    return Settings.from_dict(
        {
            "name": name,
            "runs": arguments.runs,
            "model": model,
            "seed": arguments.seed,
            "threads": 1,
            "budget": {"total": f"{limit}B", "context": CONTEXT, "batch": BATCH},
            "space": {
                "weights": {
                    "bits": [8],
                    "groups": [64],
                    "zeros": ["integer"],
                    "only": dict.fromkeys(FREE, WIDTHS),
                },
                "kv": {
                    "bits": CACHE_BITS,
                    "separate": True,
                    "residual": 0,
                    "pin": {"layers.0.kv": "k16v16"},
                },
            },
            "text": {"sequence": SEQUENCE, "prefix": CONTEXT, **dict.fromkeys(parts, TOKENS)},
            "sense": {
                "prescreen_tokens": TOKENS,
                "marginals": 9,
                "kv_marginals": 18,
                "marginal_tokens": TOKENS,
                "fit_plans": 32,
                "fit_tokens": TOKENS,
                "certificate_plans": 8,
            },
            "search": {"evaluations": 16},
            "workers": {"validation": 0},
        }
    )
