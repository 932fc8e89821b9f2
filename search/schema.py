"""The JSON schema of the settings, and the sentences about wrong settings that are drawn from it.

Editors check ``search.yaml`` against the schema while it is written; the messages, the settings
reference in ``docs/settings.md`` and the schema say the same because they come from the same models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tightfit.search.yaml_reader import KeyPath, Place, Problem, dotted, shown
from tightfit.spaces import suggest

Schema = dict[str, Any]

_FORMATS: dict[str | None, str] = {"size": "a size", "duration": "a duration"}


def schema_of(model: type[BaseModel], title: str) -> Schema:
    """Return the JSON schema (draft 2020-12) of a settings model, written as one tree."""
    schema = model.model_json_schema()
    tree = _inline(schema, schema.pop("$defs", {}))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **tree}


def _inline(node: Any, definitions: Mapping[str, Schema]) -> Any:
    """Put every referenced definition where it is used; drop the titles, which repeat the keys."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        own = {key: value for key, value in node.items() if key != "$ref"}
        return _inline({**definitions[node["$ref"].rpartition("/")[2]], **own}, definitions)
    return {
        key: _inline(value, definitions)
        for key, value in node.items()
        if key != "title" or not isinstance(value, str)
    }


def node_at(schema: Schema, path: KeyPath) -> Schema:
    """Return the part of the schema that a path leads to, or ``{}`` where it leads nowhere."""
    node = schema
    for step in path:
        node = _without_null(node)
        if isinstance(step, int):
            node = node.get("items", {})
        elif "properties" in node:
            node = node["properties"].get(step, {})
        else:
            below = node.get("additionalProperties", {})
            node = below if isinstance(below, dict) else {}
    return node


def takes_keys(node: Schema) -> bool:
    """Whether this part of the settings is a mapping."""
    return _without_null(node).get("type") == "object"


def takes_patterns(node: Schema) -> bool:
    """Whether this part of the settings maps names that the user chooses, rather than known keys."""
    return isinstance(_without_null(node).get("additionalProperties"), dict)


def keys(schema: Schema, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Schema]]:
    """Yield every settable key with its schema, sections before the keys inside them."""
    for key, node in _without_null(schema).get("properties", {}).items():
        yield (*path, key), node
        yield from keys(node, (*path, key))


def describe(node: Schema) -> str:
    """Say which values a part of the schema allows, such as ``a whole number from 1 to 64``."""
    if "anyOf" in node:
        return f"{describe(_without_null(node))}, or null"
    if "enum" in node:
        return f"one of {', '.join(map(str, node['enum']))}"
    match node.get("type"):
        case "integer":
            return f"a whole number from {node['minimum']} to {node['maximum']}"
        case "number":
            return f"a number above {node['exclusiveMinimum']} and at most {node['maximum']}"
        case "boolean":
            return "true or false"
        case "string":
            return f"{_FORMATS.get(node.get('format'), 'text')} such as {node['examples'][0]}"
        case "array":
            kind = "a non-empty list" if node.get("minItems") else "a list"
            return f"{kind}, each item {describe(node['items'])}"
        case _ if "properties" in node:
            return f"a mapping with keys among {', '.join(node['properties'])}"
        case _:
            return f"a mapping from site patterns to values, each {describe(node['additionalProperties'])}"


def problems_of(error: ValidationError, schema: Schema, places: Mapping[KeyPath, Place]) -> list[Problem]:
    """Turn what the models found into sentences with places.

    Args:
        error: what validation raised.
        schema: from :func:`schema_of`, of the same model.
        places: the place of every known path; must have an entry for the root, ``()``.
    """
    details = error.errors(include_url=False)
    paths = [_path(detail) for detail in details]
    # A list with a wrong item is also reported as too short; the item alone says it better.
    inner = {path[:length] for path in paths for length in range(len(path))}
    return [
        (place := _place(places, path), _located(place, path, _sentence(detail, path, schema)))
        for detail, path in zip(details, paths, strict=True)
        if path not in inner
    ]


def _path(detail: ErrorDetails) -> KeyPath:
    path = detail["loc"]
    return path[:-1] if path and path[-1] == "[key]" else path


def _place(places: Mapping[KeyPath, Place], path: KeyPath) -> Place:
    """Return the place of the longest known start of a path."""
    return next(places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in places)


def _located(place: Place, path: KeyPath, sentence: str) -> str:
    """Put the key before a sentence, unless the place or the sentence names it already."""
    key = dotted(path)
    sentence = sentence.removeprefix(f"{key}: ")
    named = not key or place.source == f"-s {key}" or sentence.startswith(f"{key}.")
    return sentence if named else f"{key}: {sentence}"


def _sentence(detail: ErrorDetails, path: KeyPath, schema: Schema) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return _unknown_key(path, schema)
    if kind == "missing":
        return f"the key is missing; give {describe(node_at(schema, path))}."
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if detail["loc"] and detail["loc"][-1] == "[key]":
        return f"{shown(path[-1])} is not a site pattern."
    node = node_at(schema, path)
    return f"{shown(value)} is not {describe(node)}.{_hint(value, _without_null(node))}"


def _hint(value: object, node: Schema) -> str:
    if "enum" in node:
        return suggest(value, map(str, node["enum"])) if isinstance(value, str) else ""
    if node.get("type") == "string" and isinstance(value, bool | int | float):
        fits = re.search(node.get("pattern", ""), shown(value))
        return " Quote it to make it text." if fits else ""
    return ""


def _unknown_key(path: KeyPath, schema: Schema) -> str:
    """Name a key of that name elsewhere, or else the nearest known key beside it."""
    key = str(path[-1])
    known = list(_without_null(node_at(schema, path[:-1]))["properties"])
    elsewhere = [dotted(other) for other, _ in keys(schema) if other[-1] == key]
    hint = f" Did you mean {elsewhere[0]!r}?" if elsewhere else suggest(key, known)
    return f"unknown key; known here: {', '.join(known)}.{hint}"


def _without_null(node: Schema) -> Schema:
    """Return the part of an optional value's schema that is not null."""
    if "anyOf" not in node:
        return node
    return next(part for part in node["anyOf"] if part != {"type": "null"})
