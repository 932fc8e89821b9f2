"""What is asked of KV caches beside the loss on ordinary text."""

from __future__ import annotations

import numpy as np
import pytest

from tightfit.workers.probes import PLANTED, planted, shorter
from tightfit.workers.text import Window

VOCAB = 500
NEEDED = 4 * PLANTED


def window(name: str, prefix: int, scored: int = 10, head: int = 0) -> Window:
    """A window whose tokens are their own positions, counted from 1000 on."""
    return Window(name, np.arange(1000, 1001 + prefix + scored), prefix, head)


@pytest.mark.parametrize("prefix", [2, 3, 40, 41])
def test_half_the_context_leaves_the_scored_tokens_as_they_are(prefix: int) -> None:
    whole = window("a", prefix)
    (half,) = shorter([whole])
    assert (half.document, half.prefix, half.scored) == ("a", prefix // 2, whole.scored)
    assert list(half.tokens) == list(whole.tokens[prefix - prefix // 2 :])


def test_half_the_context_still_begins_with_what_every_text_begins_with() -> None:
    whole = window("a", 40, head=1)
    (half,) = shorter([whole])
    assert list(half.tokens) == [1000, *whole.tokens[21:]]
    assert (half.prefix, half.scored, half.head) == (20, whole.scored, 1)
    (quarter,) = shorter([half])
    assert list(quarter.tokens) == [1000, *whole.tokens[31:]]


def test_a_prefix_of_one_token_has_no_half() -> None:
    """A cache needs something in it."""
    assert shorter([window("a", 1), window("b", 0)]) == []
    assert [half.document for half in shorter([window("a", 1), window("b", 2)])] == ["b"]


def test_a_sequence_is_planted_in_the_prompt_and_asked_for_at_the_end() -> None:
    haystacks = [window(f"doc-{i}", 300) for i in range(7)]
    made = planted(haystacks, 3)
    assert [each.document for each in made] == [each.document for each in haystacks]
    known = {int(token) for haystack in haystacks for token in haystack.tokens}
    # At 10, 30, … 90 % of what leaves room for the sequence and as much again behind it, in turn.
    starts = [round(depth * 236) for depth in (0.1, 0.3, 0.5, 0.7, 0.9, 0.1, 0.3)]
    for each, haystack, start in zip(made, haystacks, starts, strict=True):
        assert (each.prefix, each.scored) == (300, PLANTED - 1)
        prompt, needle = each.tokens[:300], each.tokens[300:]
        assert len(needle) == PLANTED
        assert {int(token) for token in needle} <= known
        expected = haystack.tokens[:300].copy()
        expected[start : start + PLANTED] = needle
        np.testing.assert_array_equal(prompt, expected)
    assert len({tuple(each.tokens[300:]) for each in made}) == 7


def test_windows_stay_as_they_were() -> None:
    haystack = window("a", 200)
    before = haystack.tokens.copy()
    planted([haystack], 0)
    np.testing.assert_array_equal(haystack.tokens, before)


def test_one_window_per_document_and_none_where_the_prefix_is_short() -> None:
    windows = [
        window("short", NEEDED - 1),
        window("twice", NEEDED),
        window("twice", NEEDED + 50),
        window("short", NEEDED + 7),
    ]
    assert [(each.document, each.prefix) for each in planted(windows, 0)] == [
        ("twice", NEEDED),
        ("short", NEEDED + 7),
    ]
    assert planted([window("a", NEEDED - 1)], 0) == []


def test_sequences_depend_on_the_seed_alone() -> None:
    windows = [window("a", 200), window("b", 200)]
    again = planted(windows, 1)
    for first, second in zip(planted(windows, 1), again, strict=True):
        np.testing.assert_array_equal(first.tokens, second.tokens)
    other = planted(windows, 2)
    assert not np.array_equal(other[0].tokens, again[0].tokens)
