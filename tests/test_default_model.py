"""The whole path on the real default model, with as few tokens as still mean something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from tightfit.cli import main
from tightfit.compress import Replica, compress_matrix
from tightfit.search.run import run_search
from tightfit.search.settings import Settings
from tightfit.search.store import Store
from tightfit.search.summary import summarize
from tightfit.spaces import WeightOption, parse_size
from tightfit.workers.models import load_model

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

SETTINGS: dict[str, Any] = {
    "name": "default-model",
    "model": "smollm2-135m-offgrid",
    "budget": {"weights": "76MiB"},
    "space": {"weights": {"bits": [3, 4, 5], "pin": {"embed": "8b-g64-float"}}},
    "text": {"calibration": 512, "selection": 512, "validation": 512, "holdout": 1024},
    "sense": {
        "prescreen_tokens": 256,
        "marginals": 6,
        "marginal_tokens": 256,
        "fit_plans": 6,
        "fit_tokens": 256,
        "certificate_plans": 8,
    },
    # One turn of two plans for each agent that learns; the last stage has workers by default.
    "search": {
        "agents": ["exact", "relinearize", "evolution", "optuna:tpe"],
        "finalists": 3,
        "evaluations": 6,
        "batch": 2,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = Settings.from_dict({**SETTINGS, "runs": str(tmp_path_factory.mktemp("runs"))})
    return run_search(settings, say=lambda text: None)


def test_a_run_beats_uniform_and_mixes_within_the_budget(folder: Path) -> None:
    with Store.open(folder, mode="ro") as store:
        summary = summarize(store)
    assert summary.front is not None
    assert summary.result is not None
    assert summary.final is not None
    assert summary.final.bytes == summary.result.recounted_bytes <= parse_size("76MiB")
    baselines = [row.measured.kl for row in summary.front.rows if row.kind != "searched"]
    assert summary.final.measured.kl <= min(baselines)
    assert summary.final.measured.kl < 1


def test_every_agent_had_its_turn_on_it(folder: Path) -> None:
    with Store.open(folder, mode="ro") as store:
        turns = [trial.agent for trial in store.trials() if trial.agent in SETTINGS["search"]["agents"][1:]]
        assert store.failures() == []
    assert turns == ["relinearize"] * 2 + ["evolution"] * 2 + ["optuna:tpe"] * 2


def test_the_exported_plan_has_the_reported_bytes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    answer = CliRunner().invoke(main, ["export", str(folder), "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    plan = json.loads(out.read_text())
    with Store.open(folder, mode="ro") as store:
        assert plan["weight_bytes"] == store.get("result")["recounted_bytes"]
    assert len(plan["sites"]) == 211


def test_another_budget_is_solved_from_stored_scores(folder: Path) -> None:
    answer = CliRunner().invoke(main, ["plan", str(folder), "--budget", "80MiB", "--json"])
    assert answer.exit_code == 0, answer.output
    assert parse_size("78MiB") < json.loads(answer.output)["weight_bytes"] <= parse_size("80MiB")


def test_its_own_grid_is_reproduced_exactly_at_four_bits_group_32() -> None:
    """The default model was 4-bit before: there only the off-grid copy can tell quantizers apart."""
    loaded = load_model("smollm2-135m")
    weight = Replica(loaded.model, loaded.geometry).original("layers.3.mlp.up_proj")
    exact = compress_matrix(weight, WeightOption(4, 32, "float"), None).dequantize()
    assert torch.equal(exact, weight)
    coarser = compress_matrix(weight, WeightOption(4, 64, "float"), None).dequantize()
    assert not torch.equal(coarser, weight)
