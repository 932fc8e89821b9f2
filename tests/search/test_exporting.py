"""Everything that can be refused is refused before anything is read or written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tightfit.exporters import EXPORTERS
from tightfit.search.exporting import export_plan, listing_json, listing_table
from tightfit.search.resolve import stored_space
from tightfit.search.store import Store
from tightfit.spaces import InputError


@pytest.fixture
def store(fake_run: Callable[..., Store]) -> Store:
    """Of a run whose model is nowhere."""
    return fake_run()


def test_an_existing_file_is_only_replaced_by_force(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    out.write_text("mine")
    with pytest.raises(InputError) as refusal:
        export_plan(store, "json", out)
    assert str(refusal.value) == (
        f"{out} exists already: name another file with --out, or replace it with --force."
    )
    assert out.read_text() == "mine"
    assert export_plan(store, "json", out, force=True).files == (out,)
    assert json.loads(out.read_text())["tightfit_plan"] == 1


@pytest.mark.parametrize("name", [name for name, exporter in EXPORTERS.items() if exporter.target])
def test_what_the_tool_cannot_express_is_refused_before_the_model_is_looked_for(
    name: str, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="cannot express a plan for target any: search with target"):
        export_plan(store, name, tmp_path / "out")


def test_a_file_beside_the_main_one_is_not_replaced_either(shipped_run: Path, tmp_path: Path) -> None:
    beside = tmp_path / "rules.imatrix.gguf"
    beside.write_text("mine")
    with Store.open(shipped_run, mode="ro") as store:
        with pytest.raises(InputError, match=r"rules\.imatrix\.gguf exists already"):
            export_plan(store, "llama.cpp-rules", tmp_path / "rules.txt")
        assert list(tmp_path.iterdir()) == [beside]
        exported = export_plan(store, "llama.cpp-rules", tmp_path / "rules.txt", force=True)
    assert exported.files == (tmp_path / "rules.txt", beside)
    assert any("llama-quantize --imatrix" in line for line in exported.after)


@pytest.mark.parametrize(
    ("out", "words"),
    [(".", "is a folder: name the file to write"), ("missing/x", "cannot be written: there is no folder")],
)
def test_places_that_cannot_be_are_refused(store: Store, tmp_path: Path, out: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        export_plan(store, "json", tmp_path / out)


def test_an_artefact_says_how_to_verify_it_and_how_to_describe_it(shipped_run: Path, tmp_path: Path) -> None:
    with Store.open(shipped_run, mode="ro") as store:
        exported = export_plan(store, "llama.cpp", tmp_path / "model.gguf")
    (file,) = exported.files
    verify, card = exported.after
    assert verify == f"tightfit verify {file} --run {shipped_run}"
    assert card.endswith(
        f"--to card --plan {exported.plan[:12]} --out {tmp_path / 'README.md'} --with {file}"
    )
    assert exported.render().splitlines() == [f"wrote {file}", "next:", f"  {verify}", f"  {card}"]
    data = json.loads(json.dumps(exported.to_dict()))
    assert data["kind"] == "artefact"
    assert data["files"] == [{"path": str(file), "bytes": file.stat().st_size}]


def test_a_card_lists_the_files_it_is_given(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights" * 1000)
    out = export_plan(store, "card", tmp_path / "README.md", files=[file]).files[0]
    digest = hashlib.sha256(b"weights" * 1000).hexdigest()
    assert f"| `model.gguf` | 7,000 | `{digest}` |" in out.read_text(encoding="utf-8")


def test_files_are_for_cards_and_have_to_be_there(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use it with --to card"):
        export_plan(store, "json", tmp_path / "x", files=[tmp_path / "y"])
    with pytest.raises(InputError, match=r"y cannot be read \(No such file or directory\)"):
        export_plan(store, "card", tmp_path / "x", files=[tmp_path / "y"])
    assert not (tmp_path / "x").exists()


@pytest.fixture
def kv_store(fake_run: Callable[..., Store]) -> Store:
    """Of a run that decides about KV caches, with one plan in it, its best so far."""
    store = fake_run("inspect")
    settings = store.get("settings")
    space = {**settings["space"], "kv": {"keep": [0.5, 1.0]}}
    store.put("settings", {**settings, "budget": {"total": "90MiB", "context": 1000}, "space": space})
    decided = stored_space(store)
    plan = decided.plan([len(decision.options) // 2 for decision in decided.decisions])
    store.set_space(decided)
    store.add_plan(plan, decided.bytes_of(decided.levels(plan)), "exact", decided.cache_bytes(plan))
    store.put("best", {"digest": plan.digest})
    return store


def test_a_folder_is_exported_with_the_bytes_of_all_its_files(kv_store: Store, tmp_path: Path) -> None:
    out = tmp_path / "plan.kv"
    exported = export_plan(kv_store, "transformers-kv", out)
    assert exported.render().splitlines() == [f"wrote {out}", "next:", f"  {exported.after[0]}"]
    assert exported.after[0].startswith(f"python {out / 'load_cache.py'} ")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert exported.to_dict()["files"] == [{"path": str(out), "bytes": size}]
    assert exported.to_dict()["kind"] == "artefact"


def test_a_folder_is_only_replaced_by_force_and_if_an_export_left_it(kv_store: Store, tmp_path: Path) -> None:
    out = tmp_path / "plan.kv"
    export_plan(kv_store, "transformers-kv", out)
    with pytest.raises(InputError, match=r"plan\.kv exists already: name another file with --out"):
        export_plan(kv_store, "transformers-kv", out)
    export_plan(kv_store, "transformers-kv", out, force=True)
    (out / "mine").touch()
    with pytest.raises(InputError, match=r"plan\.kv is a folder with other things in it"):
        export_plan(kv_store, "transformers-kv", out, force=True)
    with pytest.raises(InputError, match="there is no folder"):
        export_plan(kv_store, "transformers-kv", tmp_path / "missing" / "plan.kv")


def test_a_recipe_for_caches_says_what_it_leaves_out(kv_store: Store, tmp_path: Path) -> None:
    exported = export_plan(kv_store, "llama.cpp-kv", tmp_path / "recipe.json")
    command, words, sizes = exported.after
    assert command.startswith("llama-server -m model.gguf --cache-type-k ")
    assert words.startswith("llama.cpp leaves out: all 4 layers ")
    said = json.loads((tmp_path / "recipe.json").read_text(encoding="utf-8"))["bytes"]
    assert sizes.startswith(f"caches take {said['recipe']:,} B (")


@pytest.mark.parametrize("name", [name for name, exporter in EXPORTERS.items() if exporter.needs_kv])
def test_a_plan_without_caches_is_refused_before_anything_is_written(
    name: str, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(
        InputError, match="the plan says nothing about KV caches, so there are none to export"
    ):
        export_plan(store, name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_the_list_names_every_exporter_with_its_kind_and_tool() -> None:
    table, data = listing_table(), json.loads(listing_json())
    assert [entry["name"] for entry in data] == list(EXPORTERS)
    assert all(len(line) <= 110 for line in table.splitlines())
    for entry in data:
        (row,) = [line for line in table.splitlines() if line.startswith(f"{entry['name']} ")]
        assert entry["kind"] in row
        assert entry["tool"] in row
        assert entry["about"] in row
