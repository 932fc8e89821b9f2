from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tightfit.search.agents import AGENTS, History, Task, get_agent
from tightfit.spaces import WeightRules, build_space, get_target, read_geometry

GAP = 1e-4
"""Relative gap to the optimum that the solvers may leave."""


def test_no_other_agent_has_a_better_plan_under_the_trusted_table(
    task: Task, loss_of: Callable[[Task, Any], float]
) -> None:
    best = loss_of(task, get_agent("exact").propose(task, History(), 1)[0].levels)
    for name in AGENTS:
        for proposal in get_agent(name).propose(task, History(), 20):
            assert best <= loss_of(task, proposal.levels) * (1 + GAP)


@pytest.mark.parametrize("share", [0.0, 0.15, 0.5, 0.9, 1.0])
def test_on_a_small_space_the_plans_are_those_of_enumeration(
    share: float, loss_of: Callable[[Task, Any], float]
) -> None:
    config = {
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "tie_word_embeddings": True,
    }
    rules = WeightRules(bits=(3, 4, 8), zeros=("integer",), pin={"layers.1.attn.v_proj": "4b-g64-int"})
    space = build_space(read_geometry(config), rules, get_target("vllm"))
    losses = [
        np.random.default_rng([31, i]).exponential(1.0, len(d.options)) for i, d in enumerate(space.decisions)
    ]
    task = Task(space, int(space.floor + share * (space.ceiling - space.floor)), {"only": losses})
    every = itertools.product(*(range(len(decision.options)) for decision in space.decisions))
    within = sorted(loss_of(task, levels) for levels in every if space.bytes_of(levels) <= task.limit)
    proposals = get_agent("exact").propose(task, History(), 8)
    found = [loss_of(task, proposal.levels) for proposal in proposals]
    assert found == pytest.approx(within[:8], rel=1e-12)


def test_every_table_has_its_best_plan_among_the_proposals(
    task_of: Callable[..., Task], loss_of: Callable[[Task, Any], float]
) -> None:
    task = task_of("fused", 0.4)
    proposals = get_agent("exact").propose(task, History(), 6)
    assert [p.label for p in proposals[:2]] == ["exact (fitted)", "exact (calibrated)"]
    for name, losses in task.losses.items():
        alone = Task(task.space, task.limit, {name: losses})
        best = loss_of(alone, get_agent("exact").propose(alone, History(), 1)[0].levels)
        assert min(loss_of(alone, p.levels) for p in proposals) == pytest.approx(best, rel=GAP)


def test_tables_that_agree_give_one_plan(task_of: Callable[..., Task]) -> None:
    losses = task_of("fused", 0.4).losses["fitted"]
    labels = [
        p.label for p in get_agent("exact").propose(task_of("fused", 0.4, a=losses, b=losses), History(), 3)
    ]
    assert labels[0] == "exact (a)"
    assert "exact (b)" not in labels
