"""The order in which characters are joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightfit.exporters.gguf.characters import joining_ranks
from tightfit.spaces import InputError

FOLDER = Path("model")


def test_the_earliest_merge_counts() -> None:
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]
    assert joining_ranks({"a", "b", "c", "ab", "bc", "abc"}, merges, FOLDER) == {"ab": 0, "bc": 1, "abc": 2}


def test_a_missing_pair_is_named() -> None:
    with pytest.raises(InputError, match=r"model: llama.cpp would join 'a' and 'bc' to a token"):
        joining_ranks({"a", "b", "c", "bc", "abc"}, [("b", "c")], FOLDER)


def test_special_tokens_join_nothing() -> None:
    assert joining_ranks({"a", "ab"}, [("x", "y")], FOLDER) == {}
