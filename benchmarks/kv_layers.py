"""Caches alone, weights uncompressed: layer by layer against uniform caches and published rules.

The budgets are the bytes of uniform caches that keep every token, so that these are in the race at their
best. *exact* is the exact solution of the program's own loss models. Every rule of
:data:`tightfit.proxies.kv.ALLOCATORS` is given what it needs from calibration prompts; rules that share out
tokens are tried at every pair of bits. All plans of a method are measured on the selection text, its best
once more on the holdout text.

The second table compares bits of keys with bits of values, all layers alike, at equal bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from kv_common import HEADER, MIB, Levels, facts, judge, line, opened, race, ratio, settings_of
from kv_states import prompts, read_back

from tightfit.proxies.kv import ALLOCATORS, Menu, ends_plans, retention_curve, uniform_plans
from tightfit.proxies.kv.attention import prefill_masses
from tightfit.proxies.kv.errors import error_table
from tightfit.proxies.kv.similarity import block_similarity
from tightfit.search.agents import History, get_agent
from tightfit.search.loss_models import link_words
from tightfit.search.settings import Settings
from tightfit.search.stages import Bench, fit, make_task, sense
from tightfit.search.tables import loss_text
from tightfit.spaces import InputError, KvOption, Load, Plan, kv_bytes, read_geometry
from tightfit.workers.measurement import Measurement, compare
from tightfit.workers.sources import read_config

BITS = [2, 3, 4, 8]
PAIRS = [((8, 4), (4, 8)), ((4, 2), (2, 4))]
PROMPTS = 8  # calibration prompts that rules learn from
EXACT = 3  # solutions that are measured


def measure(arguments: argparse.Namespace) -> None:
    """Print one table per budget, then one of keys against values."""
    for bits in arguments.uniform:
        with opened(settings(arguments, bits)) as bench:
            budget = bench.settings.budget.kv
            assert budget is not None
            sensed = sense(bench)
            model = fit(bench, sensed).fit.model
            proposals = get_agent("exact").propose(make_task(bench, sensed, model), History(), EXACT)
            exact = race(bench, "exact", [proposal.plan for proposal in proposals])
            print(
                f"\n{facts(bench)}\nbudget {budget / MIB:.4f} MiB of caches, those of uniform {bits}-bit "
                f"ones; {link_words(model.to_dict())}"
            )
            print(HEADER)
            print(line(bench, exact, exact), flush=True)
            chosen = [exact]
            for name, plans in _rules(bench, budget):
                chosen.append(race(bench, name, [bench.space.plan(levels) for levels in plans]))
                print(line(bench, chosen[-1], exact), flush=True)
            for candidate in chosen:
                print(f"  {candidate.method}: {_brief(bench, candidate.plan)}")
    with opened(settings(arguments, max(arguments.uniform))) as bench:
        _keys_and_values(bench)


def settings(arguments: argparse.Namespace, bits: int) -> Settings:
    """Return the settings of a search for caches within the bytes of a uniform one that keeps every token."""
    geometry = read_geometry(read_config(arguments.model))
    option = KvOption(bits, bits, residual=arguments.residual, sinks=arguments.sinks)
    size = kv_bytes(geometry, Load(arguments.context), [option] * geometry.layers)
    budget, caches = {"kv": f"{size}B"}, {"bits": BITS, "separate": True}
    return settings_of(arguments, "kv-layers", budget, {"exclude": ["*"]}, caches)


def _brief(bench: Bench, plan: Plan) -> str:
    """Write the caches of a plan layer by layer, with the share of tokens where some are evicted."""
    options = bench.space.kv_options(plan).values()
    return " ".join(f"k{o.k_bits}v{o.v_bits}" + (f"/{o.keep:g}" if o.keep < 1 else "") for o in options)


def _levels(bench: Bench, caches: list[int]) -> Levels:
    """Levels of a plan with these options for its caches; matrices have no choice."""
    return (*(0 for _ in bench.space.matrix_decisions), *caches)


def _rules(bench: Bench, budget: int) -> Iterator[tuple[str, list[Levels]]]:
    """Yield the plans of every published rule."""
    decisions = bench.space.kv_decisions
    menu = Menu([np.array(d.costs) for d in decisions], [d.kv_options for d in decisions])
    needs = _needs(bench, menu)
    for name, rule in ALLOCATORS.items():
        given = (needs[rule.needs],) if rule.needs else ()
        plans: list[list[int]] = []
        if name == "uniform":
            plans = uniform_plans(menu, budget)
        elif name == "ends":
            plans = ends_plans(menu, budget)
        elif rule.needs == "errors":
            plans = [rule.allocate(menu, budget, *given)]
        else:
            for precision in menu.precisions():
                with suppress(InputError):  # not even the fewest tokens at these bits fit
                    plans.append(rule.allocate(menu, budget, *given, precision=precision))
        yield name, [_levels(bench, plan) for plan in plans]


def _needs(bench: Bench, menu: Menu) -> dict[str, list[Any]]:
    """What rules ask for, from calibration prompts: retention curves, cosines, errors of attention."""
    caches, replica = bench.settings.space.kv, bench.evaluator.replica
    assert caches is not None
    reads = prompts(bench, "calibration", PROMPTS)
    masses = [torch.cat(layer) for layer in zip(*map(prefill_masses, reads), strict=True)]
    windows = bench.archive.windows("calibration")[:PROMPTS]
    tokens = [torch.from_numpy(window.tokens) for window in windows]
    tables = [error_table(read, menu.options, lambda i, o, r=read: read_back(r, i, o)) for read in reads]  # type: ignore[misc]
    errors = np.array([[[e.output for e in row] for row in table] for table in tables]).mean(0)
    return {
        "curves": [retention_curve(mass, caches.sinks, caches.residual) for mass in masses],
        "cosines": list(block_similarity(replica.model, replica.geometry, tokens).attention),
        "errors": list(errors),
    }


def _keys_and_values(bench: Bench) -> None:
    """Give keys more bits than values and the other way round, in all layers."""
    print(f"\n{facts(bench)}\n{'bits of keys and values':<26} {'KV':>9} {'holdout KL ± se':>22}")
    for pairs in PAIRS:
        found = [_alike(bench, k, v) for k, v in pairs]
        for (k, v), (size, measured) in zip(pairs, found, strict=True):
            loss = loss_text(measured.kl, measured.kl_se)
            print(f"{f'k{k} v{v}':<26} {size / MIB:>9.3f} {loss:>22}")
        value, se = ratio(found[0][1], found[1][1])
        print(
            f"  more bits for keys ÷ more for values: {value:.3f} ± {se:.3f} "
            f"(z {compare(found[0][1], found[1][1]).z:.1f})",
            flush=True,
        )


def _alike(bench: Bench, k_bits: int, v_bits: int) -> tuple[int, Measurement]:
    caches = [
        next(i for i, o in enumerate(d.kv_options) if (o.k_bits, o.v_bits, o.keep) == (k_bits, v_bits, 1))
        for d in bench.space.kv_decisions
    ]
    plan = bench.space.plan(_levels(bench, caches))
    return bench.space.cache_bytes(plan), judge(bench, plan, f"k{k_bits} v{v_bits}")
