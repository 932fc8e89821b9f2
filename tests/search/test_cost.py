from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tightfit.proxies.prescreen import LABELS
from tightfit.search import cost as module
from tightfit.search.cost import (
    FEWEST_PLANS,
    PLANS_PER_FORMAT,
    Cost,
    check_disk,
    estimate_cost,
    files_at_once,
)
from tightfit.search.settings import Settings
from tightfit.spaces import InputError, Space, build_space, read_geometry

CONFIG = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "tie_word_embeddings": True,
}


def settings(**sections: Any) -> Settings:
    return Settings.from_dict({"budget": {"effective_bits": 4}, **sections})


def space(given: Settings, **changes: Any) -> Space:
    geometry = read_geometry({**CONFIG, **changes})
    return build_space(geometry, given.weight_rules(), given.target_rules())


def estimate(**sections: Any) -> Cost:
    given = settings(**sections)
    return estimate_cost(given, space(given))


def test_tokens_are_those_that_the_settings_ask_for() -> None:
    cost = estimate(
        text={"sequence": 8, "calibration": 100, "selection": 50, "validation": 30, "holdout": 20},
        sense={
            "prescreen_tokens": 10,
            "marginals": 7,
            "marginal_tokens": 11,
            "fit_plans": 5,
            "fit_tokens": 13,
            "certificate_plans": 6,
        },
        search={"finalists": 3},
        space={"weights": {"bits": [3, 4, 5]}},
    )
    assert cost.tokens["prepare"] == 100
    # The pre-screen takes a forward pass, a backward one per draw of labels, and one pass per option.
    assert cost.tokens["sense"] == 10 * (1 + LABELS + 3) + 7 * 11
    assert cost.tokens["fit"] == 5 * 13
    assert cost.tokens["certify"] == 6 * 13
    assert cost.tokens["explore"] >= 3 * 50
    assert cost.tokens["validate"] >= 3 * 30 + 20


@pytest.mark.parametrize(
    "more",
    [
        {"sense": {"marginals": 640}},
        {"sense": {"fit_plans": 320}},
        {"sense": {"certificate_plans": 320}},
        {"text": {"calibration": 20480}},
        {"text": {"holdout": 40960}},
        {"search": {"finalists": 60}},
        {"space": {"weights": {"bits": [2, 3, 4, 5, 6, 8]}}},
    ],
)
def test_asking_for_more_costs_more(more: dict[str, Any]) -> None:
    assert sum(estimate(**more).tokens.values()) > sum(estimate().tokens.values())


def test_seconds_are_positive_and_stored_rounded() -> None:
    cost = estimate()
    assert math.isfinite(cost.seconds)
    assert cost.seconds > 0
    assert cost.to_dict() == {
        "forward_tokens": dict(cost.tokens),
        "estimate_seconds": round(cost.seconds, 1),
        "tool_tokens": 0,
    }


def for_llamacpp(**sections: Any) -> Settings:
    types = sections.pop("types", ["Q4_0", "Q5_0", "Q8_0"])
    return settings(target="llama.cpp", space={"weights": {"types": types}}, **sections)


def test_running_files_costs_every_token_of_every_round() -> None:
    validate = {"hardware": ["llama.cpp"], "prompt": 20, "generate": 10, "rounds": 4}
    finalists = for_llamacpp(validate=validate, search={"finalists": 3})
    cost = estimate_cost(finalists, space(finalists))
    # Two baselines of each kind beside the finalists; the first round warms up.
    assert cost.tool_tokens == (3 + 4) * (4 + 1) * (20 + 10)
    assert files_at_once(finalists, space(finalists)) == 7
    bounded = for_llamacpp(
        budget={"effective_bits": 6, "latency": "1s"}, validate=validate, search={"finalists": 3}
    )
    timed = max(FEWEST_PLANS, 3 * PLANS_PER_FORMAT)
    assert estimate_cost(bounded, space(bounded)).tool_tokens == (3 + 4 + timed) * (4 + 1) * (20 + 10)
    assert files_at_once(bounded, space(bounded)) == timed


def test_many_formats_are_timed_in_many_files() -> None:
    types = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "F16"]
    given = for_llamacpp(types=types, budget={"effective_bits": 6, "tokens_per_second": 5})
    assert files_at_once(given, space(given)) == PLANS_PER_FORMAT * len(types)


def test_a_space_of_few_plans_has_no_more_files() -> None:
    given = settings(
        target="llama.cpp",
        budget={"effective_bits": 6, "latency": "1s"},
        space={"weights": {"types": ["Q4_0", "Q8_0"], "pin": {"layers.*": "Q8_0"}}},
        search={"finalists": 1},
    )
    assert space(given).size == 2
    assert estimate_cost(given, space(given)).tool_tokens == (1 + 4 + 2) * 6 * (128 + 32)


def test_running_files_takes_time_that_is_counted() -> None:
    validate = {"hardware": ["llama.cpp"], "prompt": 2**20, "generate": 2**20, "rounds": 1000}
    given, plain = for_llamacpp(validate=validate), for_llamacpp()
    assert estimate_cost(given, space(given)).seconds > 3 * estimate_cost(plain, space(plain)).seconds


def test_files_that_do_not_fit_on_the_disk_are_refused_with_both_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"runs": str(tmp_path / "not" / "yet")}
    given = for_llamacpp(validate={"hardware": ["llama.cpp"]}, **runs)
    whole = space(given)
    limit = whole.floor + 10
    free = [10 * limit]
    monkeypatch.setattr(module.shutil, "disk_usage", _usage_of(free))
    check_disk(given, whole, limit)  # ten files, just enough
    free[0] -= 1
    with pytest.raises(InputError, match=r"runs: the 10 files .* take about [\d.]+ KiB, but only [\d.]+ KiB"):
        check_disk(given, whole, limit)
    check_disk(for_llamacpp(**runs), whole, limit)  # runs nothing
    bounded = for_llamacpp(budget={"effective_bits": 6, "latency": "1s"}, **runs)
    free[0] = FEWEST_PLANS * whole.ceiling
    check_disk(bounded, whole, limit)
    free[0] = FEWEST_PLANS * whole.floor
    with pytest.raises(InputError, match="the 12 files"):
        check_disk(bounded, whole, limit)


def test_a_run_that_was_begun_is_not_refused_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = for_llamacpp(validate={"hardware": ["llama.cpp"]}, runs=str(tmp_path))
    monkeypatch.setattr(module.shutil, "disk_usage", _usage_of([1]))
    with pytest.raises(InputError):
        check_disk(given, space(given), 2**20)
    (tmp_path / given.name).mkdir()
    (tmp_path / given.name / "run.db").touch()
    check_disk(given, space(given), 2**20)


def _usage_of(free: list[int]) -> Callable[[Path], SimpleNamespace]:
    return lambda path: SimpleNamespace(free=free[0])


def test_a_larger_model_takes_longer_for_the_same_tokens() -> None:
    given = settings()
    small = estimate_cost(given, space(given))
    # A hundredfold, so that the speed of the machine at the moment does not matter.
    deep = estimate_cost(given, space(given, num_hidden_layers=200))
    assert deep.seconds > 3 * small.seconds
    assert deep.tokens == small.tokens
