"""What holds for every exporter: a new one is tested by its line in the catalogue."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tightfit.exporters import EXPORTERS, Shipment, get_exporter
from tightfit.spaces import InputError, Plan

exporters = pytest.mark.parametrize("name", EXPORTERS)


@exporters
def test_it_writes_one_file_where_it_is_told_and_nothing_beside_it(
    name: str, shipment: Shipment, tmp_path: Path
) -> None:
    out = tmp_path / f"plan{EXPORTERS[name].suffix}"
    assert get_exporter(name).export(shipment, out) == out
    assert list(tmp_path.iterdir()) == [out]
    assert out.stat().st_size > 0


@exporters
def test_the_same_plan_gives_the_same_bytes(name: str, shipment: Shipment, tmp_path: Path) -> None:
    paths = [get_exporter(name).export(shipment, tmp_path / part) for part in ("one", "two")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@exporters
def test_different_plans_give_different_files(
    name: str, make_shipment: Callable[..., Shipment], tmp_path: Path
) -> None:
    contents = {
        get_exporter(name).export(make_shipment("tied", seed), tmp_path / str(seed)).read_bytes()
        for seed in range(3)
    }
    assert len(contents) == 3


@exporters
def test_an_earlier_file_is_replaced(name: str, shipment: Shipment, tmp_path: Path) -> None:
    out, fresh = tmp_path / "plan", tmp_path / "fresh"
    out.write_text("of an earlier run" * 10_000)
    get_exporter(name).export(shipment, out)
    get_exporter(name).export(shipment, fresh)
    assert out.read_bytes() == fresh.read_bytes()


@exporters
def test_a_plan_of_another_space_leaves_the_earlier_file_whole(
    name: str, make_shipment: Callable[..., Shipment], tmp_path: Path
) -> None:
    shipment = make_shipment("tied")
    foreign = Shipment(shipment.space, Plan(shipment.plan.choices[1:]), shipment.model)
    out = tmp_path / "plan"
    out.write_text("of an earlier run")
    with pytest.raises(InputError, match="the plan has no choice for embed"):
        get_exporter(name).export(foreign, out)
    assert out.read_text() == "of an earlier run"
    assert list(tmp_path.iterdir()) == [out]


@exporters
def test_a_place_that_cannot_be_written_is_refused_and_left_alone(
    name: str, make_shipment: Callable[..., Shipment], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"missing/plan cannot be written \(No such file or directory\)\."):
        get_exporter(name).export(make_shipment("tied"), tmp_path / "missing" / "plan")
    for folder in (tmp_path, Path()):
        with pytest.raises(InputError, match="is a folder: name the file to write"):
            get_exporter(name).export(make_shipment("tied"), folder)
    assert list(tmp_path.iterdir()) == []


@exporters
def test_a_write_that_fails_half_way_leaves_the_earlier_file_and_no_other(
    name: str, make_shipment: Callable[..., Shipment], tmp_path: Path
) -> None:
    resource = pytest.importorskip("resource")
    out = tmp_path / "plan"
    out.write_text("of an earlier run")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as if the disk were full
    try:
        with pytest.raises(InputError, match=r"plan cannot be written \(File too large\)"):
            get_exporter(name).export(make_shipment("tied"), out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert out.read_text() == "of an earlier run"
    assert list(tmp_path.iterdir()) == [out]


@exporters
def test_who_is_reading_the_earlier_file_keeps_it_whole(
    name: str, make_shipment: Callable[..., Shipment], tmp_path: Path
) -> None:
    out = tmp_path / "plan"
    out.write_text("of an earlier run")
    with out.open() as reading:
        get_exporter(name).export(make_shipment("tied"), out)
        assert reading.read() == "of an earlier run"


@exporters
def test_it_says_what_it_is(name: str) -> None:
    exporter = EXPORTERS[name]
    assert exporter.kind in ("artefact", "recipe")
    assert exporter.suffix.startswith(".")


def test_listing_exporters_loads_none_of_them() -> None:
    modules = sorted({exporter.function.partition(":")[0] for exporter in EXPORTERS.values()})
    code = f"import sys, tightfit.exporters; print([m for m in [*{modules!r}, 'torch'] if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


@pytest.mark.parametrize(("name", "hint"), [("jsno", " Did you mean 'json'?"), ("gguf9", "")])
def test_an_unknown_exporter_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(InputError) as refusal:
        get_exporter(name)
    assert str(refusal.value) == f"no exporter is called {name!r} (exporters: {', '.join(EXPORTERS)}).{hint}"
