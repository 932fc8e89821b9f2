"""Command-line overrides: ``-s budget.weights=80MiB`` changes one key of the settings file."""

from __future__ import annotations

from typing import Any

from tightfit.search.schema import Schema, node_at, takes_keys, takes_patterns
from tightfit.search.yaml_reader import KeyPath, Place, Problem, SettingsError, dotted, parse_yaml


def apply_override(
    text: str, data: dict[str, Any], places: dict[KeyPath, Place], schema: Schema
) -> list[Problem]:
    """Write one override into the data and the places of a settings file.

    Keys that do not exist are written too: validation then names them together with the file's own.

    Args:
        text: ``key=value``; the key dotted, the value YAML.
        data: the values of the settings file; changed.
        places: the places of the settings file; changed.
        schema: the JSON schema of the settings.

    Returns:
        What is wrong with the override itself.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    place = Place(f"-s {key}")
    if not key or not equals:
        return [(Place(f"-s {text}"), "write an override as key=value, such as budget.weights=80MiB.")]
    path = _key_path(key, schema)
    for length in range(1, len(path)):
        node = node_at(schema, path[:length])
        if node and not takes_keys(node):
            return [(place, f"{dotted(path[:length])} has no keys below it.")]
    try:
        tree = parse_yaml(value, place)
    except SettingsError as error:
        return list(error.problems)
    if () not in tree.places:
        return [(place, "the value is missing; write null to unset a key.")]
    if _write(data, path, tree.value):
        for old in [known for known in places if known[: len(path)] == path]:
            del places[old]
        for length in range(1, len(path)):
            places.setdefault(path[:length], place)
        places.update({path + inner: place for inner in tree.places})
    return list(tree.problems)


def _key_path(key: str, schema: Schema) -> KeyPath:
    """Split a dotted key; below ``only`` and ``pin`` the rest is one pattern, dots included."""
    steps = key.split(".")
    for length in range(1, len(steps)):
        if takes_patterns(node_at(schema, tuple(steps[:length]))):
            return (*steps[:length], ".".join(steps[length:]))
    return tuple(steps)


def _write(data: dict[str, Any], path: KeyPath, value: Any) -> bool:
    """Set a value, creating sections on the way.

    Returns:
        False where the file has something else in place of a section, which validation reports.
    """
    section: Any = data
    for step in path[:-1]:
        if section.get(step) is None:
            section[step] = {}
        section = section[step]
        if not isinstance(section, dict):
            return False
    section[path[-1]] = value
    return True
