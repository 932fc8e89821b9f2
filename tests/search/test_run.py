"""Whole runs on a tiny trained model: real text, real measurements, real store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tightfit.cli import main
from tightfit.search.identity import adopt, compare_settings
from tightfit.search.inspection import inspect_settings
from tightfit.search.run import run_search
from tightfit.search.settings import Settings
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize
from tightfit.spaces import InputError, Plan

BUDGET = 90_000
TEXT = {"sequence": 64, "calibration": 512, "selection": 1024, "validation": 1024, "holdout": 1024}
SENSE = {
    "prescreen_tokens": 512,
    "marginals": 16,
    "marginal_tokens": 1024,
    "fit_plans": 16,
    "fit_tokens": 1024,
    "certificate_plans": 12,
}


def pydoc_words() -> list[str]:
    """Different words in their order of first use, so that no stretch of text repeats another."""
    from pydoc_data import topics

    return list(dict.fromkeys(" ".join(topics.topics.values()).split()))


@pytest.fixture(scope="session")
def finished(
    settings_of: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A finished run: its folder and everything it said."""
    said: list[str] = []
    folder = run_search(settings_of(tmp_path_factory.mktemp("runs")), say=said.append)
    return folder, "\n".join(said)


@pytest.fixture
def summary(finished: tuple[Path, str]) -> Summary:
    with Store.open(finished[0], mode="ro") as store:
        return summarize(store)


def test_the_feasible_range_and_the_cost_come_first_and_the_verdict_last(finished: tuple[Path, str]) -> None:
    said = finished[1]
    order = ["feasible range", "cost: about", "predicted", "holdout:", "fits: plan", "next:", "report:"]
    positions = [said.find(word) for word in order]
    assert -1 not in positions
    assert positions == sorted(positions)


def test_the_plan_keeps_its_budget_and_its_bytes_are_those_of_the_packed_tensors(summary: Summary) -> None:
    assert summary.result is not None
    assert summary.final is not None
    assert summary.final.bytes <= BUDGET
    assert summary.result.recounted_bytes == summary.final.bytes
    assert summary.result.fits


def test_what_is_reported_is_the_chosen_plan_on_the_holdout_text(summary: Summary) -> None:
    """The last candidate, or a number from text that the search has seen, must not be reported."""
    assert summary.front is not None
    assert summary.result is not None
    assert summary.front.split == "holdout"
    assert summary.final is not None
    assert summary.final.digest == summary.result.final
    assert f"{summary.final.measured.kl:.4f}" in summary.result.verdict
    assert summary.final.short in summary.result.verdict


def test_uniform_plans_and_mixes_are_in_the_race_at_no_more_than_the_same_bytes(summary: Summary) -> None:
    assert summary.front is not None
    kinds = {row.kind for row in summary.front.rows}
    assert kinds == {"searched", "uniform", "mix"}
    assert all(row.bytes <= BUDGET for row in summary.front.rows)


def test_the_final_plan_is_no_worse_than_any_baseline(summary: Summary) -> None:
    assert summary.front is not None
    assert summary.final is not None
    baselines = [row.measured.kl for row in summary.front.rows if row.kind != "searched"]
    assert summary.final.measured.kl <= min(baselines)


def test_tokens_asked_and_used_are_both_reported(summary: Summary) -> None:
    assert summary.text is not None
    assert summary.text.splits is not None
    for name in ("calibration", "selection", "validation", "holdout"):
        assert summary.text.splits[name]["used"] == summary.text.splits[name]["asked"]


def test_both_certificates_the_link_and_the_synergy_are_stored(summary: Summary) -> None:
    assert summary.variance is not None
    assert summary.band is not None
    assert summary.link is not None
    assert summary.link["synergy"] > 0
    assert summary.sensing is not None
    assert -1 <= summary.sensing["split_half_tau"] <= 1


def test_the_report_shows_the_verdict_and_reaches_for_no_other_host(
    finished: tuple[Path, str], summary: Summary
) -> None:
    page = (finished[0] / "report.html").read_text(encoding="utf-8")
    assert summary.result is not None
    assert summary.result.chosen[:12] in page
    assert "<script src" not in page
    assert '<link rel="stylesheet"' not in page


def test_the_same_seed_gives_the_same_plan_and_the_same_losses(
    finished: tuple[Path, str], settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    again = run_search(settings_of(tmp_path), say=lambda text: None)
    with Store.open(finished[0], mode="ro") as first, Store.open(again, mode="ro") as second:
        assert first.get("result")["chosen"] == second.get("result")["chosen"]
        losses = [{(m.plan, m.split): m.kl for m in store.measurements()} for store in (first, second)]
    assert losses[0] == losses[1]


def test_a_finished_run_started_again_measures_nothing(
    finished: tuple[Path, str], settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    shutil.copytree(finished[0], tmp_path / "tiny")
    with Store.open(tmp_path / "tiny") as store:
        before = [(m.plan, m.split, m.kl) for m in store.measurements()]
        result = store.get("result")
    run_search(settings_of(tmp_path), say=lambda text: None)
    with Store.open(tmp_path / "tiny") as store:
        assert [(m.plan, m.split, m.kl) for m in store.measurements()] == before
        assert store.get("result")["chosen"] == result["chosen"]


@pytest.mark.parametrize(("field", "value"), [("seed", 1), ("target", "vllm")])
def test_a_folder_with_a_run_of_other_settings_is_refused_and_the_field_named(
    finished: tuple[Path, str],
    settings_of: Callable[..., Settings],
    tmp_path: Path,
    field: str,
    value: object,
) -> None:
    shutil.copytree(finished[0], tmp_path / "tiny")
    changes: dict[str, Any] = {field: value}
    if field == "target":
        changes["space"] = {"weights": {"bits": [2, 3, 4], "pin": {"embed": "8b-g64-int"}}}
    with pytest.raises(InputError, match=field):
        run_search(settings_of(tmp_path, **changes), say=lambda text: None)


def test_other_weights_under_the_same_name_are_refused(
    finished: tuple[Path, str],
    settings_of: Callable[..., Settings],
    tiny_model: str,
    tmp_path: Path,
) -> None:
    """Scores are keyed by content: a folder whose weights changed is another model."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(finished[0], tmp_path / "tiny")
    other = tmp_path / "model"
    shutil.copytree(tiny_model, other)
    with Store.open(tmp_path / "tiny") as store:
        settings = store.get("settings")
        store.put("settings", {**settings, "model": str(other)})
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * 1.01
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="model digest"):
        run_search(settings_of(tmp_path, model=str(other)), say=lambda text: None)


def test_another_text_in_the_same_file_is_refused(
    settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    """Measurements are keyed by content: the same file name with other words is another text."""
    corpus = tmp_path / "corpus.txt"
    text = {**TEXT, "source": str(corpus)}
    words = [f"{word} of the {other}" for word in pydoc_words() for other in ("first", "second", "third")]
    corpus.write_text("\n\n".join(" ".join(words[i : i + 400]) for i in range(0, 24_000, 400)))
    quick = {**SENSE, "marginals": 4, "fit_plans": 4, "certificate_plans": 4}
    run_search(settings_of(tmp_path, text=text, sense=quick), say=lambda line: None)
    corpus.write_text(corpus.read_text().replace("second", "fourth"))
    with pytest.raises(InputError, match="another text"):
        run_search(settings_of(tmp_path, text=text, sense=quick), say=lambda line: None)


def test_a_first_attempt_that_failed_leaves_the_folder_free(
    settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt"):
        run_search(settings_of(tmp_path, text={**TEXT, "source": "nowhere.txt"}), say=lambda line: None)
    with pytest.raises(InputError, match="windows of 512 tokens are longer"):
        run_search(settings_of(tmp_path, text={**TEXT, "sequence": 512}), say=lambda line: None)
    with Store.open(tmp_path / "tiny") as store:
        assert store.get("identity") is None


def test_another_budget_takes_the_old_results_out_and_keeps_the_measurements(
    finished: tuple[Path, str], settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    shutil.copytree(finished[0], tmp_path / "tiny")
    settings = settings_of(tmp_path, budget={"weights": "80000B"})
    inspection = inspect_settings(settings)
    with Store.open(tmp_path / "tiny") as store:
        made = len(store.measurements())
        change = compare_settings(store, settings)
        assert store.get("result") is not None  # looking changes nothing
        adopt(store, settings, change, inspection.space, inspection.limit, inspection.budget_text)
        assert store.get("result") is None
        assert store.get("solution") is None
        assert store.get_fit("certificate_band") is None
        assert store.trials() == []
        assert len(store.measurements()) == made
    run_search(settings_of(tmp_path, budget={"weights": "80000B"}), say=lambda line: None)
    with Store.open(tmp_path / "tiny", mode="ro") as store:
        summary = summarize(store)
    assert summary.final is not None
    assert summary.final.bytes <= 80_000
    assert summary.front is not None
    assert {row.kind for row in summary.front.rows if row.label.startswith("mix")} == {"mix"}


def test_options_that_lose_nothing_break_no_statistics(
    settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    space = {"weights": {"bits": [3, 4], "pin": {"embed": "8b-g64-int"}, "exclude": ["layers.0.*"]}}
    quick = {**SENSE, "marginals": 4, "fit_plans": 4, "certificate_plans": 4}
    settings = settings_of(tmp_path, space=space, sense=quick, budget={"weights": "230000B"})
    folder = run_search(settings, say=lambda line: None)
    with Store.open(folder, mode="ro") as store:
        assert store.get("result")["fits"]


def test_baselines_take_part_even_where_only_exact_is_asked_for(
    settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    quick = {**SENSE, "marginals": 4, "fit_plans": 4, "certificate_plans": 4}
    search = {"agents": ["exact"], "finalists": 1}
    folder = run_search(settings_of(tmp_path, sense=quick, search=search), say=lambda line: None)
    with Store.open(folder, mode="ro") as store:
        kinds = {row["kind"] for row in store.get("baselines")}
    assert kinds == {"uniform", "mix"}


def test_a_dry_run_writes_nothing(settings_of: Callable[..., Settings], tmp_path: Path) -> None:
    said: list[str] = []
    run_search(settings_of(tmp_path), dry=True, say=said.append)
    assert "feasible range" in "\n".join(said)
    assert not list(tmp_path.iterdir())


def test_a_fused_target_never_splits_its_decisions(
    settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    space = {"weights": {"bits": [2, 3, 4], "pin": {"embed": "8b-g64-int"}}}
    folder = run_search(settings_of(tmp_path, target="vllm", space=space), say=lambda text: None)
    with Store.open(folder, mode="ro") as store:
        plans = [stored.plan for stored in store.plans().values()]
    names = {name for plan in plans for name, _ in plan.choices}
    assert "layers.0.attn.qkv_proj" in names
    assert not any(name.endswith(("q_proj", "gate_proj")) and "qkv" not in name for name in names)


# What the command line shows of a finished run


def test_front_as_text_json_and_csv(finished: tuple[Path, str], summary: Summary) -> None:
    folder = str(finished[0])
    text = CliRunner().invoke(main, ["front", folder])
    rows = json.loads(CliRunner().invoke(main, ["front", folder, "--json"]).output)
    lines = CliRunner().invoke(main, ["front", folder, "--csv"]).output.splitlines()
    assert summary.front is not None
    assert text.exit_code == 0
    measured = sum(len(front.rows) for front in summary.fronts)
    assert len(rows) == len(lines) - 1 == measured


def test_plan_solves_another_budget_without_measuring(finished: tuple[Path, str]) -> None:
    folder = str(finished[0])
    with Store.open(folder, mode="ro") as store:
        before = len(store.measurements())
        floor = store.get("space")["floor"]
    answer = CliRunner().invoke(main, ["plan", folder, "--budget", "80000B", "--json"])
    assert answer.exit_code == 0, answer.output
    assert floor <= json.loads(answer.output)["weight_bytes"] <= 80000
    with Store.open(folder, mode="ro") as store:
        assert len(store.measurements()) == before


def test_plan_of_the_runs_own_budget_is_the_solvers_solution(finished: tuple[Path, str]) -> None:
    folder = str(finished[0])
    answer = json.loads(CliRunner().invoke(main, ["plan", folder, "--budget", f"{BUDGET}B", "--json"]).output)
    with Store.open(folder, mode="ro") as store:
        assert answer["digest"] == store.get("solution")["digest"]


def test_plan_below_the_floor_exits_with_3(finished: tuple[Path, str]) -> None:
    answer = CliRunner().invoke(main, ["plan", str(finished[0]), "--budget", "1kB"])
    assert answer.exit_code == 3
    assert "floor" in answer.output


def test_export_writes_the_final_plan(finished: tuple[Path, str], summary: Summary, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    answer = CliRunner().invoke(main, ["export", str(finished[0]), "--to", "json", "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    data = json.loads(out.read_text())
    assert summary.result is not None
    assert summary.final is not None
    assert Plan.from_dict(data).digest == summary.result.final
    assert data["weight_bytes"] == summary.final.bytes


def test_report_command_shows_the_same_verdict(finished: tuple[Path, str], summary: Summary) -> None:
    answer = CliRunner().invoke(main, ["report", str(finished[0])])
    assert answer.exit_code == 0, answer.output
    assert summary.result is not None
    assert summary.result.verdict in answer.output
