from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tightfit.search.control import holding
from tightfit.ui import panels
from tightfit.ui.runs import Run, read
from tightfit.ui.view import View, shown_decision, shown_plan


@pytest.fixture
def run_until(small_run: Callable[..., object]) -> Callable[[str], Run]:
    return lambda until: read(small_run(until).store.path.parent)


def test_the_head_says_what_the_run_is_about_and_shows_names_as_text(run_until: Callable[[str], Run]) -> None:
    page = panels.head(run_until("report"))
    assert "tiny &lt;b&gt;" in page
    assert "<b>" not in page
    for part in ("run demo", "2 layers", "budget ", "finished"):
        assert part in page


def test_the_head_says_in_which_stage_a_run_is_and_what_went_wrong(run_until: Callable[[str], Run]) -> None:
    run = run_until("explore")
    assert "stopped · explore" in panels.head(run)
    assert 'role="alert"' not in panels.head(run)
    assert "it &lt;failed&gt;" in panels.head(run, "it <failed>")
    with holding(run.folder):
        assert "running · explore" in panels.head(read(run.folder))


@pytest.mark.parametrize(
    ("until", "words"),
    [
        ("inspect", "Nothing was measured yet."),
        ("sense", "Every option is scored"),
        ("solve", "The loss model is solved for every budget"),
        ("explore", "Best so far: plan "),
        ("report", "fits: plan of the test"),
    ],
)
def test_the_verdict_says_how_far_the_run_has_come(
    run_until: Callable[[str], Run], until: str, words: str
) -> None:
    page = panels.verdict(run_until(until))
    assert words in page
    assert ('aria-current="step"' in page) == (until != "report")


def test_a_plan_shows_its_losses_on_every_text_and_the_difference_to_the_chosen_one(
    small_run: Callable[..., object],
) -> None:
    made = small_run("report")
    run = read(made.store.path.parent)
    chosen = panels.plan(run, shown_plan(run, View(run.folder)))
    assert "Minus chosen" not in chosen
    page = panels.plan(run, shown_plan(run, View(run.folder).picking(made.plans[0])))
    row = run.summary.front.find(made.plans[0])
    for part in (
        "Baseline uniform 3b.",
        "holdout",
        "selection",
        "Minus chosen",
        "best baseline",
        made.plans[0][:12],
    ):
        assert part in page
    assert f"+{row.versus_chosen.difference:.4f}" in page
    assert f"{row.kl_se:.4f}" in page


def test_a_plan_that_was_solved_for_says_so_and_that_it_was_not_measured(
    small_run: Callable[..., object],
) -> None:
    made = small_run("solve")
    run = read(made.store.path.parent)
    page = panels.plan(run, shown_plan(run, View(run.folder).solving(made.space.floor + 1000)))
    assert "Solved for " in page
    assert "not measured" in page
    assert "below" in page


def test_options_are_listed_by_layer_with_the_embedding_apart(run_until: Callable[[str], Run]) -> None:
    run = run_until("report")
    page = panels.options_by_layer(run, shown_plan(run, View(run.folder)))
    assert "embed: 8b-g64-float" in page
    assert page.count("<tr>") == 1 + 2
    assert panels.options_by_layer(run, None) == ""


def test_a_matrix_shows_every_option_and_the_one_in_the_plan(run_until: Callable[[str], Run]) -> None:
    run = run_until("report")
    decision = shown_decision(run, View(run.folder))
    page = panels.matrix(run, decision, shown_plan(run, View(run.folder)))
    assert [option.name in page for option in decision.options] == [True] * len(decision.options)
    assert page.count(">plan<") == 1
    assert page.count(" ± ") == 4
    assert "calibrated by losses" in page


def test_there_are_words_where_there_is_nothing_to_show(run_until: Callable[[str], Run]) -> None:
    run = run_until("inspect")
    assert "shows it here" in panels.plan(run, None)
    assert "shows them here" in panels.matrix(run, None, None)
    assert "tightfit run search.yaml" in panels.nothing()
    assert "&lt;x&gt;" in panels.refused("<x>")


def test_a_run_without_a_cost_estimate_shows_no_bar(run_until: Callable[[str], Run]) -> None:
    run = run_until("explore")
    assert "tf-bar" in panels.verdict(run)
    bare = replace(run, summary=replace(run.summary, forward_tokens={}))
    assert "tf-bar" not in panels.verdict(bare)
    assert Path(run.folder).is_dir()
