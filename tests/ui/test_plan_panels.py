from __future__ import annotations

from collections.abc import Callable

import pytest

from tightfit.spaces import format_size
from tightfit.ui.plan_panels import matrix_panel, options_by_layer, plan_panel, spending_panel
from tightfit.ui.runs import Run, read
from tightfit.ui.view import View, shown_decision, shown_plan


@pytest.fixture
def run_until(small_run: Callable[..., object]) -> Callable[[str], Run]:
    return lambda until: read(small_run(until).store.path.parent)


def test_a_plan_shows_its_losses_on_every_text_and_the_difference_to_the_chosen_one(
    small_run: Callable[..., object],
) -> None:
    made = small_run("report")
    run = read(made.store.path.parent)
    chosen = plan_panel(run, shown_plan(run, View(run.folder)))
    assert "Minus chosen" not in chosen
    page = plan_panel(run, shown_plan(run, View(run.folder).picking(made.plans[0])))
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
    page = plan_panel(run, shown_plan(run, View(run.folder).solving(made.space.floor + 1000)))
    assert "Solved for " in page
    assert "not measured" in page
    assert "below" in page


def test_options_are_listed_by_layer_with_the_embedding_apart(run_until: Callable[[str], Run]) -> None:
    run = run_until("report")
    page = options_by_layer(run, shown_plan(run, View(run.folder)))
    assert "embed: 8b-g64-float" in page
    assert page.count("<tr>") == 1 + 2
    assert options_by_layer(run, None) == ""


def test_types_of_llama_cpp_are_counted_by_the_weights_that_they_hold(
    small_run: Callable[..., object],
) -> None:
    made = small_run("report", target="llama.cpp")
    run = read(made.store.path.parent)
    page = options_by_layer(run, shown_plan(run, View(run.folder).picking(made.plans[0])))
    embed = next(d.weights for d in run.decisions if d.name == "embed")
    share = embed / sum(d.weights for d in run.decisions)
    assert f"Share of the weights: Q4_0 {1 - share:.0%}, Q8_0 {share:.0%}." in page
    other = read(small_run("report", name="other").store.path.parent)
    assert "Share of the weights" not in options_by_layer(other, shown_plan(other, View(other.folder)))


def test_a_matrix_shows_every_option_and_the_one_in_the_plan(run_until: Callable[[str], Run]) -> None:
    run = run_until("report")
    decision = shown_decision(run, View(run.folder))
    page = matrix_panel(run, decision, shown_plan(run, View(run.folder)))
    assert [option.name in page for option in decision.options] == [True] * len(decision.options)
    assert page.count(">plan<") == 1
    assert page.count(" ± ") == 4
    assert "calibrated by losses" in page


def test_there_are_words_where_there_is_nothing_to_show(run_until: Callable[[str], Run]) -> None:
    run = run_until("inspect")
    assert "shows it here" in plan_panel(run, None)
    assert "shows them here" in matrix_panel(run, None, None)


@pytest.fixture
def kv_run(small_run: Callable[..., object]) -> Run:
    return read(small_run("report", kv=True).store.path.parent)


def test_a_plan_with_caches_shows_where_its_memory_goes(kv_run: Run) -> None:
    shown = shown_plan(kv_run, View(kv_run.folder))
    page, row = plan_panel(kv_run, shown), kv_run.summary.final
    assert shown.cache == row.cache_bytes > 0
    for part in (
        "Weights + KV cache",
        f"KV cache {format_size(row.cache_bytes)} at 128 tokens × 3",
        f"weights {format_size(row.weight_bytes)}",
        f"{row.effective_bits:.3f}",
    ):
        assert part in page
    solved = shown_plan(kv_run, View(kv_run.folder).solving(kv_run.summary.limit))
    assert format_size(solved.bytes - solved.cache) in plan_panel(kv_run, solved)


def test_the_options_of_a_cache_have_bits_per_value(kv_run: Run) -> None:
    shown = shown_plan(kv_run, View(kv_run.folder))
    decision = shown_decision(kv_run, View(kv_run.folder, decision="layers.1.kv"))
    page = matrix_panel(kv_run, decision, shown)
    assert [option.name in page for option in decision.options] == [True] * 4
    assert "16.00" in page  # of the plain cache
    halved = decision.costs[decision.index("k16v16-r32-s4-keep0.5")]
    assert f"{16 * halved / decision.costs[-1]:.2f}" in page
    assert "KV cache of this layer at 128 tokens × 3" in page
    assert page.count(">plan<") == 1


def test_caches_that_are_one_decision_can_be_picked(small_run: Callable[..., object]) -> None:
    run = read(small_run("report", target="llama.cpp", kv=True).store.path.parent)
    page = matrix_panel(run, shown_decision(run, View(run.folder, decision="kv")), None)
    assert "KV cache of 2 layers" in page
    assert "16.00" in page
    listed = options_by_layer(run, shown_plan(run, View(run.folder)))
    assert listed.count("k8v8-block") + listed.count("k16v16") == 2


def test_what_a_plan_spends_is_shown_where_it_decides_about_caches(
    kv_run: Run, small_run: Callable[..., object]
) -> None:
    page = spending_panel(kv_run, shown_plan(kv_run, View(kv_run.folder)))
    assert "KV cache" in page
    assert "Uniform: uniform 3b" in page
    assert '<th scope="col">kv</th>' in options_by_layer(kv_run, shown_plan(kv_run, View(kv_run.folder)))
    plain = read(small_run("report", name="plain").store.path.parent)
    assert spending_panel(plain, shown_plan(plain, View(plain.folder))) == ""
    assert "KV" not in plan_panel(plain, shown_plan(plain, View(plain.folder)))
