from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tightfit.search.agents import AGENTS
from tightfit.search.setting_types import AgentList, OptionName, RunName, Size
from tightfit.spaces import BITS, GROUPS, ZEROS, expand

SIZES, OPTIONS, NAMES = (TypeAdapter[Any](kind) for kind in (Size, OptionName, RunName))


def accepts(adapter: TypeAdapter[Any], text: str) -> bool:
    try:
        adapter.validate_python(text)
    except ValidationError:
        return False
    return True


def matches(adapter: TypeAdapter[Any], text: str) -> bool:
    return re.search(adapter.json_schema()["pattern"], text) is not None


@given(st.from_regex(r"\s?[0-9]{1,4}(\.[0-9]{1,3})?\s?[kKMGT]?i?[bB]?", fullmatch=True))
@example("1")
@example("1.MiB")
@example("-1MiB")
@example("1e3MiB")
def test_the_schema_matches_the_sizes_that_are_read(text: str) -> None:
    assume(not re.match(r"\s*0", text))  # nothing at all is refused by its value, not by its form
    assert matches(SIZES, text) == accepts(SIZES, text)


def test_every_option_name_is_accepted_and_kept() -> None:
    for option in expand(BITS, GROUPS, ZEROS):
        assert OPTIONS.validate_python(option.name) == option.name
        assert matches(OPTIONS, option.name)


@pytest.mark.parametrize(
    "name", ["8b", "16b-row-sym", "7b-row-sym", "4b-g64", "4b-g64-integer", "", "4b-g-sym"]
)
def test_other_option_names_are_refused_by_both(name: str) -> None:
    assert not accepts(OPTIONS, name)
    assert not matches(OPTIONS, name)


@given(st.text(max_size=70))
@example("a" * 64)
@example("a" * 65)
@example("demo\n")
@example("..")
def test_run_names_are_folder_names_for_the_schema_too(name: str) -> None:
    assert accepts(NAMES, name) == bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name))
    if accepts(NAMES, name):
        assert matches(NAMES, name)


def test_agents_are_listed_once_each() -> None:
    agents = TypeAdapter[Any](AgentList)
    assert agents.validate_python(list(AGENTS)) == tuple(AGENTS)
    with pytest.raises(ValidationError, match="'mix' is listed twice"):
        agents.validate_python(["mix", "exact", "mix"])
