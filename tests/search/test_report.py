from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tightfit.search.report import render_report, write_report
from tightfit.search.store import Store
from tightfit.search.summary import summarize
from tightfit.search.tables import nats_text

VOID = {"meta"}


class Outline(HTMLParser):
    """Checks that elements nest, and collects what a test asks about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.links: list[str] = []
        self.headings: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.links += [found[key] for key in ("src", "href") if found.get(key)]
        self.ids += [found["id"]] if found.get("id") else []
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] == "h2":
            self.headings.append(data)
        elif "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture
def outline(fake_run: Callable[..., Store]) -> Outline:
    return Outline(render_report(summarize(fake_run())))


def test_the_report_tells_everything_that_was_found(fake_run: Callable[..., Store]) -> None:
    summary = summarize(fake_run())
    outline = Outline(render_report(summary))
    assert outline.headings == [
        "Size against loss",
        "Against the best baseline",
        "Where the model is sensitive",
        "The plan",
        "How far to trust the loss model",
        "Memory of the weights",
        "Text",
        "Cost",
        "Next",
    ]
    row = summary.final
    for part in (
        summary.result.verdict,
        nats_text(row.measured.kl),
        f"{row.bytes / 2**20:.2f}",
        f"{summary.result.recounted_bytes:,} bytes",
        summary.result.final,
        "smollm2-135m-offgrid",
        "Fewer tokens than asked for in holdout: 3,711 of 4,096 tokens.",
        "tightfit export runs/demo --to json --out plan.json",
        "6 min 35 s",
        "Kendall τ 0.63",
    ):
        assert part in outline.text


def test_the_memory_of_the_parts_adds_up(fake_run: Callable[..., Store]) -> None:
    summary = summarize(fake_run())
    text = Outline(render_report(summary)).text
    sizes = [f"{size / 2**20:.2f}" for size in (summary.space.floor, summary.final.bytes)]
    bits, ceiling = f"{summary.final.effective_bits:.3f}", f"{summary.space.ceiling / 2**20:.2f}"
    assert f"total {summary.space.weights:,} {' '.join(sizes)} {bits} {ceiling}" in text


def test_the_report_needs_no_other_host(outline: Outline) -> None:
    assert outline.links == []
    own = outline.scripts[1:]  # the first one is plotly.js, the others are ours and the figures' data
    assert not [script for script in own if re.search(r"https?://", script)]


def test_plotly_is_inlined_once_and_every_figure_has_its_place(fake_run: Callable[..., Store]) -> None:
    text = render_report(summarize(fake_run()))
    assert text.count("plotly.js v") == 1
    assert text.count("Plotly.newPlot(") >= 4
    assert sorted(Outline(text).ids) == ["front", "plan", "reliability", "sensitivity"]


def test_the_page_may_load_nothing(fake_run: Callable[..., Store]) -> None:
    text = render_report(summarize(fake_run("inspect")))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_names_from_files_are_shown_and_never_run(fake_run: Callable[..., Store]) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"
    text = render_report(summarize(fake_run(decorate=lambda word: word + evil)))
    assert "<script>alert" not in text
    assert "<img" not in text
    outline = Outline(text)
    assert outline.text.count(evil) > 10
    assert len(outline.scripts) == 1 + 4 + 1


@pytest.mark.parametrize("stage", ["inspect", "sense", "solve", "validate"])
def test_a_run_under_way_has_a_report_that_says_so(fake_run: Callable[..., Store], stage: str) -> None:
    outline = Outline(render_report(summarize(fake_run(stage))))
    assert (
        f"no result yet: what follows is as far as it has come. It was last heard of in the stage “{stage}”"
        in (outline.text)
    )
    assert "Next" not in outline.headings


def test_a_lost_race_and_a_missed_budget_are_not_hidden(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    result = store.get("result")
    store.put("result", {**result, "agrees": False, "offered": result["best_baseline"], "fits": False})
    text = render_report(summarize(store))
    assert 'class="verdict bad"' in text
    assert "a baseline loses less than the plan that the search chose" in text
    assert "does not keep the budget" in text
    assert result["best_baseline"] in text


def test_the_report_replaces_an_earlier_one_at_once(fake_run: Callable[..., Store], tmp_path: Path) -> None:
    store = fake_run("solve")
    file = write_report(store, tmp_path)
    assert file == tmp_path / "report.html"
    first = file.read_text(encoding="utf-8")
    store.put("model", {"name": "another"})
    assert write_report(store, file) == file
    assert "another" in file.read_text(encoding="utf-8") != first
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["report.html"]


def test_the_same_store_gives_the_same_report(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    assert render_report(summarize(store)) == render_report(summarize(store))
