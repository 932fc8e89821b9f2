from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.exporters.kv.plans import CONFIG, ship_caches, ship_kv

from tightfit.exporters.kv.vllm import describe, export, summary

TOKENS, HEADS, WIDTH = 3 * 1000, 2, 32
LAYER = {
    "16": 2 * TOKENS * HEADS * WIDTH * 2,
    "int8_per_token_head": 2 * TOKENS * HEADS * (WIDTH + 4),
    "int4_per_token_head": 2 * TOKENS * HEADS * (WIDTH // 2 + 4),
}


def told(words: list[str]) -> tuple[str, list[int]]:
    """The type, and the layers that keep 16 bits."""
    assert words[0] == "--kv-cache-dtype"
    assert words[-4:] == ["--max-model-len", "1000", "--max-num-seqs", "3"]
    rest = words[2:-4]
    assert rest[:1] in ([], ["--kv-cache-dtype-skip-layers"])
    return words[1], [int(word) for word in rest[1:]]


@pytest.mark.parametrize(("bits", "kind"), [(8, "int8_per_token_head"), (4, "int4_per_token_head")])
def test_a_plan_for_vllm_is_carried_whole(bits: int, kind: str, tmp_path: Path) -> None:
    packed = f"k{bits}v{bits}-token"
    shipment = ship_caches(["k16v16", packed, packed, "k16v16"], "vllm")
    content = json.loads(export(shipment, tmp_path / "x.json").read_text(encoding="utf-8"))
    assert told(content["arguments"]) == (kind, [0, 3])
    made = 2 * LAYER["16"] + 2 * LAYER[kind]
    assert content["bytes"] == {"plan": made, "recipe": made, "difference": 0}
    assert made == shipment.space.cache_bytes(shipment.plan)
    assert content["expressible"]
    (line,) = summary(shipment, tmp_path / "x.json")
    assert line == (
        f"vllm serve tiny --kv-cache-dtype {kind} --kv-cache-dtype-skip-layers 0 3 --max-model-len 1000 "
        "--max-num-seqs 3"
    )


def test_all_layers_alike_skip_none() -> None:
    assert told(describe(ship_caches(["k8v8-token"] * 4, "vllm"))["arguments"]) == ("int8_per_token_head", [])
    assert told(describe(ship_caches(["k16v16"] * 4, "vllm"))["arguments"]) == ("auto", [])


def test_of_other_plans_layers_stay_floats_where_the_plan_pays_for_it() -> None:
    shipment = ship_caches(["k16v16", "k8v4-g32-r32-s4", "k2v2-g32-r32-s4", "k16v16-r32-s4-keep0.25"])
    content = describe(shipment)
    assert told(content["arguments"]) == ("int4_per_token_head", [0])
    made = LAYER["16"] + 3 * LAYER["int4_per_token_head"]
    planned = shipment.space.cache_bytes(shipment.plan)
    assert content["bytes"] == {"plan": planned, "recipe": made, "difference": made - planned}
    assert content["cannot_carry"] == [
        "1 of 4 layers evict tokens of the prompt",
        "2 of 4 layers are quantized in another layout than token",
        "1 of 4 layers have other bits for keys than for values",
        "quantized layers have 2 widths, and vLLM takes one",
    ]


@pytest.mark.parametrize("seed", range(8))
def test_the_widest_type_within_the_bytes_of_the_plan_is_told(seed: int) -> None:
    shipment = ship_kv("any", seed)
    content = describe(shipment)
    kind, kept = told(content["arguments"])
    planned = shipment.space.cache_bytes(shipment.plan)
    sizes = {one: len(kept) * LAYER["16"] + (4 - len(kept)) * LAYER[one] for one in LAYER}
    assert content["bytes"]["recipe"] == sizes["16" if kind == "auto" else kind]
    within = [size for size in sizes.values() if size <= planned]
    assert content["bytes"]["recipe"] == (max(within) if within else min(sizes.values()))


def test_an_odd_width_fills_no_whole_bytes_with_4_bits() -> None:
    config = {**CONFIG, "head_dim": 33}
    weights = {"groups": (0,), "zeros": ("none",)}
    shipment = ship_caches(["k3v16-g32-r32-s4-keep0.1"] * 4, config=config, weights=weights)
    assert told(describe(shipment)["arguments"])[0] == "int8_per_token_head"
