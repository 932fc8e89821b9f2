"""What rule sets say under each loader, and which of them are refused."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.exporters.rules import LOADERS, Rule, anchored_rules, check_pattern, lint, resolve
from tightfit.spaces import InputError

BLOCK = ("attn_q", "attn_k", "attn_output", "ffn_up")
NAMES = (
    "token_embd.weight",
    *(f"blk.{n}.{part}.weight" for n in range(12) for part in BLOCK),
    "output.weight",
)


def rules(*lines: str) -> list[Rule]:
    return [Rule(*line.split("=")) for line in lines]


def meant(*lines: str, names: tuple[str, ...] = NAMES) -> dict[str, str | None]:
    """Let the first of these rules say what every name is meant to be, matching whole names."""
    parsed = rules(*lines)
    return {n: next((r.option for r in parsed if re.fullmatch(r.pattern, n)), None) for n in names}


intentions = st.dictionaries(
    st.from_regex(
        r"(blk|layers)\.(0|1|2|3|10|11|12|33)\.(attn_q|attn\.o_proj|ffn-up|up2)\.weight", fullmatch=True
    )
    | st.sampled_from(["token_embd.weight", "output.weight", "attn_output.weight", "embed", "7", "a.7"]),
    st.sampled_from(["q2_K", "q4_K", "q8_0"]),
    min_size=1,
    max_size=24,
)


@given(intentions)
def test_anchored_rules_say_what_is_meant_under_every_loader_and_match_every_name_once(
    intended: dict[str, str],
) -> None:
    written = anchored_rules(intended)
    assert sum(lint(written, intended).values()) == len(intended)
    for loader in LOADERS:
        chosen = resolve(written, tuple(intended), loader)
        assert {name: rule.option for name, rule in chosen.items() if rule} == intended


def test_layers_that_agree_share_a_rule() -> None:
    intended = {f"blk.{n}.{part}.weight": "q4_K" for n in range(12) for part in BLOCK}
    intended |= {"blk.1.ffn_up.weight": "q2_K", "blk.11.ffn_up.weight": "q2_K", "output.weight": "q6_K"}
    counts = {
        f"{rule.pattern}={rule.option}": n for rule, n in lint(anchored_rules(intended), intended).items()
    }
    assert counts == {
        r"^blk\.[0-9]+\.attn_q\.weight$=q4_K": 12,
        r"^blk\.[0-9]+\.attn_k\.weight$=q4_K": 12,
        r"^blk\.[0-9]+\.attn_output\.weight$=q4_K": 12,
        r"^blk\.(0|2|3|4|5|6|7|8|9|10)\.ffn_up\.weight$=q4_K": 10,
        r"^blk\.(1|11)\.ffn_up\.weight$=q2_K": 2,
        r"^output\.weight$=q6_K": 1,
    }


def test_a_name_that_no_portable_pattern_spells_is_refused() -> None:
    with pytest.raises(InputError, match=r"tensor 'blk\.0\.attn q': no portable pattern can be written"):
        anchored_rules({"blk.0.attn q": "q4_K"})


OVERLAPPING = rules("attn_q=q2_K", r"^blk\.3\.attn_q\.weight$=q3_K", r"^blk\.[0-9]\.attn=q4_K")


@pytest.mark.parametrize(
    ("loader", "name", "option"),
    [
        ("first", "blk.3.attn_q.weight", "q2_K"),
        ("llama-quantize", "blk.3.attn_q.weight", "q2_K"),
        ("exact-first", "blk.3.attn_q.weight", "q3_K"),
        ("exact-first", "blk.4.attn_q.weight", "q2_K"),
        ("sorted", "blk.3.attn_q.weight", "q3_K"),
        ("sorted", "blk.4.attn_q.weight", "q4_K"),
        ("last", "blk.3.attn_q.weight", "q4_K"),
        ("last", "blk.10.attn_q.weight", "q2_K"),
        ("last", "blk.3.attn_output.weight", "q4_K"),
        ("last", "blk.11.attn_k.weight", None),
    ],
)
def test_every_loader_chooses_in_its_own_way(loader: str, name: str, option: str | None) -> None:
    rule = resolve(OVERLAPPING, NAMES, loader)[name]
    assert (rule.option if rule else None) == option


def test_an_unknown_loader_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no loader is called 'frist' .* Did you mean 'first'\?"):
        resolve(OVERLAPPING, NAMES, "frist")


UPS = meant(r"blk\.1\.ffn_up\.weight=q2_K", r"blk\.11\.ffn_up\.weight=q8_0")


@pytest.mark.parametrize(
    ("lines", "intended", "complaint"),
    [
        (
            ("attn_v=q4_K", "attn=q2_K"),
            meant(".*attn.*=q2_K"),
            "rule 'attn_v=q4_K' matches none of the 50 tensors.",
        ),
        (  # layers.1 is found in layers.11
            (r"blk\.1.*ffn_up=q2_K", r"blk\.11\.ffn_up=q8_0"),
            UPS,
            "tensor blk.10.ffn_up.weight: loader llama-quantize (the first match, patterns in lower case) "
            r"gives it 'blk\.1.*ffn_up=q2_K', where none is meant.",
        ),
        (  # a dot that is not escaped takes any character
            (r"blk.1.\.?ffn_up=q2_K", r"blk\.11\.ffn_up=q8_0"),
            {name: option for name, option in UPS.items() if not name.startswith("blk.10.")},
            "tensor blk.11.ffn_up.weight: loader llama-quantize (the first match, patterns in lower case) "
            r"gives it 'blk.1.\.?ffn_up=q2_K', where q8_0 is meant.",
        ),
        (  # not anchored: found in attn_output.weight as well
            (r"output\.weight=q6_K",),
            meant(r"output\.weight=q6_K"),
            "tensor blk.0.attn_output.weight: loader llama-quantize (the first match, patterns in lower "
            r"case) gives it 'output\.weight=q6_K', where none is meant.",
        ),
        (
            (r"attn_q=q4_K",),
            meant(".*attn_[qk].*=q4_K"),
            "tensor blk.0.attn_k.weight: no rule matches it, where q4_K is meant.",
        ),
        (  # as meant in the order of the file, and not in that of the alphabet
            (r"blk\.3\.attn_q=q8_0", "attn_q=q2_K"),
            meant(r"blk\.3\.attn_q.*=q8_0", ".*attn_q.*=q2_K"),
            "tensor blk.3.attn_q.weight: loader last (the last match) gives it 'attn_q=q2_K', where q8_0 "
            "is meant.",
        ),
        (
            ("attn_q=q2_K", r"blk\.3\.attn_q=q2_K"),
            meant(".*attn_q.*=q2_K"),
            "rule 'blk\\.3\\.attn_q=q2_K' is never reached under loader llama-quantize (the first match, "
            "patterns in lower case): other rules take every tensor that it matches (1 of 50).",
        ),
        (
            ("attn_q=q2_K", "attn_q=q2_K"),
            meant(".*attn_q.*=q2_K"),
            "rule 'attn_q=q2_K' is never reached under loader llama-quantize (the first match, patterns in "
            "lower case): other rules take every tensor that it matches (12 of 50).",
        ),
    ],
)
def test_rules_that_say_something_else_than_is_meant_are_refused(
    lines: tuple[str, ...], intended: dict[str, str | None], complaint: str
) -> None:
    with pytest.raises(InputError) as refusal:
        lint(rules(*lines), intended)
    assert str(refusal.value) == complaint


def test_only_the_loaders_asked_for_have_to_agree() -> None:
    lines = rules(r"blk\.3\.attn_q=q8_0", "attn_q=q2_K")
    intended = meant(r"blk\.3\.attn_q.*=q8_0", ".*attn_q.*=q2_K")
    assert list(lint(lines, intended, ("llama-quantize", "first")).values()) == [1, 12]
    with pytest.raises(InputError, match="loader sorted"):
        lint(lines, intended, ("sorted",))


def test_capitals_are_refused_where_the_tool_lowers_patterns() -> None:
    lines, intended = rules("Wq=q4_K"), {"h.0.Wq": "q4_K"}
    assert list(lint(lines, intended, ("first",)).values()) == [1]
    with pytest.raises(InputError, match="rule 'Wq': llama-quantize reads patterns in lower case"):
        lint(lines, intended, ("llama-quantize",))


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(?i)a",
            r"\d",
            r"\w",
            "a++",
            "a*?",
            "a{2}",
            "(?<=a)b",
            "(?P<x>a)",
            "(?!a)",
            "^*",
            "|*",
            "(*a)",
            "",
        ),
        *("[^a]", "[]]", "[a-Z]", r"a\-b", r"\Aa", r"a\Z", "a b", "a=b", "é", "a,b", "[[:alpha:]]"),
    ],
)
def test_patterns_that_python_and_cpp_may_read_differently_are_refused(pattern: str) -> None:
    with pytest.raises(InputError, match="Python and C\\+\\+ may read it differently"):
        check_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a", "a)", "[z-a]"])
def test_what_is_no_regular_expression_is_refused(pattern: str) -> None:
    with pytest.raises(InputError, match="is not a regular expression"):
        check_pattern(pattern)


PROGRAM = """
#include <iostream>
#include <regex>
#include <string>
int main() {
    std::string pattern, name;
    while (std::getline(std::cin, pattern) && std::getline(std::cin, name))
        std::cout << std::regex_search(name, std::regex(pattern)) << '\\n';
}
"""


@pytest.fixture(scope="module")
def cpp_search(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that says whether C++ finds patterns in names: pairs of lines in, 0 or 1 out."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    program = tmp_path_factory.mktemp("cpp") / "search"
    subprocess.run([compiler, "-x", "c++", "-o", program, "-"], input=PROGRAM, text=True, check=True)
    return program


letters = st.text("ab1._-", min_size=1, max_size=4).map(lambda text: text.replace(".", r"\."))
atoms = st.sampled_from([".", "^", "$", "[0-9]", "[ab]", "[a-z1]", "b", "1"]) | letters
patterns = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
        | inner.map(lambda part: f"(?:{part})+")
        | inner.map(lambda part: f"({part})?")
    ),
    max_leaves=6,
)


def test_accepted_patterns_mean_the_same_to_cpp(cpp_search: Path) -> None:
    pairs: list[tuple[str, str]] = []

    @given(patterns, st.text("ab1._-", max_size=8))
    def draw(pattern: str, name: str) -> None:
        check_pattern(pattern)
        pairs.append((pattern, name))

    draw()
    shown = dict.fromkeys(NAMES, "q4_K") | dict.fromkeys(NAMES[3:30], "q2_K")
    pairs += [(rule.pattern, name) for rule in anchored_rules(shown) for name in NAMES]
    lines = "".join(f"{pattern}\n{name}\n" for pattern, name in pairs)
    done = subprocess.run([cpp_search], input=lines, capture_output=True, text=True, check=True)
    found = [bool(re.search(pattern, name)) for pattern, name in pairs]
    assert [line == "1" for line in done.stdout.split()] == found
    assert 0 < sum(found) < len(found)
