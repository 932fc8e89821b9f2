from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tightfit.search.control import holding
from tightfit.ui import panels
from tightfit.ui.runs import Run, read


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


def test_a_run_without_a_cost_estimate_shows_no_bar(run_until: Callable[[str], Run]) -> None:
    run = run_until("explore")
    assert "tf-bar" in panels.verdict(run)
    bare = replace(run, summary=replace(run.summary, forward_tokens={}))
    assert "tf-bar" not in panels.verdict(bare)
    assert Path(run.folder).is_dir()


def test_without_a_run_it_says_how_to_start_and_why_one_cannot_be_shown() -> None:
    assert "tightfit run search.yaml" in panels.nothing()
    assert "&lt;x&gt;" in panels.refused("<x>")
