from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tightfit.search.yaml_reader import (
    MAX_BYTES,
    MAX_DEPTH,
    Place,
    SettingsError,
    YamlTree,
    dotted,
    parse_yaml,
    read_yaml,
    shown,
)
from tightfit.spaces import InputError

START = Place("f.yaml", 1, 1)


def parse(text: str) -> YamlTree:
    return parse_yaml(text, START)


def problems(text: str) -> list[str]:
    """Every sentence about the text, whether or not reading went on."""
    try:
        found = parse(text).problems
    except SettingsError as error:
        found = error.problems
    return [f"{place}: {sentence}" for place, sentence in found]


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "search.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(word, word) for word in ("yes", "No", "on", "OFF", "y", "n", "=", "<<")],
        *[(word, word == "True") for word in ("True", "False")],
        *[(word, None) for word in ("null", "~", "", "Null")],
        ("010", 10),
        ("-3", -3),
        ("+7", 7),
        ("0x1f", "0x1f"),
        ("0o17", "0o17"),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-05-01", "2024-05-01"),
        ("4.5", 4.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1e999", math.inf),
        ("-.inf", -math.inf),
        ("'12'", "12"),
        ('"true"', "true"),
        ("'null'", "null"),
        ("9" * 5000, math.inf),
        ("76MiB", "76MiB"),
        ("8b-g64-float", "8b-g64-float"),
        ("[1, [a, {b: ~}]]", [1, ["a", {"b": None}]]),
        ("{}", {}),
        ("١٢", "١٢"),
    ],
)
def test_values_follow_the_yaml_1_2_core_schema(text: str, value: Any) -> None:
    got = parse(f"key: {text}").value["key"]
    assert got == value
    assert type(got) is type(value)


def test_nan_is_read_as_nan() -> None:
    assert math.isnan(parse("key: .nan").value["key"])


def test_keys_are_text_whatever_they_look_like() -> None:
    assert parse("{1: a, true: b, ~: c, 2.0: d, <<: {x: 1}}").value == {
        "1": "a", "true": "b", "~": "c", "2.0": "d", "<<": {"x": 1},
    }  # fmt: skip


def test_every_key_and_item_has_its_place() -> None:
    tree = parse("# comment\nname: demo\nbudget:\n  weights:\n    76MiB\nbits: [3,\n       4]\n")
    assert tree.places[("name",)] == Place("f.yaml", 2, 1)
    assert tree.places[("budget", "weights")] == Place("f.yaml", 4, 3)
    assert tree.places[("bits", 1)] == Place("f.yaml", 7, 8)
    assert str(tree.places[("bits", 0)]) == "f.yaml:6"


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['echo']",
        "a: !!python/name:os.system",
        "a: !!int '3'",
        "a: !custom {b: 1}",
        "a: ! 3",
        "a: !<tag:yaml.org,2002:str> 3",
        "!!map {a: 1}",
        "!!str a: 1",
        "%TAG ! tag:example.org,2000:\n---\na: !x 1",
        "a:\n  - b:\n      - !!set {c}",
    ],
)
def test_tags_are_refused(text: str) -> None:
    (sentence,) = problems(text)
    assert "tag" in sentence
    assert sentence.startswith(f"f.yaml:{text.count(chr(10)) + 1}: ")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "mark"),
    [
        (BOMB, 2, "'*'"),
        ("a: &a [*a]", 1, "'*'"),
        ("a: &x 1\nb: *x", 2, "'*'"),
        ("a: 1\nb: *unknown", 2, "'*'"),
        ("*unknown : 1", 1, "'*'"),
        ("only:\n  *.down_proj: [3]", 2, "'*'"),
        ("exclude: [*.down_proj]", 1, "'*'"),
        ("exclude:\n- *", 2, "'*'"),
        ("a: &", 1, "'&'"),
        ("a: 1\nb: &b {c: 1}", 2, "'&'"),
        ("&key a: 1", 1, "'&'"),
    ],
)
def test_anchors_and_aliases_are_refused_with_the_advice_to_quote(text: str, line: int, mark: str) -> None:
    sentence = problems(text)[-1]
    assert sentence.startswith(f"f.yaml:{line}: ")
    assert mark in sentence
    assert "quote it, such as '" in sentence


def test_quoted_patterns_are_read() -> None:
    assert parse("{'*.down_proj': ['&x', \"*\"]}").value == {"*.down_proj": ["&x", "*"]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml:3: a: the key is given twice, first in line 1."),
        ("a: 1\n'a': 3", "f.yaml:2: a: the key is given twice, first in line 1."),
        ("{a: 1, \n\n a: 1}", "f.yaml:3: a: the key is given twice, first in line 1."),
        (
            "x:\n  y:\n    z: 1\n    w: 2\n    z: 1",
            "f.yaml:5: x.y.z: the key is given twice, first in line 3.",
        ),
        ("x:\n- {a: 1}\n- {b: 1, b: 2}", "f.yaml:3: x[1].b: the key is given twice, first in line 3."),
        ("pin: {'*.a': x, '*.a': x}", "f.yaml:1: pin['*.a']: the key is given twice, first in line 1."),
    ],
)
def test_duplicate_keys_name_both_lines(text: str, sentence: str) -> None:
    assert problems(text) == [sentence]


def test_the_first_of_two_equal_keys_counts() -> None:
    assert parse("a: {b: 1}\na: {b: 2, c: 3}").value == {"a": {"b": 1}}


def test_all_problems_that_can_be_read_past_come_together() -> None:
    found = problems("a: !x 1\nb: &b 2\nc: 3\nc: 4\nd: *b\n")
    assert [sentence.split(":")[1] for sentence in found] == ["1", "2", "4", "5"]


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a:\n\tb: 1", 2, 1, "found a tab; indent with spaces"),
        ("a: 1\n--- \nb: 2", 2, 1, "a second document begins"),
        ("a: 1\n...\n---\nb: 2", 3, 1, "a second document begins"),
        ("a: b: c", 1, 5, "not valid YAML: mapping values are not allowed here"),
        ("a: [1, 2", 1, 9, "expected ',' or ']'"),
        ("a: 'x\n\nb: 2", 1, 4, "found unexpected end of stream"),
        ("a: @x", 1, 4, "quote text that begins with this character"),
        ("a: `x`", 1, 4, "quote text that begins with this character"),
        ("a: 1\n  b: 2", 2, 4, "mapping values are not allowed here"),
        ("a: 1\nb\nc: 1", 2, 1, "could not find expected ':'"),
        ("? [a, b]\n: 1", 1, 3, "a key must be text"),
        ("{{a: 1}: 2}", 1, 2, "a key must be text"),
    ],
)  # fmt: skip
def test_syntax_errors_are_one_sentence_with_line_and_column(
    text: str, line: int, column: int, words: str
) -> None:
    (sentence,) = problems(text)
    assert sentence.startswith(f"f.yaml:{line}: ")
    assert sentence.endswith(f"(column {column}).")
    assert words in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "a:\n"])
def test_deep_nesting_is_refused(opening: str) -> None:
    text = "".join(" " * depth + "a:\n" for depth in range(500)) if opening == "a:\n" else opening * 3000
    assert f"nested more than {MAX_DEPTH} levels deep" in problems(text)[0]


def test_the_deepest_accepted_nesting_is_read() -> None:
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH).problems == ()
    with pytest.raises(SettingsError):
        parse("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("a: 1\nb: \x00", 2, "U+0000"),
        ("a: \x07", 1, "U+0007"),
        ('a: 1\nb: "\\0"', 2, "U+0000"),
        ('a: "\\uD800"', 1, "U+D800"),
        ('"\\x1b[31m": 1', 1, "U+001B"),
        ("a: |\n  two\n  lines\n", 1, "a line break"),
    ],
)
def test_control_characters_are_refused(text: str, line: int, code: str) -> None:
    (sentence,) = problems(text)
    assert sentence.startswith(f"f.yaml:{line}: ")
    assert code in sentence


@pytest.mark.parametrize("text", ['a: "\\UFFFFFFFF"', 'a: "\\U00110000"', f"%YAML {'9' * 5000}.1\n---\na: 1"])
def test_numbers_that_the_parser_does_not_check_are_refused(text: str) -> None:
    (sentence,) = problems(text)
    assert sentence.startswith("f.yaml: not valid YAML")


any_text = st.text(st.characters(codec="utf-8"), max_size=60)
yaml_like = st.text("a1:-[]{},&*!|>'\"%@?# \n\t", max_size=40)


@given(any_text | yaml_like)
@example("\ufeff")
@example("a: \u2028b")
def test_any_text_gives_a_tree_or_problems(text: str) -> None:
    """Nothing but our own error leaves the reader."""
    for sentence in problems(text):
        assert sentence.startswith("f.yaml:")


json_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False)
    | st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(categories=["L", "N", "P"])), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(data=json_data, flow=st.booleans())
def test_what_a_yaml_writer_writes_is_read_back(data: Any, flow: bool) -> None:
    text = yaml.safe_dump({"root": data}, allow_unicode=True, default_flow_style=flow, width=10**6)
    tree = parse(text)
    assert tree.value == {"root": data}
    assert tree.problems == ()


def test_without_a_line_every_place_is_the_start() -> None:
    start = Place("-s bits")
    assert set(parse_yaml("[1, {a: 2}]", start).places.values()) == {start}
    with pytest.raises(SettingsError, match=r"^-s bits: YAML reads text that begins with '\*'.*$"):
        parse_yaml("[*.down_proj]", start)


def test_the_message_is_in_file_order_and_bounded() -> None:
    text = "".join(f"k{index}: !x 1\n" for index in range(200))
    error = SettingsError([(Place("-s k"), "last."), *reversed(parse(text).problems)])
    lines = str(error).splitlines()
    assert lines[0].startswith("f.yaml:1: ")
    assert lines[1].startswith("f.yaml:2: ")
    assert lines[-1] == "… and 151 more."
    assert len(lines) == 51


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "search.yaml: the file is empty"),
        (b"# nothing\n\n", "search.yaml: the file is empty"),
        (b"---\n", "search.yaml: the file is empty"),
        (b"null\n", "search.yaml: the file is empty"),
        (b"- a\n- b\n", "not a list."),
        (b"text\n", "not 'text'."),
        (b"3\n", "not 3."),
        (b"a: 1\nb: \xff\xfe\n", "search.yaml:2: the file is not UTF-8"),
        ("name: café\n".encode("latin-1"), "search.yaml:1: the file is not UTF-8"),
        ("a: 1\n".encode("utf-16"), "search.yaml:1: the file is not UTF-8"),
        (b"a: 1\n" + b"#" * MAX_BYTES, "at most 256 KiB"),
    ],
)
def test_files_that_are_no_settings_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_yaml(write(tmp_path, content))
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    tree = read_yaml(write(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: 2\r\n"))
    assert tree.value == {"a": 1, "b": 2}
    assert tree.places[("b",)].line == 2


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, b"a: 1\n" + b"#" * (MAX_BYTES - 5))).value == {"a": 1}


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read_yaml(tmp_path / "nowhere.yaml")
    with pytest.raises(InputError, match="the file cannot be read"):
        read_yaml(tmp_path)


def test_paths_are_written_for_people() -> None:
    assert dotted(()) == ""
    assert dotted(("space", "weights", "bits", 0)) == "space.weights.bits[0]"
    assert dotted(("pin", "*.down_proj")) == "pin['*.down_proj']"
    assert dotted(("a b", "c")) == "['a b'].c"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"), (True, "true"), ([], "an empty list"), ({}, "an empty mapping"), ([1], "a list"),
        ({"a": 1}, "a mapping"), ("x", "'x'"), (1.5, "1.5"),
    ],
)  # fmt: skip
def test_values_are_shown_as_yaml_has_them(value: object, text: str) -> None:
    assert shown(value) == text


def test_long_values_are_cut() -> None:
    assert len(shown("x" * 10**6)) < 100
