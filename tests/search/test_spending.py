from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tightfit.proxies.pools import read_model
from tightfit.search.spending import JOINTLY, spend, spendings, total_spending
from tightfit.search.store import Store
from tightfit.search.summary import summarize
from tightfit.spaces import Plan


def levels_of(store: Store, plan: Plan) -> list[int]:
    choices = dict(plan.choices)
    return [decision.index(choices[decision.name]) for decision in store.decisions()]


def test_parts_add_up_to_the_bytes_and_the_score_of_each_plan(fake_run: Callable[..., Store]) -> None:
    store = fake_run(kv=True)
    summary, fit = summarize(store), store.get_fit("link")["model"]
    plans = [store.plans()[row.digest] for row in summary.front.rows[:2]]
    k, v, cache = (
        next(i for i, d in enumerate(store.decisions()) if d.name == f"layers.1.{name}")
        for name in ("attn.k_proj", "attn.v_proj", "kv")
    )
    excess = np.full([len(store.decisions()[i].options) for i in (k, v, cache)], 0.25)
    fit["couplings"] = [{"decisions": [k, v, cache], "excess": excess.tolist()}]
    parts = spendings(store.decisions(), summary.space.fixed, fit, [stored.plan for stored in plans])
    total = total_spending(parts)
    assert total.bytes == tuple(stored.bytes for stored in plans)
    caches = next(part for part in parts if part.name == "KV cache")
    assert caches.bytes == tuple(stored.cache_bytes for stored in plans)
    assert next(part for part in parts if part.name == JOINTLY).terms == (0.25, 0.25)
    scores = read_model(fit).additive_score(np.array([levels_of(store, stored.plan) for stored in plans]))
    assert total.terms == pytest.approx(scores)


def test_a_plan_is_held_against_the_best_uniform_one_within_the_budget(
    fake_run: Callable[..., Store],
) -> None:
    summary = summarize(fake_run(kv=True))
    rival = summary.spent.rival
    uniform = [row for row in summary.front.rows if row.kind == "uniform"]
    assert rival.kind == "uniform"
    assert rival.bytes <= summary.limit
    assert rival.measured.kl == min(r.measured.kl for r in uniform if r.bytes <= summary.limit)


def test_before_anything_is_measured_or_fitted_there_are_bytes_of_one_plan(
    fake_run: Callable[..., Store],
) -> None:
    store = fake_run("solve", kv=True)
    summary = summarize(store)
    plan = store.plans()[summary.solution.digest].plan
    assert summary.spent.rival is None
    spent = spend(store.decisions(), summary.space.fixed, None, plan, (), summary.limit, store.plans())
    assert total_spending(spent.parts).terms is None
    assert {len(part.bytes) for part in spent.parts} == {1}


def test_runs_without_caches_spend_as_before(fake_run: Callable[..., Store]) -> None:
    assert summarize(fake_run()).spent is None
