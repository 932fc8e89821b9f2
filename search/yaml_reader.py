"""Safe YAML with places: plain data from a settings file, and the line that every key stands on.

The file is read as a stream of parser events, so that everything a settings file has no use for
(tags, anchors, aliases, several documents, deep nesting) is refused before anything is built from
it. Plain scalars follow the YAML 1.2 core schema rather than PyYAML's 1.1: ``yes``, ``no``, ``on``
and ``off`` are text, ``010`` is ten, ``1:30`` and ``2024-05-01`` are text.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tightfit.spaces import InputError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 12
_SHOWN_PROBLEMS = 50

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
# Longer numbers become floats: Python refuses to read integers of thousands of digits.
_INT = re.compile(r"[-+]?[0-9]{1,20}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,40}")

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """Where a key or value was written.

    Attributes:
        source: the file as the user named it, or ``-s key`` for a command-line override.
        line, column: counted from 1; None for an override.
    """

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


Problem = tuple[Place, str]
"""Something the user has to correct: where it is, and a sentence about it."""


class SettingsError(InputError):
    """Wrong settings; the message has one line per problem, in the order of the file.

    Attributes:
        problems: every problem with its place.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem[0].line or math.inf))
        lines = [f"{place}: {text}" for place, text in self.problems[:_SHOWN_PROBLEMS]]
        if len(self.problems) > _SHOWN_PROBLEMS:
            lines.append(f"… and {len(self.problems) - _SHOWN_PROBLEMS} more.")
        super().__init__("\n".join(lines))


@dataclass(frozen=True)
class YamlTree:
    """Plain data with places.

    Attributes:
        value: dicts, lists, strings, integers, floats, booleans and None. Keys are always strings.
        places: the place of every key and list item by its path from the root.
        problems: what must be corrected although the rest could be read, such as duplicate keys.
    """

    value: Any
    places: Mapping[KeyPath, Place]
    problems: tuple[Problem, ...]


def dotted(path: KeyPath) -> str:
    """Write a path for people: ``space.weights.pin['*.down_proj']``, ``space.weights.bits[0]``."""
    text = ""
    for step in path:
        if isinstance(step, str) and _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{shown(step)}]"
    return text


def shown(value: object) -> str:
    """Write a value from a settings file for a message, short whatever its size."""
    if isinstance(value, dict | list | tuple):
        what = "mapping" if isinstance(value, dict) else "list"
        return f"a {what}" if value else f"an empty {what}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:50]}… ({len(text)} characters)"


def read_yaml(path: Path) -> YamlTree:
    """Read a settings file whose root is a mapping.

    Raises:
        InputError: the file cannot be read, is too large, not UTF-8, empty, not YAML, not a mapping,
            or uses an alias, several documents or too deep nesting.
    """
    name = str(path)
    tree = parse_yaml(_read_text(path), Place(name, 1, 1))
    if tree.value is None:
        raise InputError(f"{name}: the file is empty; write settings such as 'budget: {{weights: 76MiB}}'.")
    if not isinstance(tree.value, dict):
        raise InputError(f"{name}: settings are a mapping of keys to values, not {shown(tree.value)}.")
    return tree


def parse_yaml(text: str, start: Place) -> YamlTree:
    """Read one YAML document.

    Args:
        text: the document.
        start: where it begins. Without a line, every place is ``start`` itself.

    Raises:
        InputError: the text is not YAML, or uses an alias, several documents or too deep nesting.
    """
    builder = _Builder(start)
    try:
        # PyYAML looks at every character as soon as it is given the text.
        builder.events = yaml.parse(text, Loader=yaml.SafeLoader)
        value = builder.document()
    except yaml.MarkedYAMLError as error:
        # An unclosed quote or a key without a colon is found only later, at the end or in the next line.
        early = "quoted scalar" in (error.context or "") or "simple key" in (error.context or "")
        raise builder.fatal(error.context_mark if early else error.problem_mark, _syntax(error)) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        place = Place(start.source, line) if start.line else start
        code = f"U+{ord(text[error.position]):04X}"
        raise SettingsError([(place, f"the character {code} may not stand in a YAML file.")]) from error
    except (ValueError, OverflowError) as error:
        # PyYAML converts the numbers in "\U…" escapes and "%YAML …" lines without checking them.
        raise SettingsError([(Place(start.source), f"not valid YAML: {error}.")]) from error
    return YamlTree(value, builder.places, tuple(builder.problems))


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise InputError(f"{path}: the file cannot be read ({error.strerror}).") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: a settings file may have at most {MAX_BYTES // 1024} KiB.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: the file is not UTF-8 text; save it as UTF-8.") from error


def _syntax(error: yaml.MarkedYAMLError) -> str:
    """Say what is wrong in the words of someone who writes settings, not of a parser."""
    problem, context = error.problem or "", error.context or ""
    if r"'\t'" in problem:
        return "found a tab; indent with spaces"
    if "single document" in context:
        return "a second document begins; a settings file is one document"
    if "alias" in context or "anchor" in context:
        return _quote("*" if "alias" in context else "&", "alias" if "alias" in context else "anchor")
    hint = "; quote text that begins with this character" if "cannot start any token" in problem else ""
    return f"not valid YAML: {problem}{f' ({context})' if context else ''}{hint}"


def _quote(mark: str, what: str) -> str:
    return (
        f"YAML reads text that begins with {mark!r} as an {what}, and those are not accepted; "
        f"quote it, such as '{mark}.down_proj'"
    )


class _Builder:
    """Builds plain data from parser events; remembers places and problems."""

    def __init__(self, start: Place) -> None:
        self.start = start
        self.events: Iterator[Any] = iter(())
        self.places: dict[KeyPath, Place] = {}
        self.problems: list[Problem] = []

    def place(self, mark: Any) -> Place:
        if self.start.line is None or mark is None:
            return Place(self.start.source)
        return Place(self.start.source, mark.line + 1, mark.column + 1)

    def fatal(self, mark: Any, text: str) -> SettingsError:
        """Return an error that ends the reading, together with the problems met so far."""
        place = self.place(mark)
        column = f" (column {place.column})" if place.column else ""
        return SettingsError([*self.problems, (place, f"{text}{column}.")])

    def document(self) -> Any:
        next(self.events)  # the stream starts
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return None
        value = self.node(next(self.events), ())
        next(self.events)  # the document ends
        extra = next(self.events)
        if not isinstance(extra, yaml.StreamEndEvent):
            raise self.fatal(extra.start_mark, "a second document begins; a settings file is one document")
        return value

    def node(self, event: Any, path: KeyPath) -> Any:
        self.check(event)
        self.places.setdefault(path, self.place(event.start_mark))
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if len(path) >= MAX_DEPTH:
            raise self.fatal(event.start_mark, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.SequenceStartEvent):
            items = enumerate(self.until(yaml.SequenceEndEvent))
            return [self.node(item, (*path, index)) for index, item in items]
        return self.mapping(path)

    def mapping(self, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, Place] = {}
        for event in self.until(yaml.MappingEndEvent):
            self.check(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise self.fatal(event.start_mark, "a key must be text, not a list or a mapping")
            key, place = str(event.value), self.place(event.start_mark)
            if key in first:
                where = f", first in line {first[key].line}" if place.line else ""
                self.problems.append((place, f"{dotted((*path, key))}: the key is given twice{where}."))
            first.setdefault(key, place)
            self.places.setdefault((*path, key), place)
            value = self.node(next(self.events), (*path, key))
            result.setdefault(key, value)
        return result

    def until(self, end: type) -> Iterator[Any]:
        return itertools.takewhile(lambda event: not isinstance(event, end), self.events)

    def check(self, event: Any) -> None:
        """Refuse what no settings file needs."""
        if isinstance(event, yaml.AliasEvent):
            raise self.fatal(event.start_mark, _quote("*", "alias"))
        place = self.place(event.start_mark)
        if event.anchor is not None:
            self.problems.append((place, f"{_quote('&', 'anchor')}."))
        if event.tag is not None:
            self.problems.append((place, f"the tag {shown(event.tag)} is not accepted; write a plain value."))
        unusable = _UNUSABLE.search(event.value) if isinstance(event, yaml.ScalarEvent) else None
        if unusable:
            what = "a line break" if unusable[0] == "\n" else f"the character U+{ord(unusable[0]):04X}"
            self.problems.append((place, f"a key or value contains {what}, which no setting can hold."))


def _scalar(event: Any) -> str | int | float | bool | None:
    """Convert a scalar by the rules of the YAML 1.2 core schema; quoted text stays text."""
    text: str = event.value
    if event.style:
        return text
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    return text
