from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.exporters.kv.plans import CONFIG, ship_caches, ship_kv

from tightfit.compress.kvcache import OBSERVED
from tightfit.exporters.kv.kvpress import OBSERVED_QUERIES, describe, export, summary
from tightfit.spaces import Load

TOKEN = 2 * 2 * 32 * 2  # bytes of a layer: keys and values of 2 heads of width 32 in 16 bits


def kept_by_kvpress(tokens: int, ratio: float) -> int:
    """``ScorerPress.compress``."""
    return tokens if ratio == 0 else int(tokens * (1 - ratio))


def test_ratios_are_what_is_not_kept(tmp_path: Path) -> None:
    shipment = ship_caches(["k16v16", "k16v16-r32-s0-keep0.3", "k16v16-r32-s0-keep0.25", "k16v16"])
    content = json.loads(export(shipment, tmp_path / "x.json").read_text(encoding="utf-8"))
    assert content["compression_ratios"] == [0, 0.7, 0.75, 0]
    assert content["expressible"]
    planned = 3 * TOKEN * (1000 + 300 + 250 + 1000)
    made = planned - 3 * TOKEN * (300 - kept_by_kvpress(1000, 0.7))  # which is not always 300
    assert content["bytes"] == {"plan": planned, "recipe": made, "difference": made - planned}
    (line,) = summary(shipment, tmp_path / "x.json")
    assert line.startswith("press = PerLayerCompressionPress(SnapKVPress(window_size=32, kernel_size=1), ")
    assert line.endswith(f"json.load(open('{tmp_path}/x.json'))['compression_ratios'])")


def test_bits_cannot_be_carried_and_cost_what_is_said() -> None:
    shipment = ship_caches(["k4v4-g32-r32-s4-keep0.5", "k2v2-g32-r32-s4", "shared", "k16v16"])
    content = describe(shipment)
    assert content["compression_ratios"] == [0.5, 0, 0, 0]
    assert content["cannot_carry"] == [
        "2 of 4 layers are quantized",
        "1 of 4 layers read the cache of the layer below",
        "1 of 4 layers never evict their first tokens",
    ]
    assert content["bytes"]["recipe"] == 3 * TOKEN * (500 + 3 * 1000)
    assert content["bytes"]["plan"] == shipment.space.cache_bytes(shipment.plan)


@pytest.mark.parametrize(
    ("option", "context", "kept"),
    [
        ("k16v16-r32-s4-cutoff", 1000, 4),
        ("k16v16-r96-s4-keep0.25", 300, 100),
        ("k16v16-r64-s0-keep0.1", 67, 64),
    ],
)
def test_where_keep_is_not_what_decides_the_tokens_of_the_context_do(
    option: str, context: int, kept: int
) -> None:
    content = describe(ship_caches([option] * 4, load=Load(context)))
    ratio = content["compression_ratios"][0]
    assert kept_by_kvpress(context, ratio) == kept
    assert content["bytes"]["difference"] == 0


def test_layers_with_a_window_are_left_alone() -> None:
    config = {**CONFIG, "model_type": "mistral", "sliding_window": 200}
    content = describe(ship_caches(["k16v16-r32-s0-keep0.5"] * 4, config=config))
    assert content["compression_ratios"] == [0] * 4
    assert content["cannot_carry"] == ["layers with a sliding window evict tokens"]
    assert content["bytes"]["recipe"] == 4 * 3 * 200 * TOKEN


def test_a_prefix_in_common_is_stored_by_every_sequence() -> None:
    content = describe(ship_caches(["k16v16"] * 4, load=Load(1000, 3, 400)))
    assert content["cannot_carry"] == ["sequences store the prefix that they have in common once"]
    assert content["bytes"]["difference"] == 4 * 2 * 400 * TOKEN


def test_tokens_are_judged_by_as_many_queries() -> None:
    assert OBSERVED_QUERIES == OBSERVED


@pytest.mark.parametrize("seed", range(8))
def test_ratios_of_any_plan_are_shares_by_layer(seed: int) -> None:
    content = describe(ship_kv("any", seed))
    assert len(content["compression_ratios"]) == 4
    assert all(0 <= ratio < 1 for ratio in content["compression_ratios"])
    made = sum(kept_by_kvpress(1000, ratio) for ratio in content["compression_ratios"])
    assert content["bytes"]["recipe"] == 3 * TOKEN * made
