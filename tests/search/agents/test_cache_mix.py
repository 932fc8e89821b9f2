from __future__ import annotations

import numpy as np
import pytest

from tightfit.search.agents import History, Task, get_agent
from tightfit.search.agents.cache_mix import cache_mixes
from tightfit.spaces import KvRules, Load, Space, WeightRules, build_space, get_target, read_geometry

CONFIG = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4,
    "num_hidden_layers": 6, "num_key_value_heads": 2, "vocab_size": 256, "tie_word_embeddings": True,
    "torch_dtype": "float32", "max_position_embeddings": 512,
}  # fmt: skip
RULES = WeightRules((3, 4), groups=(32,))


def make_space(kv: KvRules | None, target: str = "any") -> Space:
    rules = RULES if target != "llama.cpp" else WeightRules(types=("Q8_0", "Q4_0"))
    return build_space(read_geometry(CONFIG), rules, get_target(target), kv, Load(512, 8))


def make_task(space: Space, share: float) -> Task:
    limit = int(space.floor + share * (space.ceiling - space.floor))
    losses = {"table": [np.zeros(len(decision.options)) for decision in space.decisions]}
    return Task(space, limit, losses)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9])
def test_every_rule_keeps_the_budget_and_falls_with_depth(share: float) -> None:
    task = make_task(make_space(KvRules((2, 4, 8, 16), (0.25, 0.5, 0.75, 1.0), residual=16)), share)
    found = list(cache_mixes(task))
    assert found
    caches = task.space.kv_decisions
    for levels, words in found:
        assert task.keeps(levels)
        chosen = [d.kv_options[i] for d, i in zip(caches, levels[-len(caches) :], strict=True)]
        if "wide ends" in words:
            assert chosen[0].cache_bytes(task.space.geometry.attention[0], 512) >= max(
                option.cache_bytes(task.space.geometry.attention[0], 512) for option in chosen[2:4]
            )
    pyramids = [levels for levels, words in found if "pyramid" in words]
    assert pyramids
    for levels in pyramids:
        keeps = [d.kv_options[i].keep for d, i in zip(caches, levels[-len(caches) :], strict=True)]
        assert keeps[0] >= keeps[-1]


def test_they_are_among_the_mixes() -> None:
    task = make_task(make_space(KvRules((2, 4, 16), (0.5, 1.0), residual=16)), 0.4)
    labels = [proposal.label for proposal in get_agent("mix").propose(task, History(), 10_000)]
    assert any("caches by wide ends" in label for label in labels)
    assert any("caches by pyramid k4v4" in label for label in labels)


@pytest.mark.parametrize(
    ("kv", "target"), [(None, "any"), (KvRules((4, 8, 16)), "llama.cpp")], ids=["no caches", "one decision"]
)
def test_there_are_none_where_layers_have_no_caches_of_their_own(kv: KvRules | None, target: str) -> None:
    assert not list(cache_mixes(make_task(make_space(kv, target), 0.5)))
