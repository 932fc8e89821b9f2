"""The text that losses are measured on: read it, drop what repeats, split it by document.

A loss is only worth something on text that neither the quantizer nor the search has seen. So the
four parts of a text share no document, and paragraphs that repeat are dropped before anything is
split: the language reference that CPython ships, for one, prints whole sections twice.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.spaces import InputError
from tightfit.workers.reading import (
    DatasetSource,
    Document,
    read_dataset,
    read_documents,
    split_paragraphs,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHORTEST_DOCUMENT = 32
"""Documents of fewer tokens are left out: they have too little context to say anything."""

_GRAM = 8
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Text:
    """Documents without their repeated paragraphs.

    Attributes:
        documents: what is left.
        characters: length of the text as it was read.
        removed: characters of it that were dropped as repeated.
    """

    documents: tuple[Document, ...]
    characters: int
    removed: int

    def __iter__(self) -> Iterator[Document]:
        return iter(self.documents)

    @property
    def digest(self) -> str:
        """SHA-256 of the names and texts of all documents."""
        content = hashlib.sha256()
        for document in self.documents:
            content.update(document.id.encode() + b"\0" + document.text.encode() + b"\0")
        return content.hexdigest()

    @property
    def removed_share(self) -> float:
        """Share of the text that was dropped as repeated."""
        return self.removed / self.characters if self.characters else 0.0


@dataclass(frozen=True)
class Window:
    """Consecutive tokens of one document.

    Attributes:
        document: its id.
        tokens: int64, shape (tokens,).
        prefix: how many of them the model has read before the first prediction that is scored is asked of
            it; with 0 all tokens but the first are scored.
        head: how many of them, the first, the tokenizer puts before any text.
    """

    document: str
    tokens: NDArray[np.int64]
    prefix: int = 0
    head: int = 0

    @property
    def scored(self) -> int:
        """Number of next-token predictions that are scored."""
        return len(self.tokens) - 1 - self.prefix

    def after(self, prefix: int) -> Window:
        """Return a window that scores the same tokens after fewer of those before them.

        It still begins with what the tokenizer puts before any text: some models are lost without it.

        Args:
            prefix: at most that of this window.
        """
        rest = self.tokens[self.prefix - prefix + self.head :]
        return Window(self.document, np.concatenate([self.tokens[: self.head], rest]), prefix, self.head)


@dataclass(frozen=True)
class Split:
    """One part of a text.

    Attributes:
        windows: the tokens, the first window of every document before the second of any.
        asked: scored tokens asked for.
        used: scored tokens there are; fewer than asked only where a shortfall is allowed.
        documents: number of documents that the windows come from.
        digest: SHA-256 of documents and tokens.
    """

    windows: tuple[Window, ...]
    asked: int
    used: int
    documents: int
    digest: str


Splits = Mapping[str, Split]


def load_text(source: str | None, dataset: DatasetSource | None = None) -> Text:
    """Read a text and drop its repeated paragraphs.

    Args:
        source: ``python-docs``, a ``.txt`` or ``.jsonl`` file, or a folder; see
            :func:`tightfit.workers.reading.read_documents`.
        dataset: a Hugging Face dataset, in place of ``source``.

    Raises:
        InputError: the text is missing, empty, or cannot be read.
    """
    if dataset is not None:
        return deduplicate(read_dataset(dataset))
    if source is None:
        raise InputError("text: needs a source or a dataset.")
    return deduplicate(read_documents(source))


def deduplicate(documents: Sequence[Document]) -> Text:
    """Drop every paragraph most of whose word 8-grams occurred before, in any document.

    Paragraphs are separated by blank lines; those of fewer than eight words stay.
    """
    seen: set[tuple[str, ...]] = set()
    kept, removed = [], 0
    for document in documents:
        paragraphs = []
        for paragraph in split_paragraphs(document.text):
            grams = _grams(paragraph)
            if grams and 2 * len(grams & seen) > len(grams):
                removed += len(paragraph)
            else:
                paragraphs.append(paragraph)
            seen |= grams
        if paragraphs:
            kept.append(Document(document.id, "\n\n".join(paragraphs)))
    return Text(tuple(kept), sum(len(d.text) for d in documents), removed)


def split_documents(
    documents: Iterable[Document],
    tokenizer: Any,
    needs: Mapping[str, int],
    sequence: int,
    seed: int,
    allow_shortfall: bool = False,
    context: int = 0,
) -> dict[str, Split]:
    """Tokenize a text and split it by document.

    Every split gets documents in proportion to the tokens it asks for. Where the tokenizer begins a
    text with a special token, every window begins with it.

    Args:
        documents: the text, already deduplicated.
        tokenizer: a Transformers tokenizer.
        needs: scored tokens asked for, by split.
        sequence: most tokens of a window, those of the context not counted.
        seed: which documents go where; the same seed gives the same splits.
        allow_shortfall: go on where a split has fewer tokens than asked.
        context: tokens of its document that are read before those of a window.

    Raises:
        InputError: a split has fewer tokens than asked, every document is shorter than ``sequence``,
            or a split has no document at all.
    """
    prefix = _prefix(tokenizer)
    tokens = _tokenize(list(documents), tokenizer)
    longest = max((len(ids) for ids in tokens.values()), default=0) + len(prefix)
    if longest < context + sequence:
        after = f" after {context} of context" if context else ""
        raise InputError(
            f"text: windows of {sequence} tokens{after} are asked for, but the longest document has "
            f"{longest}."
        )
    lengths = {name: len(ids) - context for name, ids in tokens.items()}
    lengths = {name: length for name, length in lengths.items() if length >= SHORTEST_DOCUMENT}
    parts = _assign(lengths, needs, seed)
    splits = {}
    for split, need in needs.items():
        windows = take({name: tokens[name] for name in parts[split]}, need, sequence, prefix, context)
        splits[split] = Split(
            tuple(windows),
            need,
            sum(window.scored for window in windows),
            len({window.document for window in windows}),
            _digest(windows),
        )
    _check_shortfall(splits, allow_shortfall, context)
    return splits


def take(
    documents: Mapping[str, NDArray[np.int64]],
    scored: int,
    sequence: int,
    prefix: Sequence[int] = (),
    context: int = 0,
) -> list[Window]:
    """Cut windows from documents in turn until exactly a number of scored tokens is reached.

    The first window of every document comes before the second of any, so that many documents take
    part; the last window is shortened to fit. Fewer tokens come back only where there are no more.

    Args:
        documents: token ids by document.
        scored: tokens to score; a window of n tokens scores n − 1.
        sequence: most tokens of a window, prefix included, but not those of the context; at least two more
            than the prefix has.
        prefix: tokens that every window begins with.
        context: tokens that are read before those of a window, prefix included. Windows of one document
            overlap in them, but no token is scored twice.
    """
    read = max(0, context - len(prefix))  # of the document
    body = sequence if context else sequence - len(prefix)
    head = np.asarray(prefix, dtype=np.int64)
    rounds = -(-max((len(ids) for ids in documents.values()), default=0) // body)
    windows: list[Window] = []
    left = scored
    for start in range(0, rounds * body, body):
        for name, ids in documents.items():
            piece = np.concatenate([head, ids[start : start + read + body]])[: context + left + 1]
            if len(piece) > context + 1 and len(piece) > len(prefix):
                windows.append(Window(name, piece, context, len(prefix)))
                left -= windows[-1].scored
            if left == 0:
                return windows
    return windows


def _grams(paragraph: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(paragraph.lower())
    return set(zip(*(words[i:] for i in range(_GRAM)), strict=False))


def _tokenize(documents: Sequence[Document], tokenizer: Any) -> dict[str, NDArray[np.int64]]:
    """Token ids of every document, without special tokens."""
    if not documents:
        return {}
    ids = tokenizer([d.text for d in documents], add_special_tokens=False, verbose=False)["input_ids"]
    return {d.id: np.asarray(row, dtype=np.int64) for d, row in zip(documents, ids, strict=True)}


def _prefix(tokenizer: Any) -> list[int]:
    """The token that the tokenizer puts before a text, if any: some models are lost without it."""
    first = tokenizer.bos_token_id
    return [first] if first is not None and tokenizer("a")["input_ids"][:1] == [first] else []


def _assign(lengths: Mapping[str, int], needs: Mapping[str, int], seed: int) -> dict[str, list[str]]:
    """Deal documents out to splits, so that every split is filled to about the same multiple.

    Longest first, in classes of length that double, in random order within a class: each document
    goes where the split is then filled least. A small split so gets many short documents rather than
    one long one.
    """
    generator = np.random.default_rng([seed, 1])
    shuffled = [sorted(lengths)[i] for i in generator.permutation(len(lengths))]
    filled = dict.fromkeys(needs, 0)
    parts: dict[str, list[str]] = {split: [] for split in needs}
    for name in sorted(shuffled, key=lambda name: -lengths[name].bit_length()):
        split = min(needs, key=lambda split: (filled[split] + lengths[name]) / needs[split])
        filled[split] += lengths[name]
        parts[split].append(name)
    for names in parts.values():
        generator.shuffle(names)
    return parts


def _check_shortfall(splits: Splits, allowed: bool, context: int) -> None:
    empty = [name for name, split in splits.items() if not split.windows]
    longer = f" longer than the {context} tokens of text.prefix" if context else ""
    if empty:
        raise InputError(f"text: too few documents{longer}, none is left for {', '.join(empty)}.")
    short = [f"{name} asks for {s.asked} and has {s.used}" for name, s in splits.items() if s.used < s.asked]
    if short and not allowed:
        raise InputError(
            f"text: too few tokens{longer and ' in documents' + longer}: {', '.join(short)}; ask for fewer, "
            "give more text, or set text.allow_shortfall."
        )


def _digest(windows: Sequence[Window]) -> str:
    digest = hashlib.sha256()
    for window in windows:
        digest.update(f"{window.document}\0{len(window.tokens)}\0".encode() + _mark(window))
        digest.update(window.tokens.astype("<i8").tobytes())
    return digest.hexdigest()


def digest_windows(windows: Sequence[Window]) -> str:
    """SHA-256 of documents and tokens, and of how many of them are scored."""
    text = hashlib.sha256()
    for window in windows:
        text.update(window.document.encode() + b"\0" + window.tokens.tobytes() + _mark(window))
    return text.hexdigest()


def _mark(window: Window) -> bytes:
    return f"\0{window.prefix}\0".encode() if window.prefix else b""
