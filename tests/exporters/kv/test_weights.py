"""Exporters of weights ship the weights of a plan with caches, as if it had none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.exporters.gguf.tiny import ship, write_folder
from tests.exporters.kv.plans import LOAD, ship_caches, ship_kv
from tests.exporters.test_card import FACTS, cells

from tightfit.exporters import Shipment, get_exporter
from tightfit.exporters.card import describe as card
from tightfit.exporters.plan_json import describe as plan_json
from tightfit.exporters.verify import open_gguf, read_back
from tightfit.spaces import KvOption, KvRules, Load, Plan, WeightRules, build_space, get_target

TYPES = ("Q4_0", "Q8_0")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shipment, Shipment]:
    """A plan for llama.cpp, and the same one with an 8-bit cache."""
    folder = write_folder("llama with wide heads", tmp_path_factory.mktemp("model"))
    without = ship(folder, TYPES)
    geometry, target = without.space.geometry, get_target("llama.cpp")
    space = build_space(geometry, WeightRules(types=TYPES), target, KvRules(bits=(8, 16)), Load(100, 2))
    plan = Plan((*without.plan.choices, ("kv", "k8v8-block")))
    return without, replace(without, space=space, plan=plan)


def test_the_tensors_of_a_gguf_file_are_the_same(both: tuple[Shipment, Shipment], tmp_path: Path) -> None:
    files = [get_exporter("llama.cpp").export(one, tmp_path / f"{i}.gguf") for i, one in enumerate(both)]
    tensors = [
        {tensor.name: (tensor.tensor_type, tensor.data.tobytes()) for tensor in open_gguf(file).tensors}
        for file in files
    ]
    assert tensors[0] == tensors[1]
    # Only weights are in the file, so only their bytes are compared.
    read = read_back(files[1], both[1])
    assert read.agrees
    assert read.predicted == both[0].space.weight_bytes(both[0].plan)
    assert both[1].space.cache_bytes(both[1].plan) > 0


def test_the_rules_for_llama_quantize_are_the_same(both: tuple[Shipment, Shipment], tmp_path: Path) -> None:
    texts = [
        get_exporter("llama.cpp-rules").export(one, tmp_path / f"{i}.txt").read_text()
        for i, one in enumerate(both)
    ]
    assert texts[0] == texts[1]


def test_json_says_the_same_of_the_weights_and_more_of_the_caches(both: tuple[Shipment, Shipment]) -> None:
    without, with_caches = (plan_json(one) for one in both)
    added = {key: value for key, value in with_caches.items() if key not in without}
    assert added.keys() == {"total_bytes", "kv"}
    own = ("choices", "digest")
    assert {k: v for k, v in without.items() if k not in own} == {
        k: v for k, v in with_caches.items() if k in without and k not in own
    }
    heads, width, tokens = 4, 32, 2 * 100
    layer = tokens * 2 * heads * (width // 32) * 34
    assert added["kv"]["bytes"] == 3 * layer
    assert added["total_bytes"] == without["weight_bytes"] + 3 * layer
    assert (added["kv"]["context"], added["kv"]["batch"], added["kv"]["shared_prefix"]) == (100, 2, 0)
    assert [each["bytes"] for each in added["kv"]["layers"].values()] == [layer] * 3


@pytest.mark.parametrize("target", ["any", "vllm"])
@pytest.mark.parametrize("seed", range(3))
def test_json_gives_every_cache_back(target: str, seed: int) -> None:
    shipment = ship_kv(target, seed)
    content: dict[str, Any] = json.loads(json.dumps(plan_json(shipment)))
    assert Plan.from_dict(content) == shipment.plan
    options = shipment.space.kv_options(shipment.plan)
    for layer, (name, said) in enumerate(content["kv"]["layers"].items()):
        assert name == f"layers.{layer}.kv"
        option, size = said.pop("option"), said.pop("bytes")
        assert KvOption(**said) == options[layer]
        assert KvOption.from_name(option).name == option == options[layer].name
        assert size == LOAD.layer_bytes(shipment.space.geometry.attention[layer], options[layer])
    assert content["total_bytes"] == shipment.space.bytes_of(shipment.space.levels(shipment.plan))


def test_a_card_has_one_line_about_the_caches_and_how_to_ship_them() -> None:
    shipment = ship_caches(["k4v4-g32-r32-s4", "k16v16", "k4v4-g32-r32-s4", "k4v4-g32-r32-s4"])
    text = card(replace(shipment, facts=FACTS))
    size = f"{shipment.space.cache_bytes(shipment.plan):,} B at 1,000 tokens × 3 sequences"
    assert cells(text, "KV cache")[1] == f"{size}; layers: 3 × k4v4-g32-r32-s4, 1 × k16v16"
    assert f"{shipment.space.weight_bytes(shipment.plan):,} B, " in cells(text, "weights")[1]
    plan = shipment.plan.short
    assert f"tightfit export RUN --to transformers-kv --plan {plan} --out plan.kv\n" in text


def test_a_card_says_how_much_sequences_have_in_common() -> None:
    for load, words in (
        (Load(1000, 3, 400), "1,000 tokens × 3 sequences, 400 tokens in common; "),
        (Load(1000, 1, 400), "1,000 tokens × 1 sequence; "),
    ):
        text = card(ship_caches(["k16v16"] * 4, load=load))
        assert words in cells(text, "KV cache")[1]


def test_a_card_without_caches_has_no_such_line(both: tuple[Shipment, Shipment]) -> None:
    without, with_caches = (card(one) for one in both)
    assert "KV cache" not in without
    assert cells(with_caches, "KV cache")[1].endswith("at 100 tokens × 2 sequences; layers: 3 × k8v8-block")
