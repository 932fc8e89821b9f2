"""The JSON schema, the settings, the reference page and the demo file say the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tightfit.search.schema import describe, keys, node_at, takes_keys, takes_patterns
from tightfit.search.settings import Settings, json_schema, load_settings
from tightfit.search.yaml_reader import dotted, read_yaml
from tightfit.spaces import InputError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "settings.md"
SCHEMA = json_schema()
SECTIONS = {dotted(path) for path, node in keys(SCHEMA) if takes_keys(node) and not takes_patterns(node)}
LEAVES = {dotted(path): node for path, node in keys(SCHEMA) if dotted(path) not in SECTIONS}


def documented() -> dict[str, tuple[str, str, str]]:
    """Return (allowed, default, meaning) of every key in the tables of the settings reference."""
    rows, section = {}, ""
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"## (?:`([\w.]+)`|.*)", line):
            section = f"{heading[1]}." if heading[1] else ""
        if row := re.fullmatch(r"\| `(\w+)` \| (.+) \| (.+) \| (.+) \|", line):
            rows[section + row[1]] = row.groups()[1:]
    return rows


def test_the_committed_schema_is_the_generated_one() -> None:
    committed = (ROOT / "search" / "search.schema.json").read_text(encoding="utf-8")
    assert committed == json.dumps(SCHEMA, indent=2) + "\n", "docs/settings.md says how to write it again"


def test_the_schema_is_a_valid_closed_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert "$ref" not in json.dumps(SCHEMA)
    for name in ["", *SECTIONS]:
        node = node_at(SCHEMA, tuple(name.split(".")) if name else ())
        node = next((part for part in node.get("anyOf", []) if "properties" in part), node)
        assert node["additionalProperties"] is False, name


def test_every_key_has_a_description() -> None:
    for path, node in keys(SCHEMA):
        assert node.get("description", "").endswith("."), dotted(path)


def test_the_reference_documents_every_key_and_no_other() -> None:
    rows = documented()
    assert set(rows) == set(LEAVES)
    for key, node in LEAVES.items():
        allowed, default, meaning = rows[key]
        assert allowed == describe(node), key
        assert default == (f"`{json.dumps(node['default'])}`" if "default" in node else "required"), key
        assert len(meaning) > 10, key


def test_the_example_error_of_the_reference_is_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCS.read_text(encoding="utf-8")
    wrong = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[1]
    said = re.findall(r"```text\n(.*?)\n```", text, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    Path("search.yaml").write_text(wrong)
    with pytest.raises(InputError) as caught:
        load_settings("search.yaml")
    assert str(caught.value) == said


def test_the_overrides_of_the_reference_work() -> None:
    line = re.search(r"^tightfit run search.yaml (.*)$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    overrides = re.findall(r'-s "?([^" ]+)', line[1])
    assert len(overrides) == 3
    assert load_settings(ROOT / "search.yaml", overrides).budget.weights == 80 * 2**20


def test_the_demo_file_shows_every_key_with_a_comment() -> None:
    path = ROOT / "search.yaml"
    shown = {dotted(key) for key in read_yaml(path).places}
    unset = ("text.dataset.", "space.kv.")
    assert {key for key in LEAVES if not key.startswith(unset)} <= shown
    assert {"text.dataset", "space.kv"} <= shown
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# yaml-language-server: $schema=search/search.schema.json"
    assert (ROOT / lines[0].partition("=")[2]).is_file()
    bare = [line for line in lines[1:] if re.match(r"\s*\w+: \S", line) and "  # " not in line]
    assert bare == []


def test_the_demo_file_keeps_the_schema() -> None:
    jsonschema.validate(read_yaml(ROOT / "search.yaml").value, SCHEMA)


def test_stored_settings_keep_the_schema() -> None:
    jsonschema.validate(Settings.from_dict({"budget": {"weights": "1MiB"}}).to_dict(), SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"budget": None},
        {"budget": {"weights": 76}},
        {"budget": {"weights": "76"}},
        {"budget": {"weights": "76Mib"}},
        {"budget": {"wieghts": "76MiB"}},
        {"budget": {"effective_bits": 0}},
        {"budget": {"batch": 0}},
        {"seed": -1},
        {"seed": True},
        {"seeed": 1},
        {"name": "a/b"},
        {"name": ".."},
        {"device": "gpu"},
        {"target": "vlm"},
        {"model": ""},
        {"space": {"weights": {"bits": []}}},
        {"space": {"weights": {"bits": [7]}}},
        {"space": {"weights": {"bits": [4, 4]}}},
        {"space": {"weights": {"groups": [256]}}},
        {"space": {"weights": {"zeros": ["int"]}}},
        {"space": {"weights": {"only": {"": [3]}}}},
        {"space": {"weights": {"only": {"head": []}}}},
        {"space": {"weights": {"pin": {"head": "8b"}}}},
        {"space": {"weights": {"exclude": [""]}}},
        {"text": {"dataset": {"split": "a"}}},
        {"sense": None},
        {"search": {"agents": ["exakt"]}},
        {"limits": {"option_cache": "-1GiB"}},
    ],
)
def test_schema_and_settings_refuse_the_same(wrong: dict[str, Any]) -> None:
    data = wrong if "budget" in wrong or not wrong else {"budget": {"weights": "1MiB"}, **wrong}
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(data))
    with pytest.raises(InputError):
        Settings.from_dict(data)


def test_paths_lead_through_lists_patterns_and_optional_sections() -> None:
    assert node_at(SCHEMA, ("space", "weights", "only", "*.x", 0)) == node_at(
        SCHEMA, ("space", "weights", "bits", 0)
    )
    assert node_at(SCHEMA, ("text", "dataset", "id"))["type"] == "string"
    assert node_at(SCHEMA, ("seed", "x", 0, "y")) == {}
