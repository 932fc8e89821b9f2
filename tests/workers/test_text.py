import hashlib

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tightfit.spaces import InputError
from tightfit.workers.lab import TINY, train
from tightfit.workers.models import load_model
from tightfit.workers.text import (
    SHORTEST_DOCUMENT,
    Document,
    Window,
    deduplicate,
    digest_windows,
    load_text,
    split_documents,
    take,
)

NEEDS = {"calibration": 300, "selection": 500, "validation": 500, "holdout": 900}


def letters(begin=None):
    """A tokenizer with one token per byte, and a special first token if one is named."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "<s>"])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if begin:
        special = [(begin, vocab[begin])]
        tokenizer.post_processor = processors.TemplateProcessing(f"{begin} $A", special_tokens=special)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def documents(lengths, seed=0):
    """Documents of random small letters; with :func:`letters`, lengths are tokens."""
    generator = np.random.default_rng(seed)
    texts = ("".join(map(chr, generator.integers(97, 123, size=n))) for n in lengths)
    return [Document(f"doc-{i}", text) for i, text in enumerate(texts)]


PARAGRAPHS = st.lists(st.integers(33, 700), min_size=8, max_size=40)


@given(st.lists(st.integers(1, 50), max_size=8), st.integers(1, 200), st.integers(3, 20), st.booleans())
def test_take_gives_exactly_the_tokens_asked_for_while_there_are_some(lengths, scored, sequence, prefixed):
    ids = {str(i): np.arange(n) + 100 * (i + 1) for i, n in enumerate(lengths)}
    prefix = [7] if prefixed else []
    windows = take(ids, scored, sequence, prefix)
    everything = take(ids, 10**9, sequence, prefix)
    available = sum(window.scored for window in everything)
    assert sum(window.scored for window in windows) == min(scored, available)
    for window in windows:
        assert 2 <= len(window.tokens) <= sequence
        assert window.tokens.dtype == np.int64
        assert list(window.tokens[: len(prefix)]) == prefix
    rest = [window.tokens[len(prefix) :] for window in everything]
    for name, tokens in ids.items():
        mine = [part for part, window in zip(rest, everything, strict=True) if window.document == name]
        joined = np.concatenate(mine) if mine else tokens[:0]
        np.testing.assert_array_equal(joined, tokens[: len(joined)], "windows are consecutive, none twice")
        assert len(tokens) - len(joined) <= (0 if prefixed else 1)


def test_take_lets_every_document_take_part_before_any_goes_on():
    ids = {name: np.arange(n) for name, n in (("long", 100), ("short", 12), ("middle", 30))}
    windows = take(ids, 60, 11)
    assert [w.document for w in windows] == ["long", "short", "middle", "long", "middle", "long", "middle"][
        : len(windows)
    ]
    assert windows[0].tokens[-1] + 1 == windows[3].tokens[0]


@given(PARAGRAPHS, st.integers(0, 5))
def test_splits_share_no_document_and_do_not_depend_on_anything_but_the_seed(lengths, seed):
    texts = documents(lengths)
    tokenizer = letters()
    try:
        splits = split_documents(texts, tokenizer, NEEDS, 32, seed, allow_shortfall=True)
    except InputError:  # too few documents for four splits
        reject()
    owners = [{window.document for window in split.windows} for split in splits.values()]
    assert sum(map(len, owners)) == len(set.union(*owners))
    assert [split.documents for split in splits.values()] == [len(owner) for owner in owners]
    reversed_text = split_documents(texts[::-1], tokenizer, NEEDS, 32, seed, allow_shortfall=True)
    assert [s.digest for s in reversed_text.values()] == [s.digest for s in splits.values()]


def test_another_seed_splits_otherwise():
    texts, tokenizer = documents([100] * 60), letters()
    splits = [split_documents(texts, tokenizer, NEEDS, 32, seed)["selection"] for seed in range(4)]
    assert len({frozenset(window.document for window in split.windows) for split in splits}) == 4


def test_splits_get_exactly_what_they_ask_for():
    splits = split_documents(documents([100] * 60), letters(), NEEDS, 32, 0)
    assert list(splits) == list(NEEDS)
    for name, split in splits.items():
        assert split.asked == split.used == NEEDS[name] == sum(window.scored for window in split.windows)


def test_documents_are_dealt_out_in_proportion_though_one_is_very_long():
    splits = split_documents(documents([4000, *([150] * 40)]), letters(), NEEDS, 64, 0)
    assert all(split.used == split.asked for split in splits.values())
    assert all(split.documents >= 4 for name, split in splits.items() if name != "holdout")


@pytest.mark.parametrize("seed", range(8))
def test_a_text_of_very_unequal_documents_is_enough_though_little_more_than_asked_for(seed):
    lengths = [900, 500, 400, *([120] * 8), *([40] * 15)]
    splits = split_documents(documents(lengths), letters(), NEEDS, 64, seed)
    assert all(split.documents > 1 for split in splits.values())


def test_shortfall_is_refused_with_both_numbers():
    with pytest.raises(InputError, match=r"holdout asks for 9000 and has \d+.*allow_shortfall"):
        split_documents(documents([100] * 40), letters(), {**NEEDS, "holdout": 9000}, 32, 0)


def test_allowed_shortfall_keeps_both_numbers():
    texts = documents([100] * 40)
    splits = split_documents(texts, letters(), {**NEEDS, "holdout": 9000}, 32, 0, allow_shortfall=True)
    assert splits["holdout"].asked == 9000
    assert 1000 < splits["holdout"].used < 4000


def test_sequence_longer_than_every_document_is_refused_with_both_numbers():
    with pytest.raises(InputError, match=r"windows of 256 tokens.*longest document has 100"):
        split_documents(documents([100, 60, 80, 90]), letters(), NEEDS, 256, 0, allow_shortfall=True)


@pytest.mark.parametrize("lengths", [[], [40], [40, SHORTEST_DOCUMENT - 1, 20, 10, 5]])
def test_text_without_a_document_for_every_split_is_refused(lengths):
    with pytest.raises(InputError, match="text: "):
        split_documents(documents(lengths), letters(), NEEDS, 16, 0, allow_shortfall=True)


def test_short_documents_are_left_out():
    lengths = [100] * 60 + [SHORTEST_DOCUMENT - 1] * 20
    splits = split_documents(documents(lengths), letters(), NEEDS, 32, 0)
    assert all(int(w.document[4:]) < 60 for split in splits.values() for w in split.windows)


def test_every_window_begins_with_the_token_that_the_tokenizer_begins_a_text_with():
    texts = documents([100] * 60)
    tokenizer = letters("<s>")
    splits = split_documents(texts, tokenizer, NEEDS, 32, 0)
    for split in splits.values():
        assert split.used == split.asked
        for window in split.windows:
            assert list(window.tokens).count(tokenizer.bos_token_id) == 1
            assert window.tokens[0] == tokenizer.bos_token_id


def test_digest_depends_on_tokens():
    texts = documents([100] * 60)
    before = split_documents(texts, letters(), NEEDS, 32, 0)
    changed = [Document(d.id, d.text[::-1]) for d in texts]
    after = split_documents(changed, letters(), NEEDS, 32, 0)
    assert all(before[name].digest != after[name].digest for name in NEEDS)


# Windows after some context


@given(
    st.lists(st.integers(1, 120), max_size=8),
    st.integers(1, 300),
    st.integers(3, 20),
    st.integers(0, 60),
    st.booleans(),
)
def test_windows_after_a_context_score_no_token_twice(lengths, scored, sequence, context, prefixed):
    ids = {str(i): np.arange(n) + 1000 * (i + 1) for i, n in enumerate(lengths)}
    head = [7] if prefixed else []
    windows = take(ids, scored, sequence, head, context)
    everything = take(ids, 10**9, sequence, head, context)
    available = sum(window.scored for window in everything)
    assert sum(window.scored for window in windows) == min(scored, available)
    seen = set()
    for window in windows:
        assert (window.prefix, window.head) == (context, len(head))
        assert 1 <= window.scored <= sequence - 1
        assert list(window.tokens[: len(head)]) == head
        rest = window.tokens[len(head) :]
        np.testing.assert_array_equal(rest, ids[window.document][rest[0] % 1000 :][: len(rest)])
        targets = window.tokens[context + 1 :].tolist()
        assert len(targets) == window.scored
        assert seen.isdisjoint(targets)
        seen.update(targets)
    for n, tokens in zip(lengths, ids.values(), strict=True):
        if n + len(head) > context + 1:  # no document with something to score is left out
            assert any(window.tokens[-1] in tokens for window in everything)


def test_windows_of_one_document_overlap_in_their_contexts_alone():
    windows = take({"a": np.arange(100)}, 10**9, 10, context=30)
    assert [(int(w.tokens[0]), int(w.tokens[30]), int(w.tokens[-1])) for w in windows] == [
        (start, start + 30, min(start + 39, 99)) for start in range(0, 70, 10)
    ]
    begun = take({"a": np.arange(100)}, 10**9, 10, [555], context=30)
    assert [(int(w.tokens[0]), int(w.tokens[1]), int(w.tokens[-1])) for w in begun] == [
        (555, start, min(start + 38, 99)) for start in range(0, 70, 10)
    ]
    assert all(len(w.tokens) <= 40 for w in windows + begun)


def test_a_context_lets_every_document_take_part_before_any_goes_on():
    ids = {name: np.arange(n) for name, n in (("long", 100), ("short", 25), ("none", 21), ("middle", 45))}
    windows = take(ids, 10**9, 10, context=20)
    assert [w.document for w in windows][:5] == ["long", "short", "middle", "long", "middle"]
    assert [w.scored for w in windows][:5] == [9, 4, 9, 9, 9]


def test_no_context_changes_nothing():
    ids = {"a": np.arange(70), "b": np.arange(33)}
    for head in ([], [7]):
        assert [w.tokens.tolist() for w in take(ids, 60, 11, head)] == [
            w.tokens.tolist() for w in take(ids, 60, 11, head, 0)
        ]
    texts = documents([100] * 60)
    before = split_documents(texts, letters(), NEEDS, 32, 0)
    after = split_documents(texts, letters(), NEEDS, 32, 0, context=0)
    assert [split.digest for split in before.values()] == [split.digest for split in after.values()]
    assert all(window.prefix == 0 for split in before.values() for window in split.windows)


@given(PARAGRAPHS, st.integers(0, 5), st.integers(1, 200))
def test_splits_after_a_context_share_no_document(lengths, seed, context):
    try:
        splits = split_documents(
            documents(lengths), letters("<s>"), NEEDS, 32, seed, allow_shortfall=True, context=context
        )
    except InputError:  # too few documents for four splits
        reject()
    owners = [{window.document for window in split.windows} for split in splits.values()]
    assert sum(map(len, owners)) == len(set.union(*owners))
    for split in splits.values():
        assert all(window.prefix == context for window in split.windows)
        assert split.used == sum(window.scored for window in split.windows) <= split.asked
        for window in split.windows:
            assert lengths[int(window.document[4:])] >= context + SHORTEST_DOCUMENT


def test_splits_after_a_context_get_exactly_what_they_ask_for():
    splits = split_documents(documents([300] * 40), letters(), NEEDS, 32, 0, context=150)
    for name, split in splits.items():
        assert split.asked == split.used == NEEDS[name]
        assert max(len(window.tokens) for window in split.windows) == 150 + 32


@pytest.mark.parametrize(
    ("lengths", "needs", "words"),
    [
        ([180] * 9, NEEDS, r"windows of 32 tokens after 150 of context .* longest document has 180\."),
        (
            [190, 160, 160],
            NEEDS,
            r"too few documents longer than the 150 tokens of text\.prefix, none is left for .*",
        ),
        (
            [300] * 40,
            {**NEEDS, "holdout": 9000},
            r"too few tokens in documents longer than the 150 tokens of text\.prefix: .*, holdout asks for "
            r"9000 and has \d+; .*allow_shortfall",
        ),
    ],
)
def test_a_text_that_is_too_short_for_the_context_is_refused(lengths, needs, words):
    with pytest.raises(InputError, match=words):
        split_documents(documents(lengths), letters(), needs, 32, 0, context=150)


@pytest.mark.parametrize("head", [0, 1])
@pytest.mark.parametrize("prefix", [3, 10, 40])
def test_less_context_before_the_same_tokens(head, prefix):
    window = Window("a", np.arange(60), prefix, head)
    for less in range(prefix + 1):
        after = window.after(less)
        assert (after.document, after.prefix, after.head, after.scored) == ("a", less, head, window.scored)
        assert list(after.tokens[:head]) == list(range(head))
        assert list(after.tokens[less + 1 :]) == list(range(prefix + 1, 60))
    assert list(window.after(prefix).tokens) == list(window.tokens)


def test_digests_know_how_many_tokens_are_scored():
    tokens = np.arange(40)
    digests = {digest_windows([Window("a", tokens, prefix)]) for prefix in (0, 1, 2, 20)}
    assert len(digests) == 4
    # As before there were prefixes, so that what was measured then is found again.
    assert hashlib.sha256(b"a\0" + tokens.tobytes()).hexdigest() == digest_windows([Window("a", tokens)])


FIRST = "The quick brown fox jumps over the lazy dog and runs away."
SECOND = "A statement is part of a suite, which is either an expression or a construct."


def test_repeated_paragraphs_are_dropped_within_and_across_documents():
    text = deduplicate(
        [
            Document("a", f"{FIRST}\n\n    {SECOND}\n\n{FIRST}"),
            Document("b", FIRST.upper()),
            Document("c", f"short\n\nshort\n\n{SECOND} Or so.\n\nSomething that was never said here before."),
        ]
    )
    assert list(text) == [
        Document("a", f"{FIRST}\n\n    {SECOND}"),
        Document("c", "short\n\nshort\n\nSomething that was never said here before."),
    ]
    assert text.removed == 2 * len(FIRST) + len(SECOND) + len(" Or so.")
    assert text.removed_share == text.removed / text.characters


def test_paragraph_mostly_new_stays():
    new = "but all that follows here is quite new"
    text = deduplicate([Document("a", FIRST), Document("b", f"{FIRST} {new}")])
    assert text.removed == 0


def test_text_without_repetition_is_kept():
    text = deduplicate([Document("a", FIRST), Document("b", SECOND)])
    assert [d.text for d in text] == [FIRST, SECOND]
    assert text.removed_share == 0


def test_deduplicating_again_removes_nothing():
    once = load_text("python-docs")
    assert 0.1 < once.removed_share < 0.3
    assert deduplicate(once.documents).removed == 0


def test_text_needs_an_origin():
    with pytest.raises(InputError, match="source or a dataset"):
        load_text(None)


def test_default_text_is_enough_for_a_default_run():
    tokenizer = load_model(str(train(TINY))).tokenizer
    needs = {"calibration": 4096, "selection": 8192, "validation": 8192, "holdout": 16384}
    splits = split_documents(load_text("python-docs"), tokenizer, needs, 256, 0)
    assert all(split.documents >= 8 for split in splits.values())
