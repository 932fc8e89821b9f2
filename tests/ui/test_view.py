from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tightfit.spaces import InfeasibleError
from tightfit.ui.runs import read
from tightfit.ui.view import View, shown_decision, shown_plan


@pytest.mark.parametrize("until", ["inspect", "sense", "solve"])
def test_before_a_plan_was_measured_none_is_shown(small_run: Callable[..., object], until: str) -> None:
    run = read(small_run(until).store.path.parent)
    assert shown_plan(run, View(run.folder)) is None


def test_by_default_the_best_so_far_is_shown_and_at_the_end_the_one_to_use(
    small_run: Callable[..., object],
) -> None:
    run = read(small_run("explore").store.path.parent)
    assert shown_plan(run, View(run.folder)).plan.digest == run.best.digest
    done = read(small_run("report", name="done").store.path.parent)
    shown = shown_plan(done, View(done.folder))
    assert shown.plan.digest == done.summary.result.final
    assert (shown.label, shown.loss) == ("proposed by agent 1", 0.125)


def test_a_plan_that_was_picked_is_shown_with_where_it_came_from(small_run: Callable[..., object]) -> None:
    made = small_run("report")
    run = read(made.store.path.parent)
    shown = shown_plan(run, View(run.folder, budget=5).picking(made.plans[0]))
    assert shown.plan.digest == made.plans[0]
    assert shown.label == "baseline uniform 3b"
    assert shown.bytes == made.space.floor


def test_a_budget_is_solved_from_the_stored_scores(small_run: Callable[..., object]) -> None:
    made = small_run("solve")
    run = read(made.store.path.parent)
    shown = shown_plan(run, View(run.folder, digest="x").solving(made.space.ceiling))
    assert shown.bytes == made.space.ceiling
    assert shown.loss == pytest.approx(made.loss(made.levels(3)))
    assert shown.resolved.measured is None
    with pytest.raises(InfeasibleError):
        shown_plan(run, View(run.folder).solving(made.space.floor - 1))


def test_before_there_is_a_loss_model_a_budget_changes_nothing(small_run: Callable[..., object]) -> None:
    run = read(small_run("sense").store.path.parent)
    assert shown_plan(run, View(run.folder).solving(10**9)) is None


def test_the_matrix_shown_is_the_most_sensitive_one_unless_one_was_picked(
    small_run: Callable[..., object],
) -> None:
    made = small_run("sense")
    run = read(made.store.path.parent)
    worst = max(
        (d for d in made.space.decisions if len(d.options) > 1),
        key=lambda d: made.losses[_position(made, d)][0],
    )
    assert shown_decision(run, View(run.folder)).name == worst.name
    assert shown_decision(run, View(run.folder, decision="embed")).name == "embed"
    assert shown_decision(run, View(run.folder, decision="nothing")) is None


def test_without_scores_no_matrix_is_shown(small_run: Callable[..., object]) -> None:
    run = read(small_run("inspect").store.path.parent)
    assert shown_decision(run, View(run.folder)) is None


def test_another_run_starts_from_its_beginning() -> None:
    view = View(Path("a"), digest="x", budget=1, front="f", decision="d", seen=1, sent={3: "y"})
    assert view.of(Path("b")) == View(Path("b"), sent={3: "y"})


def _position(made: object, decision: object) -> int:
    return made.space.decisions.index(decision)
