"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No deadline: a busy machine would fail a test that is right. On CI the examples are always the
# same ones, so that a change is blamed only for what it broke.
settings.register_profile("tightfit", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tightfit")


@pytest.fixture(scope="session")
def tiny_model() -> str:
    """The folder of a tiny model that was really trained, in some seconds, once per machine."""
    from tightfit.workers.lab import TINY, train

    return str(train(TINY))


@pytest.fixture(scope="session")
def settings_of(tiny_model: str) -> Callable[..., Any]:
    """Settings of a whole run on the tiny model that takes seconds, by its folder and what differs."""
    from tightfit.search.settings import Settings

    def make(folder: Path, **changes: Any) -> Settings:
        data: dict[str, Any] = {
            "name": "tiny",
            "runs": str(folder),
            "model": tiny_model,
            "threads": 1,
            "budget": {"weights": "90000B"},
            "space": {"weights": {"bits": [2, 3, 4, 6], "pin": {"embed": "8b-g64-float"}}},
            "text": {
                "sequence": 64,
                "calibration": 512,
                "selection": 1024,
                "validation": 1024,
                "holdout": 1024,
            },
            "sense": {
                "prescreen_tokens": 512,
                "marginals": 16,
                "marginal_tokens": 1024,
                "fit_plans": 16,
                "fit_tokens": 1024,
                "certificate_plans": 12,
            },
            "workers": {"validation": 0},
        }
        return Settings.from_dict({**data, **changes})

    return make


@pytest.fixture(scope="session")
def shipped_run(settings_of: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run for llama.cpp that has come to its end; nobody may change it."""
    from tightfit.search.run import run_search

    settings = settings_of(
        tmp_path_factory.mktemp("shipped"),
        target="llama.cpp",
        budget={"effective_bits": 5.2},
        space={"weights": {"types": ["Q4_0", "Q5_0", "Q8_0"]}},
        sense={
            "prescreen_tokens": 256,
            "marginals": 4,
            "marginal_tokens": 512,
            "fit_plans": 8,
            "fit_tokens": 512,
            "certificate_plans": 6,
        },
        search={"agents": ["exact"]},
    )
    return run_search(settings, say=lambda text: None)
