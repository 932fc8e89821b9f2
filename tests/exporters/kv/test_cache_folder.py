"""The exported cache is the measured one, in a process that knows nothing of Tightfit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.exporters.gguf.tiny import load, write_folder
from tests.exporters.kv.elsewhere import run_elsewhere
from tests.exporters.kv.plans import CONFIG, ship_caches, ship_kv
from transformers import AutoConfig
from transformers.cache_utils import DynamicCache

import tightfit
from tightfit.compress.kvcache import CacheFormat, PlanCache, prefill
from tightfit.exporters import Shipment
from tightfit.exporters.kv.cache_folder import describe, export, summary
from tightfit.spaces import InputError, Load, kv_bytes, read_geometry
from tightfit.workers.prompts import Prompts
from tightfit.workers.text import Window

PROMPT, CONTINUATION = 90, 30
MODELS: dict[str, tuple[str, dict[str, Any], str, list[str]]] = {
    "channels": (
        "llama",
        {"num_hidden_layers": 5},
        "any",
        ["k4v4-g32-r32-s4", "k2v5-g32-r16-s4-spread", "shared", "k3v16-g32-r0-s0", "k16v16"],
    ),
    "evicted": (
        "llama with wide heads",
        {},
        "any",
        ["k4v8-g32-r8-s2-keep0.5", "k16v16-r32-s4-keep0.4", "k3v3-g32-r8-s4-cutoff"],
    ),
    "windows": (
        "gemma3 in other turns, linear",
        {"sliding_window": 60},
        "any",
        ["k8v8-g32-r32-s4", "k4v4-g32-r4-s0-keep0.75", "k16v16"],
    ),
    "blocks": ("llama with wide heads", {}, "llama.cpp", ["k8v4-block"] * 3),
    "tokens": ("qwen2", {}, "vllm", ["k16v16", "k4v4-token", "k4v4-token"]),
}
MEASURE = """
from pathlib import Path
import torch
from load_cache import prefill_and_compress
from kvcache import continue_with
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
ids = load_file("ids.safetensors")["ids"]
for place in {places!r}:
    model = AutoModelForCausalLM.from_pretrained(Path(place) / "model", dtype=torch.float32)
    cache, _ = prefill_and_compress(model, ids[:, :{prompt}], Path(place) / "cache")
    print(cache.nbytes, *cache.layer_bytes)
    logits = continue_with(model, cache, ids[:, {prompt}:-1])[0]
    save_file({{"logits": logits.contiguous()}}, Path(place) / "logits.safetensors")
"""
GENERATE = """
import runpy, sys
sys.argv = ["load_cache.py", "model", {prompt!r}, "--tokens", "12"]
runpy.run_path("cache/load_cache.py", run_name="__main__")
"""
WORDS = "one two three " * 12


def ship_of(folder: Path, target: str, options: list[str], prompt: int = PROMPT) -> Shipment:
    """A plan of a model folder, whose layers have these caches."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = {"types": ("F32",)} if target == "llama.cpp" else {"groups": (0,), "zeros": ("none",)}
    return ship_caches(options, target, config, Load(prompt), weights)


def as_evaluated(model: Any, shipment: Shipment, tokens: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Logits of a continuation as a run measures them, and the bytes of the cache that it begins with."""
    options = shipment.space.kv_options(shipment.plan)
    window = Window("text", tokens[0].numpy(), PROMPT)
    logits = Prompts(model).continued("plain", window, options)
    state = prefill(model, tokens[:, :PROMPT])
    formats = [CacheFormat(**option.to_dict()) for _, option in sorted(options.items())]
    return logits, PlanCache.from_prefill(state, formats).layer_bytes


def measure_elsewhere(tokens: torch.Tensor, places: list[Path]) -> list[list[int]]:
    """Measure caches beside their models there; return the bytes of each, in all and by layer."""
    save_file({"ids": tokens}, places[0] / "ids.safetensors")
    code = MEASURE.format(places=[str(place) for place in places], prompt=PROMPT)
    printed = run_elsewhere(code, places[0] / "cache", places[0])
    return [[int(number) for number in line.split()] for line in printed.splitlines()]


@dataclass(frozen=True)
class Measured:
    """A cache beside its model, and the bytes that were counted of it there."""

    place: Path
    shipment: Shipment
    counted: list[int]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """What is measured may depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(0, 320, (1, PROMPT + CONTINUATION), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def measured(tokens: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    shipments = {}
    for variant, changes, target, options in MODELS.values():
        place = tmp_path_factory.mktemp("place")
        shipments[place] = ship_of(write_folder(variant, place / "model", **changes), target, options)
        export(shipments[place], place / "cache")
    counts = measure_elsewhere(tokens, list(shipments))
    found = zip(MODELS, shipments.items(), counts, strict=True)
    return {name: Measured(place, shipment, count) for name, (place, shipment), count in found}


@pytest.mark.parametrize("name", MODELS)
def test_elsewhere_logits_and_bytes_are_those_of_the_evaluator(
    name: str, measured: dict[str, Measured], tokens: torch.Tensor, one_thread: None
) -> None:
    one = measured[name]
    logits, layer_bytes = as_evaluated(load(one.place / "model"), one.shipment, tokens)
    assert torch.equal(load_file(one.place / "logits.safetensors")["logits"], logits)
    assert one.counted == [sum(layer_bytes), *layer_bytes]
    said = json.loads((one.place / "cache" / "cache.json").read_text(encoding="utf-8"))
    assert [layer["bytes"] for layer in said["layers"]] == layer_bytes
    assert said["bytes"] == sum(layer_bytes) == one.shipment.space.cache_bytes(one.shipment.plan)


def test_the_loader_generates_from_a_prompt(measured: dict[str, Measured]) -> None:
    place = measured["channels"].place
    text = run_elsewhere(GENERATE.format(prompt=WORDS), place / "cache", place)
    assert text.startswith(WORDS)
    assert len(text) > len(WORDS) + 1


def test_the_folder_holds_the_code_of_the_measured_cache_to_the_letter(tmp_path: Path) -> None:
    out = export(ship_kv(), tmp_path / "plan.kv")
    root = Path(tightfit.__file__).parent
    assert sorted(path.name for path in out.iterdir()) == ["cache.json", "kvcache", "load_cache.py"]
    assert (out / "load_cache.py").read_bytes() == (root / "exporters/kv/load_cache.py").read_bytes()
    code = {path.name: path.read_bytes() for path in (root / "compress/kvcache").glob("*.py")}
    assert {path.name: path.read_bytes() for path in (out / "kvcache").iterdir()} == code
    assert not any("tightfit." in text.decode() for text in code.values())


def test_formats_and_bytes_are_those_of_the_plan(tmp_path: Path) -> None:
    shipment = ship_kv(seed=3)
    said = json.loads((export(shipment, tmp_path / "x") / "cache.json").read_text(encoding="utf-8"))
    options = shipment.space.kv_options(shipment.plan)
    assert [CacheFormat(**layer["format"]) for layer in said["layers"]] == [
        CacheFormat(**options[layer].to_dict()) for layer in range(4)
    ]
    assert (said["context"], said["batch"], said["shared_prefix"]) == (1000, 3, 0)
    assert sum(layer["bytes"] for layer in said["layers"]) == said["bytes"]
    assert said["bytes"] == shipment.space.cache_bytes(shipment.plan)
    assert said["model"] == shipment.model
    assert said["plan"] == shipment.plan.digest
    assert said["kind"] == "artefact"


@pytest.mark.parametrize("window", [None, 300])
def test_a_plan_that_compresses_nothing_names_the_classes_of_transformers(window: int | None) -> None:
    config = {**CONFIG, "model_type": "mistral", "sliding_window": window}
    said = describe(ship_caches(["k16v16"] * 4, config=config))
    assert said["plain"]
    own = DynamicCache(config=AutoConfig.for_model(**config)).layers
    assert [layer["class"] for layer in said["layers"]] == [type(layer).__name__ for layer in own]
    assert said["bytes"] == kv_bytes(read_geometry(config), Load(1000, 3))


COMPRESSED = ("k8v8-g32-r32-s4", "k16v16-r32-s4-keep0.5", "k16v16-r32-s4-cutoff", "shared")


@pytest.mark.parametrize("other", COMPRESSED)
def test_one_layer_that_is_compressed_makes_a_plan_another(other: str) -> None:
    said = describe(ship_caches(["k16v16", "k16v16", "k16v16", other]))
    assert not said["plain"]
    assert ["class" in layer for layer in said["layers"]] == [True, True, True, False]


def test_a_prefix_in_common_is_said_to_be_copied() -> None:
    shipment = ship_caches(["k16v16"] * 4, load=Load(1000, 3, 400))
    (words,) = [words for words in describe(shipment)["cannot_carry"] if "prefix" in words]
    assert f"takes {kv_bytes(shipment.space.geometry, Load(1000, 3)):,} B in all" in words


def test_it_says_how_to_generate(tmp_path: Path) -> None:
    (line,) = summary(ship_kv(), tmp_path / "plan.kv")
    assert line == f"python {tmp_path / 'plan.kv' / 'load_cache.py'} MODEL_FOLDER 'Once upon a time'"


def test_only_the_folder_of_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    out = export(ship_kv(seed=1), tmp_path / "plan.kv")
    (out / "__pycache__").mkdir()  # as running the loader leaves it
    (out / "kvcache" / "stray.py").touch()
    export(ship_kv(seed=2), out)
    assert json.loads((out / "cache.json").read_text(encoding="utf-8")) == describe(ship_kv(seed=2))
    assert not (out / "kvcache" / "stray.py").exists()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(InputError) as refusal:
        export(ship_kv(seed=3), out)
    assert str(refusal.value) == f"{out} is a folder with other things in it: name a new one."
    assert (out / "mine.txt").read_text() == "mine"
    with pytest.raises(InputError, match=r"mine\.txt is a file: name a folder to write\."):
        export(ship_kv(), out / "mine.txt")
    with pytest.raises(InputError, match=r"missing/x cannot be written \(No such file or directory\)\."):
        export(ship_kv(), tmp_path / "missing" / "x")
    assert list(tmp_path.iterdir()) == [out]


def test_a_write_that_fails_half_way_leaves_the_earlier_folder_and_no_other(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    out = export(ship_kv(seed=1), tmp_path / "plan.kv")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (100, 5000):  # cache.json does not fit, or one of the files of the code
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
        try:
            with pytest.raises(InputError, match=r"plan\.kv cannot be written \(.*File too large"):
                export(ship_kv(seed=2), out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
        assert list(tmp_path.iterdir()) == [out]


@pytest.mark.real
def test_the_default_model_runs_on_its_exported_cache_elsewhere(tmp_path: Path, one_thread: None) -> None:
    from pydoc_data.topics import topics

    from tightfit.workers.models import load_model

    loaded = load_model("smollm2-135m")
    loaded.model.save_pretrained(tmp_path / "model")  # in 32 bits, as it is measured
    tokens = loaded.tokenizer(topics["assert"], return_tensors="pt").input_ids[:, : PROMPT + CONTINUATION]
    options = ["k4v4-g32-r32-s4", "k16v16-r32-s4-keep0.5", "k8v8-g32-r32-s4-spread"] * 10
    shipment = ship_of(tmp_path / "model", "any", options)
    export(shipment, tmp_path / "cache")
    logits, layer_bytes = as_evaluated(loaded.model, shipment, tokens)
    (counted,) = measure_elsewhere(tokens, [tmp_path])
    assert counted == [shipment.space.cache_bytes(shipment.plan), *layer_bytes]
    assert torch.equal(load_file(tmp_path / "logits.safetensors")["logits"], logits)
