"""The number of workers changes nothing but the time; real Ray, a tiny trained model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tightfit.search.run import run_search
from tightfit.search.settings import Settings
from tightfit.search.store import Store

SENSE = {
    "prescreen_tokens": 256,
    "marginals": 8,
    "marginal_tokens": 512,
    "fit_plans": 8,
    "fit_tokens": 512,
    "certificate_plans": 4,
}
SEARCH = {"agents": ["exact", "evolution", "relinearize"], "evaluations": 12, "batch": 4, "finalists": 2}


def found(folder: Path) -> Any:
    with Store.open(folder, mode="ro") as store:
        documents = {(m.plan, m.split, m.protocol): (m.documents, m.kl_p99) for m in store.measurements()}
        return store.get("result")["chosen"], documents, [(t.agent, t.round, t.plan) for t in store.trials()]


@pytest.fixture(scope="module")
def alone(settings_of: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a run finds that measures everything in its own process."""
    settings = settings_of(tmp_path_factory.mktemp("alone"), sense=SENSE, search=SEARCH)
    return found(run_search(settings, say=lambda text: None))


@pytest.mark.parametrize(
    "workers", [{"count": 1}, {"count": 2}, {"count": 0, "validation": 2}], ids=["1", "2", "validation"]
)
def test_any_number_of_workers_finds_the_same_plan_and_the_same_losses(
    settings_of: Callable[..., Settings], alone: Any, tmp_path: Path, workers: dict[str, int]
) -> None:
    settings = settings_of(tmp_path, sense=SENSE, search=SEARCH, workers=workers)
    assert found(run_search(settings, say=lambda text: None)) == alone
