from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.spaces import PLAN_VERSION, InputError, Plan

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
choices = st.dictionaries(names, names, max_size=8)


def test_digest_is_the_hash_of_the_canonical_json() -> None:
    plan = Plan((("embed", "8b-g64-float"), ("layers.0.attn.q_proj", "4b-g64-float")))
    text = '{"choices":{"embed":"8b-g64-float","layers.0.attn.q_proj":"4b-g64-float"},"tightfit_plan":1}'
    assert plan.digest == hashlib.sha256(text.encode()).hexdigest()
    # Written out, so that a change of format cannot pass for the same plan.
    assert plan.short == "cde5c1cfd1f0"


@given(choices=choices, seed=st.randoms(use_true_random=False))
def test_digest_does_not_depend_on_the_order(choices: dict[str, str], seed: Any) -> None:
    shuffled = list(choices.items())
    seed.shuffle(shuffled)
    assert Plan(tuple(shuffled)).digest == Plan(tuple(choices.items())).digest


@given(first=choices, second=choices)
def test_different_plans_have_different_digests(first: dict[str, str], second: dict[str, str]) -> None:
    same = Plan(tuple(first.items())).digest == Plan(tuple(second.items())).digest
    assert same == (first == second)


@given(choices=choices)
def test_a_plan_reads_back_from_its_json(choices: dict[str, str]) -> None:
    plan = Plan(tuple(choices.items()))
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.digest == plan.digest


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "tightfit_plan is None, this version reads 1"),
        ({"tightfit_plan": PLAN_VERSION + 1, "choices": {}}, "tightfit_plan is 2, this version reads 1"),
        ({"tightfit_plan": PLAN_VERSION}, "choices must map decision names to option names"),
        ({"tightfit_plan": PLAN_VERSION, "choices": ["embed"]}, "choices must map"),
        ({"tightfit_plan": PLAN_VERSION, "choices": {"embed": 4}}, "choices must map"),
    ],
)
def test_what_is_no_plan_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Plan.from_dict(data)
