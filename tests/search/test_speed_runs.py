"""Whole runs whose plans are run in llama.cpp, and budgets of speed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tightfit.search.hardware import TIMES, bounds_of, speed_of
from tightfit.search.resolve import resolve
from tightfit.search.run import render, run_search
from tightfit.search.settings import Settings
from tightfit.search.store import RUN_FILE, Store
from tightfit.search.summary import Summary, summarize
from tightfit.spaces import Budget, InfeasibleError, InputError
from tightfit.workers.llamacpp.speed import Speed

SHORT = {
    "target": "llama.cpp",
    "budget": {"weights": "120000B"},
    "space": {"weights": {"types": ["Q4_0", "Q5_0", "Q8_0"], "pin": {"embed": "Q8_0"}}},
    "sense": {
        "prescreen_tokens": 256,
        "marginals": 4,
        "marginal_tokens": 256,
        "fit_plans": 4,
        "fit_tokens": 256,
        "certificate_plans": 4,
    },
    "search": {"agents": ["exact", "evolution"], "evaluations": 4, "finalists": 2},
    "validate": {"hardware": ["llama.cpp"], "prompt": 16, "generate": 16, "rounds": 3},
}


@pytest.fixture(scope="module")
def finished(
    settings_of: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Settings, Path]:
    settings = settings_of(tmp_path_factory.mktemp("runs"), **SHORT)
    return settings, run_search(settings, say=lambda line: None)


@pytest.fixture
def summary(finished: tuple[Settings, Path]) -> Summary:
    with Store.open(finished[1], mode="ro") as store:
        return summarize(store)


def test_finalists_and_baselines_are_run_and_compared_with_the_uniform_plan(summary: Summary) -> None:
    assert {row.kind for row in summary.speeds} == {"uniform", "mix", "searched"}
    first = summary.speeds[0]
    assert first.kind == "uniform"
    assert first.measured["generate"] == (1.0, 1.0, 1.0)
    for row in summary.speeds:
        assert isinstance(row.speed, Speed)
        assert (row.speed.prompt, row.speed.generate, len(row.speed.samples)) == (16, 16, 3)
        low, middle, high = (
            row.measured["generate"][1],
            row.measured["generate"][0],
            row.measured["generate"][2],
        )
        assert 0 < low <= middle <= high
    assert summary.result is not None
    assert summary.result.chosen in {row.digest for row in summary.speeds}


def test_the_file_is_the_weights_and_what_a_tool_needs_to_read_them(summary: Summary) -> None:
    rows = {row.digest: row for front in summary.fronts for row in front.rows}
    extra = {
        row.speed.file_bytes - rows[row.digest].bytes
        for row in summary.speeds
        if isinstance(row.speed, Speed)
    }
    assert len(extra) == 1  # tokenizer and names are the same in every file
    assert min(extra) > 0


def test_a_table_of_times_comes_of_it_and_people_see_both(summary: Summary) -> None:
    assert set(summary.latency) == set(TIMES)
    said = render(summary)
    assert "run in llama.cpp" in said
    assert "table of times, generated tokens: from" in said
    assert summary.result is not None
    assert "tokens/s and" in summary.result.verdict
    assert any("--to llama.cpp" in line for line in summary.result.next)


def test_no_file_is_left_and_nothing_is_run_again(finished: tuple[Settings, Path]) -> None:
    settings, folder = finished
    assert list((folder / "hardware").iterdir()) == []
    with Store.open(folder / RUN_FILE) as store:
        before = store.get_fit("hardware")
        store.forget(("finished", "result"), ())
    run_search(settings, say=lambda line: None)
    with Store.open(folder, mode="ro") as store:
        assert store.get_fit("hardware") == before  # clocks never agree twice


def test_a_plan_that_could_not_be_run_is_tried_again(finished: tuple[Settings, Path], tmp_path: Path) -> None:
    settings, folder = finished
    shutil.copytree(folder, tmp_path / folder.name)
    with Store.open(tmp_path / folder.name / RUN_FILE) as store:
        held = store.get_fit("hardware")
        held["runs"][0] = {"digest": held["runs"][0]["digest"], "file": "x.gguf", "reason": "memory ran out"}
        store.add_fit("hardware", held)
        store.forget(("finished", "result"), ())
    moved = run_search(
        Settings.from_dict({**settings.to_dict(), "runs": str(tmp_path)}), say=lambda line: None
    )
    with Store.open(moved, mode="ro") as store:
        assert all(isinstance(row.speed, Speed) for row in summarize(store).speeds)


def test_other_work_is_run_anew(finished: tuple[Settings, Path]) -> None:
    settings, folder = finished
    (folder / "hardware" / "left by a killed run.gguf").touch()
    data = {**settings.to_dict(), "validate": {**SHORT["validate"], "prompt": 8}}
    run_search(Settings.from_dict(data), say=lambda line: None)
    with Store.open(folder, mode="ro") as store:
        runs = [speed_of(row) for row in store.get_fit("hardware")["runs"]]
    assert all(isinstance(speed, Speed) and speed.prompt == 8 for speed in runs)
    assert list((folder / "hardware").iterdir()) == []
    run_search(settings, say=lambda line: None)  # for the tests that share this folder


def test_settings_without_hardware_show_no_speeds_of_earlier_ones(
    finished: tuple[Settings, Path], tmp_path: Path
) -> None:
    settings, folder = finished
    shutil.copytree(folder, tmp_path / folder.name)
    data = {**settings.to_dict(), "runs": str(tmp_path), "validate": {}}
    moved = run_search(Settings.from_dict(data), say=lambda line: None)
    with Store.open(moved, mode="ro") as store:
        assert summarize(store).speeds == ()


def test_other_types_on_offer_forget_the_times_of_those_before(
    settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    budget = {"weights": "120000B", "tokens_per_second": 1.0}
    settings = settings_of(tmp_path, **{**SHORT, "budget": budget})
    run_search(settings, say=lambda line: None)
    space = {"weights": {**SHORT["space"]["weights"], "types": ["Q5_0", "Q8_0"]}}
    folder = run_search(Settings.from_dict({**settings.to_dict(), "space": space}), say=lambda line: None)
    with Store.open(folder, mode="ro") as store:
        assert "Q4_0" not in store.get_fit("latency_generate")["types"]
        assert all(isinstance(row.speed, Speed) for row in summarize(store).speeds)


def test_a_run_of_before_there_were_these_keys_is_still_finished(
    finished: tuple[Settings, Path], tmp_path: Path
) -> None:
    settings, folder = finished
    shutil.copytree(folder, tmp_path / folder.name)
    moved = Settings.from_dict({**settings.to_dict(), "runs": str(tmp_path)})
    with Store.open(tmp_path / folder.name / RUN_FILE) as store:
        held = store.get("finished")
        del held["budget"]["tokens_per_second"]
        store.put("finished", held)
    said: list[str] = []
    run_search(moved, say=said.append)
    assert any("this run is finished" in line for line in said)


def test_too_few_plans_for_a_table_are_refused_before_anything_is_loaded(
    settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    pinned = ("embed", "layers.[12].*", "layers.0.mlp.*", "layers.0.attn.[kvo]_proj")
    only = {"types": ["Q4_0", "Q8_0"], "pin": dict.fromkeys(pinned, "Q8_0")}
    budget = {"weights": "1MiB", "tokens_per_second": 1.0}
    settings = settings_of(tmp_path, **{**SHORT, "budget": budget, "space": {"weights": only}})
    with pytest.raises(InputError, match="only 2 plans, too few to make a table of times"):
        run_search(settings, dry=True, say=lambda line: None)


def test_a_bound_on_speed_that_can_be_kept_is_kept(
    settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    budget = {"weights": "120000B", "tokens_per_second": 1.0, "latency": "60s"}
    folder = run_search(settings_of(tmp_path, **{**SHORT, "budget": budget}), say=lambda line: None)
    with Store.open(folder, mode="ro") as store:
        summary = summarize(store)
        assert store.get("speed_reach")["kept"]
    assert summary.result is not None
    assert summary.result.fits
    assert "1 tokens/s and 60000 ms to the first token asked for" in summary.result.verdict
    assert all("generate" in row.predicted for row in summary.speeds)
    assert "predicted against measured:" in render(summary)


def test_what_cannot_be_kept_gives_the_least_violating_plan_labelled(
    settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    said: list[str] = []
    budget = {"weights": "120000B", "tokens_per_second": 1e8}
    settings = settings_of(tmp_path, **{**SHORT, "budget": budget})
    with pytest.raises(InfeasibleError, match="no plan that was run keeps the bound on speed"):
        run_search(settings, say=said.append)
    with Store.open(tmp_path / "tiny", mode="ro") as store:
        result = store.get("result")
        assert not store.get("speed_reach")["kept"]
    assert result["too_slow"]
    assert not result["fits"]
    assert result["verdict"].startswith("too slow: plan ")
    assert "\n".join(said).count("too slow: plan ") == 1
    # Another budget is answered with what comes nearest, too.
    with Store.open(tmp_path / "tiny", mode="ro") as store:
        other = resolve(store, Budget(weights=110_000))
    assert other.size <= 110_000
    assert "cannot be kept" in other.render()
    # A finished run says the same when it is shown again.
    with pytest.raises(InfeasibleError, match="no plan that was run"):
        run_search(settings, say=said.append)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"validate": {"hardware": ["llama.cpp"]}}, "validate.hardware: llama.cpp needs target: llama.cpp"),
        ({"budget": {"tokens_per_second": 5.0}}, "budget.tokens_per_second needs target: llama.cpp"),
        ({"budget": {"latency": "5ms"}}, "budget.latency needs target: llama.cpp"),
        ({"validate": {"hardware": ["vllm"]}}, "llama.cpp"),
    ],
)
def test_speed_is_only_known_in_the_tool_of_the_target(
    changes: dict[str, Any], words: str, settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        settings_of(tmp_path, **changes)


def test_a_prompt_that_the_model_cannot_hold_is_refused_by_its_key(
    settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    validate = {"hardware": ["llama.cpp"], "prompt": 60, "generate": 16}
    settings = settings_of(tmp_path, **{**SHORT, "validate": validate})
    with pytest.raises(InputError, match=r"validate\.prompt"):
        run_search(settings, dry=True, say=lambda line: None)


def test_bounds_read_as_they_were_given(settings_of: Callable[..., Settings], tmp_path: Path) -> None:
    settings = settings_of(tmp_path, **{**SHORT, "budget": {"tokens_per_second": 12.5, "latency": "200ms"}})
    assert [(b.seconds, b.asked) for b in bounds_of(settings)] == [
        (0.08, "12.5 tokens/s"),
        (0.2, "200 ms to the first token"),
    ]
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
