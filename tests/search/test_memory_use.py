from __future__ import annotations

from collections.abc import Callable

from tightfit.search.memory_use import memory_use
from tightfit.search.store import Store
from tightfit.search.summary import summarize


def test_what_stands_beside_a_plan_is_counted_at_context_and_batch_of_the_budget(
    fake_run: Callable[..., Store],
) -> None:
    beside = summarize(fake_run("inspect", kv=True)).beside
    layer = 2 * 3 * 64 * 4096 * 2 * 2  # K and V of 3 heads of width 64, 4,096 tokens × 2, 2 bytes each
    assert beside.plain == (layer,) * 4
    assert beside.prefill == 4 * layer  # the model is in 16 bits too
    assert beside.plain_bytes(["layers.1.kv", "layers.3.kv"]) == 2 * layer
    # Two tokens at once: residual stream twice, all outputs of a block, logits, scores, a matrix, a cache.
    rows = 576 + 2 * 192 + 576 + 2 * 1536 + 576
    overhead = 4 * 2 * (2 * 576 + rows) + 4 * 2 * 49152 + 4 * 2 * 9 * 4096 + 2 * 576 * 1536 + layer
    assert beside.overhead == overhead
    assert "one layer" in beside.formula
    assert (beside.target, beside.dtype, beside.vocabulary) == ("any", "bfloat16", 49152)


def test_runs_without_caches_have_nothing_beside(fake_run: Callable[..., Store]) -> None:
    store = fake_run("inspect")
    assert memory_use(store.get("space"), store.get("settings")) is None
    assert memory_use(None, None) is None
