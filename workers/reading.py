"""Read documents: from CPython's language reference, files, folders and Hugging Face datasets."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tightfit.spaces import InputError, suggest

PYTHON_DOCS = "python-docs"
CHUNK_CHARACTERS = 2000
"""About how long the documents are that a text file without headings is cut into."""

DATASET_CHARACTERS = 10_000_000
"""Rows of a dataset are read until they reach this length together, so that a web corpus is usable."""

_HEADING = re.compile(r"^ ?= [^=\n]+ = ?$", re.MULTILINE)  # level 1 only: level 2 is " = = Title = = "
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")
_SUFFIXES = (".txt", ".md", ".jsonl")


@dataclass(frozen=True)
class Document:
    """A text that belongs together; losses are resampled by document."""

    id: str
    text: str


class DatasetSource(Protocol):
    """Which column of which Hugging Face dataset to read."""

    id: str
    config: str | None
    split: str
    column: str


def read_documents(source: str) -> list[Document]:
    """Read the documents of a text source.

    - ``python-docs``: every topic of :mod:`pydoc_data.topics` is a document.
    - a ``.txt`` or ``.md`` file: split at WikiText's level-1 headings (`` = Title = ``) where there
      are several, otherwise into runs of whole paragraphs of about 2,000 characters. Such runs are
      neighbours in one text, so the splits made from them are less independent.
    - a ``.jsonl`` file: the key ``text`` of every line is a document.
    - a folder: every ``.txt`` and ``.md`` file in it or below is one document, every line of a
      ``.jsonl`` file another.

    Raises:
        InputError: the source is missing, empty, not UTF-8, or of another kind.
    """
    path = Path(source).expanduser()
    if source == PYTHON_DOCS:
        documents = _python_docs()
    elif path.is_dir():
        documents = list(_folder(path))
    elif path.is_file() and path.suffix in _SUFFIXES:
        text = _read(path)
        documents = _jsonl(path.name, text) if path.suffix == ".jsonl" else _cut(path.name, text)
    elif path.is_file():
        raise InputError(f"text {source!r}: only {', '.join(_SUFFIXES)} files can be read.")
    else:
        hint = suggest(source, [PYTHON_DOCS])
        raise InputError(f"text {source!r} is neither {PYTHON_DOCS} nor a file nor a folder.{hint}")
    return _not_empty(documents, source)


def read_dataset(source: DatasetSource) -> list[Document]:
    """Read a column of a Hugging Face dataset, its first ten million characters at most.

    Rows are documents; where they hold the lines of WikiText articles, the articles are.

    Raises:
        InputError: the package ``datasets`` is missing, or the dataset, split or column is.
    """
    rows = list(_rows(source))
    articles = "\n".join(rows)
    if len(_HEADING.findall(articles)) > 1:
        return _cut(source.id, articles)
    documents = [Document(f"{source.id}#{i}", row) for i, row in enumerate(rows)]
    return _not_empty(documents, source.id)


def split_paragraphs(text: str) -> list[str]:
    """Split at blank lines, keeping the indentation of every paragraph; none is blank."""
    return [p.rstrip() for p in _BLANK_LINES.split(text.strip("\n")) if p.strip()]


def _python_docs() -> list[Document]:
    from pydoc_data.topics import topics

    return [Document(name, text) for name, text in sorted(topics.items())]


def _folder(folder: Path) -> Iterator[Document]:
    for path in sorted(p for p in folder.rglob("*") if p.suffix in _SUFFIXES and p.is_file()):
        name, text = path.relative_to(folder).as_posix(), _read(path)
        if path.suffix == ".jsonl":
            yield from _jsonl(name, text)
        else:
            yield Document(name, text)


def _jsonl(name: str, content: str) -> list[Document]:
    documents = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{name}, line {number}: is not valid JSON ({error}).") from error
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise InputError(f"{name}, line {number}: must be an object with the text under 'text'.")
        documents.append(Document(f"{name}#{number}", row["text"]))
    return documents


def _cut(name: str, text: str) -> list[Document]:
    """Cut one long text into documents, at level-1 headings or into runs of paragraphs."""
    starts = [match.start() for match in _HEADING.finditer(text)]
    if len(starts) > 1:
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *starts, len(text)])]
    else:
        pieces = _runs(split_paragraphs(text))
    return [Document(f"{name}#{i}", piece) for i, piece in enumerate(pieces) if piece.strip()]


def _runs(paragraphs: Sequence[str]) -> list[str]:
    """Join consecutive paragraphs until each run is long enough to be a document."""
    runs: list[str] = []
    current: list[str] = []
    for paragraph in paragraphs:
        current.append(paragraph)
        if sum(map(len, current)) >= CHUNK_CHARACTERS:
            runs.append("\n\n".join(current))
            current = []
    return [*runs, "\n\n".join(current)] if current else runs


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"text {str(path)!r}: is not UTF-8 (byte {error.start}).") from error
    except OSError as error:
        raise InputError(f"text {str(path)!r}: could not be read ({error.strerror}).") from error


def _rows(source: DatasetSource) -> Iterator[str]:
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise InputError(
            "text.dataset needs the package datasets: install it with pip install 'tightfit[data]'."
        ) from error
    length = 0
    try:
        for row in load_dataset(source.id, source.config, split=source.split, streaming=True):
            if not isinstance(row.get(source.column), str):
                raise InputError(
                    f"dataset {source.id!r}: column {source.column!r} holds no text "
                    f"(columns: {', '.join(row)}).{suggest(source.column, row)}"
                )
            yield row[source.column]
            length += len(row[source.column])
            if length >= DATASET_CHARACTERS:
                return
    except (OSError, ValueError, DatasetsError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"dataset {source.id!r} could not be read: {reason}") from error


def _not_empty(documents: list[Document], source: str) -> list[Document]:
    kept = [document for document in documents if document.text.strip()]
    if not kept:
        raise InputError(f"text {source!r}: holds no text.")
    return kept
