"""Everything that can be refused is refused before anything is read or written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tightfit.exporters import EXPORTERS
from tightfit.search.exporting import export_plan, listing_json, listing_table
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


def test_the_list_names_every_exporter_with_its_kind_and_tool() -> None:
    table, data = listing_table(), json.loads(listing_json())
    assert [entry["name"] for entry in data] == list(EXPORTERS)
    assert all(len(line) <= 110 for line in table.splitlines())
    for entry in data:
        (row,) = [line for line in table.splitlines() if line.startswith(f"{entry['name']} ")]
        assert entry["kind"] in row
        assert entry["tool"] in row
        assert entry["about"] in row
