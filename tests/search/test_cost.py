from __future__ import annotations

import math
from typing import Any

import pytest

from tightfit.proxies.prescreen import LABELS
from tightfit.search.cost import Cost, estimate_cost
from tightfit.search.settings import Settings
from tightfit.spaces import Space, build_space, read_geometry

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
    }


def test_a_larger_model_takes_longer_for_the_same_tokens() -> None:
    given = settings()
    small = estimate_cost(given, space(given))
    # A hundredfold, so that the speed of the machine at the moment does not matter.
    deep = estimate_cost(given, space(given, num_hidden_layers=200))
    assert deep.seconds > 3 * small.seconds
    assert deep.tokens == small.tokens
