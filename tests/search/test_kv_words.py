from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tightfit.search.kv_words import cache_topics, pairs_words
from tightfit.search.store import Store
from tightfit.search.summary import Summary, summarize
from tightfit.search.tables import loss_text, nats_text
from tightfit.search.words import model_trust, trust


@pytest.fixture
def summary(fake_run: Callable[..., Store]) -> Summary:
    return summarize(fake_run(kv=True))


def context_words(summary: Summary, **space: object) -> str:
    return dict(cache_topics(replace(summary, space=replace(summary.space, **space))))["Context"]


def test_a_loss_at_the_context_of_the_budget_is_called_an_extrapolation(summary: Summary) -> None:
    words, plan = context_words(summary), summary.probes.plan
    change = plan.full.kl - plan.half.kl
    for part in (
        f"After 1,024 tokens of context the plan loses {loss_text(plan.full.kl, plan.full.kl_se)} nats/token",
        f"after 512, {loss_text(plan.half.kl, plan.half.kl_se)}",
        "4,096 tokens, where nothing was measured. Extrapolated:",
        f"changed the loss by +{nats_text(change)} ± {nats_text(plan.per_doubling.se)}",
        f"after 2 more doublings like that, the plan loses about {nats_text(plan.full.kl + 2 * change)}",
    ):
        assert part in words
    assert "noise" not in words
    assert "one more doubling" in context_words(summary, context=2048)
    assert "counts no more context" in context_words(summary, context=1024)


def test_a_change_within_the_noise_is_said_to_be(summary: Summary) -> None:
    plan = summary.probes.plan
    shift = [plan.full.kl * d.tokens * (0.03, -0.03)[i % 2] for i, d in enumerate(plan.full.documents)]
    rows = tuple(replace(d, kl=d.kl + s) for d, s in zip(plan.full.documents, shift, strict=True))
    near = replace(plan, half=replace(plan.full, documents=rows))
    words = context_words(replace(summary, probes=replace(summary.probes, plan=near)))
    assert "within the noise of this text" in words


def test_copying_is_told_of_reference_plan_and_baseline(summary: Summary) -> None:
    words, probes = dict(cache_topics(summary))["Copying"], summary.probes
    assert f"costs 3.2700 nats/token uncompressed and {nats_text(probes.plan.copying)} with the plan" in words
    assert f"{nats_text(probes.rival.copying)} with the best baseline, {probes.rival.label}" in words
    assert "hardly copies" not in words
    unable = dict(cache_topics(replace(summary, probes=replace(probes, guess=4.0))))["Copying"]
    assert "hardly copies itself" in unable


def test_pairs_are_told_by_their_mean_and_how_many_were_measured(summary: Summary) -> None:
    words = pairs_words(summary.pairs, summary.link)
    assert "correlate by 0.10 on average, measured on 2 blocks (−0.10 to 0.30)" in words
    assert "leaves that out" in words
    coupled = {"model": {"couplings": [{}]}}
    one = pairs_words({"blocks": ["layers.0.kv", "layers.1.kv"], "correlations": [None, 0.4]}, coupled)
    assert "by 0.40 on average, measured on one block; the loss model counts that" in one
    assert pairs_words({"blocks": ["layers.0.kv"], "correlations": [None]}, None) == ""


def test_what_caches_forget_is_part_of_what_a_result_is_worth(
    summary: Summary, fake_run: Callable[..., Store]
) -> None:
    assert trust(summary) == [*model_trust(summary), *cache_topics(summary)]
    assert "Keys, values, cache" in dict(model_trust(summary))
