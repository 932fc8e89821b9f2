"""What holds for every exporter: a new one is tested by its line in the catalogue."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.exporters.gguf.tiny import ship as ship_gguf
from tests.exporters.gguf.tiny import write_folder
from tests.exporters.kv.plans import RULES as KV_MODELS
from tests.exporters.kv.plans import ship_kv

from tightfit.exporters import EXPORTERS, Shipment, get_exporter
from tightfit.spaces import InputError, Plan

exporters = pytest.mark.parametrize("name", EXPORTERS)
file_exporters = pytest.mark.parametrize(
    "name", [n for n, exporter in EXPORTERS.items() if not exporter.folder]
)
PLAIN_MODELS = ("tied", "fused", "untied", "conv1d")
GGUF_MODELS = ("llama", "gpt2 untied")
CASES = [
    (name, model)
    for name, exporter in EXPORTERS.items()
    for model in (KV_MODELS if exporter.needs_kv else GGUF_MODELS if exporter.target else PLAIN_MODELS)
]
Load = Callable[..., Shipment]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random models with weights and tokenizers."""
    return {name: write_folder(name, tmp_path_factory.mktemp("model")) for name in GGUF_MODELS}


@pytest.fixture
def load(folders: dict[str, Path], make_shipment: Callable[..., Shipment]) -> Load:
    """A random plan that an exporter can carry, by its name, the model's, and a seed."""

    def make(name: str, model: str | None = None, seed: int = 0) -> Shipment:
        if EXPORTERS[name].needs_kv:
            return ship_kv(model or "any", seed)
        if EXPORTERS[name].target is None:
            return make_shipment(model or "tied", seed)
        shipment = ship_gguf(folders[model or "llama"], ("Q4_0", "Q5_0", "Q8_0"), seed)
        assert shipment.source is not None
        geometry = shipment.space.geometry
        importance = {linear.site: torch.ones(linear.cols) for linear in geometry.linears}
        return replace(shipment, source=replace(shipment.source, importance=importance))

    return make


def content(path: Path) -> dict[str, bytes]:
    """Everything that lies under a path, by name."""
    files = path.rglob("*") if path.is_dir() else [path]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


@pytest.mark.parametrize(("name", "model"), CASES)
def test_it_writes_what_it_says_where_it_is_told_and_nothing_beside_it(
    name: str, model: str, load: Load, tmp_path: Path
) -> None:
    out, exporter = tmp_path / f"plan{EXPORTERS[name].suffix}", get_exporter(name)
    assert exporter.export(load(name, model), out) == out
    assert set(tmp_path.iterdir()) == set(exporter.files(out))
    assert all(file.stat().st_size > 0 for file in tmp_path.iterdir())


@pytest.mark.parametrize(("name", "model"), CASES)
def test_the_same_plan_gives_the_same_bytes(name: str, model: str, load: Load, tmp_path: Path) -> None:
    exporter, shipment = get_exporter(name), load(name, model)
    paths = [exporter.files(exporter.export(shipment, tmp_path / part)) for part in ("one", "two")]
    for first, second in zip(*paths, strict=True):
        assert content(first) == content(second)


@exporters
def test_different_plans_give_different_files(name: str, load: Load, tmp_path: Path) -> None:
    contents = [
        content(get_exporter(name).export(load(name, seed=seed), tmp_path / str(seed))) for seed in range(3)
    ]
    assert all(one not in contents[:i] for i, one in enumerate(contents))


@file_exporters
def test_an_earlier_file_is_replaced(name: str, load: Load, tmp_path: Path) -> None:
    out, fresh = tmp_path / "plan", tmp_path / "fresh"
    out.write_text("of an earlier run" * 10_000)
    get_exporter(name).export(load(name), out)
    get_exporter(name).export(load(name), fresh)
    assert out.read_bytes() == fresh.read_bytes()


@file_exporters
def test_a_plan_of_another_space_leaves_the_earlier_file_whole(name: str, load: Load, tmp_path: Path) -> None:
    shipment = load(name)
    foreign = replace(shipment, plan=Plan(shipment.plan.choices[1:]))
    out = tmp_path / "plan"
    out.write_text("of an earlier run")
    with pytest.raises(InputError, match="the plan has no choice for embed"):
        get_exporter(name).export(foreign, out)
    assert out.read_text() == "of an earlier run"
    assert list(tmp_path.iterdir()) == [out]


@file_exporters
def test_a_place_that_cannot_be_written_is_refused_and_left_alone(
    name: str, load: Load, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"missing/plan cannot be written \(No such file or directory\)\."):
        get_exporter(name).export(load(name), tmp_path / "missing" / "plan")
    for folder in (tmp_path, Path()):
        with pytest.raises(InputError, match="is a folder: name the file to write"):
            get_exporter(name).export(load(name), folder)
    assert list(tmp_path.iterdir()) == []


@file_exporters
def test_a_write_that_fails_half_way_leaves_the_earlier_file_and_no_other(
    name: str, load: Load, tmp_path: Path
) -> None:
    resource = pytest.importorskip("resource")
    shipment = load(name)
    out = tmp_path / "plan"
    out.write_text("of an earlier run")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as if the disk were full
    try:
        with pytest.raises(InputError, match=r"plan cannot be written \(File too large\)"):
            get_exporter(name).export(shipment, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert out.read_text() == "of an earlier run"
    assert list(tmp_path.iterdir()) == [out]


@file_exporters
def test_who_is_reading_the_earlier_file_keeps_it_whole(name: str, load: Load, tmp_path: Path) -> None:
    out = tmp_path / "plan"
    out.write_text("of an earlier run")
    with out.open() as reading:
        get_exporter(name).export(load(name), out)
        assert reading.read() == "of an earlier run"


@pytest.mark.parametrize("name", [name for name, exporter in EXPORTERS.items() if exporter.target])
def test_a_plan_for_another_target_is_refused_before_anything_is_written(
    name: str, make_shipment: Callable[..., Shipment], tmp_path: Path
) -> None:
    exporter = get_exporter(name)
    with pytest.raises(InputError) as refusal:
        exporter.export(make_shipment("tied"), tmp_path / "plan")
    assert str(refusal.value) == (
        f"{exporter.tool} cannot express a plan for target any: search with target: {exporter.target}, or "
        "export it with --to json."
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name, exporter in EXPORTERS.items() if exporter.needs_kv])
@pytest.mark.parametrize("model", PLAIN_MODELS)
def test_a_plan_without_caches_is_refused_where_it_is_about_caches(
    name: str, model: str, make_shipment: Callable[..., Shipment], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as refusal:
        get_exporter(name).export(make_shipment(model), tmp_path / "plan")
    assert str(refusal.value) == (
        "the plan says nothing about KV caches, so there are none to export: search with space.kv and "
        "budget.context."
    )
    assert list(tmp_path.iterdir()) == []


@exporters
def test_a_plan_that_misses_its_last_decision_is_refused(name: str, load: Load, tmp_path: Path) -> None:
    shipment = load(name)
    foreign = replace(shipment, plan=Plan(shipment.plan.choices[:-1]))
    with pytest.raises(InputError, match="the plan has no choice for "):
        get_exporter(name).export(foreign, tmp_path / "plan")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name, exporter in EXPORTERS.items() if exporter.needs_source])
def test_without_its_model_a_plan_is_refused_where_the_model_is_needed(
    name: str, load: Load, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="comes without"):
        get_exporter(name).export(replace(load(name), source=None), tmp_path / "plan")
    assert list(tmp_path.iterdir()) == []


@exporters
def test_it_says_what_it_is(name: str) -> None:
    exporter = EXPORTERS[name]
    assert exporter.kind in ("artefact", "recipe", "document")
    assert exporter.suffix.startswith(".")
    assert exporter.tool
    assert 10 < len(exporter.about) < 80
    assert json.loads(json.dumps(exporter.to_dict()))["kind"] == exporter.kind


@exporters
def test_the_guide_lists_it(name: str) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    assert f"\n| `{name}` | {EXPORTERS[name].kind} | " in guide


def test_no_two_exporters_share_a_file_or_a_word() -> None:
    suffixes = [exporter.suffix for exporter in EXPORTERS.values()]
    words = [word for name, exporter in EXPORTERS.items() for word in (name, *exporter.aliases)]
    assert len(set(suffixes)) == len(suffixes)
    assert len(set(words)) == len(words)


def test_listing_exporters_loads_none_of_them() -> None:
    modules = sorted({exporter.function.partition(":")[0] for exporter in EXPORTERS.values()})
    heavy = ("torch", "gguf", "transformers")
    code = f"import sys, tightfit.exporters; print([m for m in {[*modules, *heavy]!r} if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("jsno", " Did you mean 'json'?"),
        ("gguf", " Did you mean 'llama.cpp'?"),
        ("GGUF", " Did you mean 'llama.cpp'?"),
        ("lama.cpp", " Did you mean 'llama.cpp'?"),
        ("readme", " Did you mean 'card'?"),
        ("vllm", " Did you mean 'vllm-kv'?"),
        ("kv-press", " Did you mean 'kvpress'?"),
        ("transformers", " Did you mean 'transformers-kv'?"),
        ("onnxruntime", ""),
    ],
)
def test_an_unknown_exporter_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(InputError) as refusal:
        get_exporter(name)
    assert str(refusal.value) == f"no exporter is called {name!r} (exporters: {', '.join(EXPORTERS)}).{hint}"
