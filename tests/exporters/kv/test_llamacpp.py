from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.exporters.kv.plans import CONFIG, ship_caches, ship_kv

from tightfit.exporters.kv.llamacpp import TYPES, describe, export, summary
from tightfit.spaces import Load
from tightfit.workers.llamacpp.library import find_library

BLOCK_BYTES = {"f16": 64, "q8_0": 34, "q5_0": 22, "q4_0": 18}  # of 32 channels


def arguments(content: dict[str, Any]) -> dict[str, str]:
    words = content["arguments"]
    return dict(zip(words[::2], words[1::2], strict=True))


def size(keys: str, values: str, tokens: int = 3 * 1000, width: int = 32, layers: int = 4) -> int:
    return tokens * layers * 2 * (width // 32) * (BLOCK_BYTES[keys] + BLOCK_BYTES[values])


@pytest.mark.parametrize(("k", "v"), list(itertools.product(TYPES, TYPES)))
def test_a_plan_for_llama_cpp_is_carried_whole(k: int, v: int, tmp_path: Path) -> None:
    name = f"k{k}v{v}" + ("-block" if min(k, v) < 16 else "")
    shipment = ship_caches([name] * 4, "llama.cpp")
    content = json.loads(export(shipment, tmp_path / "x.json").read_text(encoding="utf-8"))
    told = {"--cache-type-k": TYPES[k], "--cache-type-v": TYPES[v], "--ctx-size": "3000", "--parallel": "3"}
    assert arguments(content) == told | ({"--flash-attn": "on"} if v < 16 else {})
    assert content["expressible"]
    assert content["cannot_carry"] == []
    made = size(TYPES[k], TYPES[v])
    assert content["bytes"] == {"plan": made, "recipe": made, "difference": 0}
    assert made == shipment.space.cache_bytes(shipment.plan)
    (line,) = summary(shipment, tmp_path / "x.json")
    assert line.startswith(f"llama-server -m model.gguf --cache-type-k {TYPES[k]} ")


@pytest.mark.parametrize("seed", range(8))
def test_of_other_plans_the_widest_setting_within_their_bytes_is_told(seed: int) -> None:
    shipment = ship_kv("any", seed)
    content = describe(shipment)
    told = arguments(content)
    planned = shipment.space.cache_bytes(shipment.plan)
    made = size(told["--cache-type-k"], told["--cache-type-v"])
    assert content["bytes"] == {"plan": planned, "recipe": made, "difference": made - planned}
    every = [size(*pair) for pair in itertools.product(BLOCK_BYTES, BLOCK_BYTES)]
    within = [other for other in every if other <= planned]
    assert made == (max(within) if within else min(every))
    assert BLOCK_BYTES[told["--cache-type-k"]] >= BLOCK_BYTES[told["--cache-type-v"]]
    assert content["cannot_carry"]
    assert not content["expressible"]


def test_what_is_left_out_is_said_in_words_and_bytes(tmp_path: Path) -> None:
    shipment = ship_caches(
        ["k4v4-g32-r32-s4-keep0.5", "shared", "k2v2-g32-r32-s4-spread", "k16v16-r32-s4-cutoff"]
    )
    content = describe(shipment)
    assert content["cannot_carry"] == [
        "2 of 4 layers evict tokens of the prompt",
        "1 of 4 layers read the cache of the layer below",
        "1 of 4 layers spread the bits of their keys over channels",
        "2 of 4 layers are quantized in another layout than block",
        "layers have 4 different caches, and llama.cpp stores all alike",
    ]
    command, words, sizes = summary(shipment, tmp_path)
    assert "--cache-type-k q4_0" in command
    assert words.startswith("llama.cpp leaves out: 2 of 4 layers evict")
    assert sizes.startswith(f"caches take {size('q4_0', 'q4_0'):,} B (")


def test_heads_that_are_no_whole_blocks_stay_floats() -> None:
    shipment = ship_caches(["k4v4-g32-r32-s4"] * 4, config={**CONFIG, "hidden_size": 64})
    told = arguments(describe(shipment))
    assert (told["--cache-type-k"], told["--cache-type-v"]) == ("f16", "f16")


def test_a_prefix_in_common_is_stored_by_every_sequence() -> None:
    shipment = ship_caches(["k8v8-block"] * 4, "llama.cpp", load=Load(1000, 3, 400))
    content = describe(shipment)
    assert arguments(content)["--cache-type-k"] == "q8_0"
    assert content["cannot_carry"] == ["sequences store the prefix that they have in common once"]
    assert content["bytes"]["difference"] == size("q8_0", "q8_0", 2 * 400)


def test_llama_cpp_knows_what_it_is_told() -> None:
    """By the names in its own library."""
    library = find_library().read_bytes()
    content = describe(ship_caches(["k5v4-block"] * 4, "llama.cpp"))
    for word, value in arguments(content).items():
        assert f"\0{word}\0".encode() in library
        assert value.isdigit() or value == "on" or f"\0{value}\0".encode() in library
