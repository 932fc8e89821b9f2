"""What the pages say about the code is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tightfit.spaces import WeightOption, Zero

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
COLUMNS: tuple[Zero, ...] = ("none", "integer", "float")


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    pattern = (
        r"`((?:spaces|compress|proxies|workers|exporters|search|ui|src|tests|docs|benchmarks)/[\w./]+\.\w+)`"
    )
    for name in re.findall(pattern, page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^\s*)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets


def test_effective_bits_in_the_guide_are_those_of_the_options() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", guide, re.MULTILINE)
    assert len(rows) == 9
    for bits, group, *effective in rows:
        for zero, written in zip(COLUMNS, effective, strict=True):
            packed = WeightOption(int(bits), int(group), zero).tensor_bytes(1024, 1536)
            assert f"{8 * packed / (1024 * 1536):.3f}" == written


def test_the_example_for_llama_cpp_is_a_search_that_can_begin() -> None:
    from tightfit.search.inspection import inspect_settings
    from tightfit.search.settings import load_settings

    settings = load_settings(ROOT / "docs" / "llama.cpp.yaml")
    inspection = inspect_settings(settings)
    assert settings.target == "llama.cpp"
    assert inspection.space.floor < inspection.limit < inspection.space.ceiling


def test_the_example_for_kv_caches_is_a_search_that_can_begin() -> None:
    from tightfit.search.inspection import inspect_settings
    from tightfit.search.settings import load_settings

    inspection = inspect_settings(load_settings(ROOT / "docs" / "kv.yaml"))
    assert len(inspection.space.kv_decisions) == inspection.space.geometry.layers
    assert inspection.space.floor < inspection.limit < inspection.space.ceiling
