from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tightfit.proxies.additive import LinkAdditive
from tightfit.search.resolve import resolve, stored_plan, stored_space
from tightfit.search.store import Store
from tightfit.search.tables import loss_text, nats_text
from tightfit.spaces import Budget, InfeasibleError, InputError, Plan


def loss_of(store: Store, levels: list[int]) -> float:
    """Loss of a plan under the stored loss model, added up by hand."""
    fit = store.get_fit("link")
    assert fit
    model = fit["model"]
    total = sum(row[level] for row, level in zip(model["weights"], levels, strict=True))
    kappa = model["link"]["kappa"]
    return float(np.expm1(kappa * total) / kappa)


def test_the_space_is_that_of_the_run(fake_run: Callable[..., Store]) -> None:
    store = fake_run("inspect")
    assert stored_space(store).decisions == store.decisions()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.55, 1.0, 3.0])
def test_the_plan_keeps_the_budget_and_no_swap_improves_it(
    fake_run: Callable[..., Store], share: float
) -> None:
    store = fake_run()
    space = stored_space(store)
    limit = int(space.floor + share * (space.ceiling - space.floor))
    resolved = resolve(store, Budget(weights=limit))
    levels = list(space.levels(resolved.plan))
    assert resolved.size == space.bytes_of(levels) <= limit
    assert resolved.effective_bits == space.effective_bits(resolved.size)
    assert resolved.loss == pytest.approx(loss_of(store, levels), rel=1e-12)
    # Whatever changes in two decisions, the plan gets no better within the limit.
    for first, second in itertools.combinations(range(len(levels)), 2):
        for one in range(len(space.decisions[first].options)):
            for other in range(len(space.decisions[second].options)):
                near = list(levels)
                near[first], near[second] = one, other
                if space.bytes_of(near) <= limit:
                    assert loss_of(store, near) >= resolved.loss * (1 - 1e-4)


def test_a_larger_budget_never_gives_a_worse_plan(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    space = stored_space(store)
    limits = np.linspace(space.floor, space.ceiling, 9).astype(int)
    losses = [resolve(store, Budget(weights=int(limit))).loss for limit in limits]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 2 * losses[-1]


def test_a_budget_in_effective_bits_works_too(fake_run: Callable[..., Store]) -> None:
    resolved = resolve(fake_run(), Budget(effective_bits=7.3))
    assert 7.2 < resolved.effective_bits <= 7.3


def test_nothing_is_written(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    store.close()
    before = store.path.read_bytes()
    with Store.open(store.path, mode="ro") as again:
        resolve(again, Budget(effective_bits=7.3))
    assert store.path.read_bytes() == before


def test_below_the_floor_is_infeasible(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    with pytest.raises(InfeasibleError, match="below the floor of this space"):
        resolve(store, Budget(weights=stored_space(store).floor - 1))


@pytest.mark.parametrize(
    ("until", "message"),
    [("inspect", "holds no loss model yet: let the search get past its fit stage"), (None, "holds no space")],
)
def test_a_run_that_has_not_come_so_far_is_refused(
    fake_run: Callable[..., Store], tmp_path: Path, until: str | None, message: str
) -> None:
    store = fake_run(until) if until else Store.open(tmp_path / "empty" / "run.db")
    with pytest.raises(InputError, match=message):
        resolve(store, Budget(effective_bits=7.3))


def test_it_says_whether_the_run_measured_the_plan(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    resolved = resolve(store, Budget(effective_bits=7.3))
    assert resolved.measured is None
    assert "nats/token (not measured)" in resolved.render()
    assert resolved.to_dict()["measured"] is None
    floor = resolve(store, Budget(weights=stored_space(store).floor))
    (held,) = [m for m in store.measurements("holdout") if m.plan == floor.plan.digest]
    assert floor.measured == held  # as the uniform plan of fewest bits
    assert f"(measured {loss_text(held.kl, held.kl_se)} on holdout, 3,708 tokens)" in floor.render()
    assert floor.to_dict()["measured"] == {
        "split": "holdout",
        "tokens": 3708,
        "kl": held.kl,
        "kl_se": held.kl_se,
    }


def test_what_people_and_scripts_see_is_the_same(fake_run: Callable[..., Store]) -> None:
    resolved = resolve(fake_run(), Budget(effective_bits=7.3))
    data = json.loads(json.dumps(resolved.to_dict()))
    assert Plan.from_dict(data) == resolved.plan
    assert data["digest"] == resolved.plan.digest
    text = resolved.render()
    assert resolved.plan.short in text
    assert f"({data['weight_bytes']} B)" in text
    assert f"predicted loss {nats_text(data['predicted_loss'])} nats/token" in text
    counts = {name: int(count) for count, name in re.findall(r"(\d+) × (\S+?)(?:,|$)", text)}
    assert sum(counts.values()) == len(resolved.plan.choices)
    for name, count in counts.items():
        assert list(data["choices"].values()).count(name) == count


def test_the_loss_model_is_the_stored_one(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    fit = store.get_fit("link")
    assert fit
    space = stored_space(store)
    # With the largest option of one decision made hopeless, it is never chosen.
    weights = [list(row) for row in fit["model"]["weights"]]
    weights[3][-1] = 100.0
    store.add_fit("link", {**fit, "model": {**fit["model"], "weights": weights}})
    plan = resolve(store, Budget(weights=space.ceiling)).plan
    assert space.levels(plan)[3] == len(space.decisions[3].options) - 2
    assert LinkAdditive.from_dict(store.get_fit("link")["model"]).weights[3][-1] == 100.0


def test_a_plan_is_found_by_the_start_of_its_digest(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    offered = store.get("result")["offered"]
    assert stored_plan(store, None).digest == offered
    assert stored_plan(store, offered[:12]).digest == offered
    assert stored_plan(store, offered) == store.plans()[offered].plan


def test_a_digest_of_no_plan_or_of_several_is_refused(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    count = len(store.plans())
    with pytest.raises(
        InputError, match=rf"0 of the {count} plans in .* starts with 'zz': .*front RUN --all"
    ):
        stored_plan(store, "zz")
    with pytest.raises(InputError, match=rf"{count} of the {count} plans in .* starts with ''"):
        stored_plan(store, "")


def test_a_single_option_that_was_measured_alone_is_no_plan_to_export(
    fake_run: Callable[..., Store],
) -> None:
    store = fake_run()
    partial = Plan(store.plans()[store.get("result")["offered"]].plan.choices[3:4])
    store.add_plan(partial, 10**8, "marginal")
    with pytest.raises(InputError, match=rf"^0 of the \d+ plans in .* starts with '{partial.short}'"):
        stored_plan(store, partial.short)


def test_before_the_end_the_solvers_plan_is_the_best_so_far(fake_run: Callable[..., Store]) -> None:
    store = fake_run("solve")
    assert store.get("result") is None
    assert stored_plan(store, None).digest == store.get("solution")["digest"]


def test_before_solving_there_is_no_plan(fake_run: Callable[..., Store]) -> None:
    with pytest.raises(InputError, match="has no plan yet: let the search get past its solve stage"):
        stored_plan(fake_run("sense"), None)
