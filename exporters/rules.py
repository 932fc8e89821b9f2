"""Rule sets: ordered lines "names with this pattern → this option", and what loaders make of them.

A rule set is read by tools that agree on the syntax and not on the choice: where two rules match one
name, some take the first, some the last, some a rule that spells the name, some the first in
alphabetical order. :func:`lint` accepts a rule set only where all of these come to what was meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tightfit.spaces import InputError, suggest


@dataclass(frozen=True)
class Rule:
    """One line of a rule set: names in which ``pattern`` is found are stored as ``option``."""

    pattern: str
    option: str


@dataclass(frozen=True)
class Loader:
    """How a tool chooses among the rules that match a name.

    Attributes:
        about: in words, for messages.
        choose: the matching rules in the order of the file, and the name → the rule that counts.
        lowers: whether the tool turns patterns, and not names, into lower case.
    """

    about: str
    choose: Callable[[Sequence[Rule], str], Rule]
    lowers: bool = False


def _spells(rule: Rule, name: str) -> bool:
    return re.sub(r"^\^|\$$|\\", "", rule.pattern) == name


LOADERS: dict[str, Loader] = {
    "llama-quantize": Loader("the first match, patterns in lower case", lambda rules, _: rules[0], True),
    "first": Loader("the first match", lambda rules, _: rules[0]),
    "last": Loader("the last match", lambda rules, _: rules[-1]),
    "exact-first": Loader(
        "a rule that spells the name, then the first match",
        lambda rules, name: next((rule for rule in rules if _spells(rule, name)), rules[0]),
    ),
    "sorted": Loader(
        "the first match in alphabetical order", lambda rules, _: min(rules, key=lambda rule: rule.pattern)
    ),
}
"""Name → how rules are chosen. ``llama-quantize`` is what ``--tensor-type-file`` of llama.cpp does."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# What ECMAScript, which std::regex of C++ reads, and Python give the same meaning on a single line of ASCII.
_REPEATABLE = r"[A-Za-z0-9_-]|\\\.|\.|\)|\[(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[A-Za-z0-9_])+\]"
_PORTABLE = re.compile(rf"(?:(?:{_REPEATABLE})[*+?]?(?![*+?])|(?:\((?:\?:)?|\||\^|\$)(?![*+?]))+")


def check_pattern(pattern: str) -> None:
    r"""Check that a pattern means the same to Python and to C++ (``std::regex``, ECMAScript).

    Both know letters, digits, ``_``, ``-``, ``\.``, ``.``, ``^``, ``$``, ``|``, groups, classes such as
    ``[0-9]``, and ``*``, ``+``, ``?``. Flags, look-behind, named groups, ``\d`` (which takes any
    script's digits in Python) and possessive quantifiers differ.

    Raises:
        InputError: it holds anything else, or is not a regular expression.
    """
    if not _PORTABLE.fullmatch(pattern):
        raise InputError(
            f"rule {pattern!r}: Python and C++ may read it differently (allowed: letters, digits, _, -, "
            r"\., ., ^, $, |, groups, classes such as [0-9], and one of *, +, ? after these)."
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise InputError(f"rule {pattern!r} is not a regular expression ({error}).") from error


def anchored_rules(intended: Mapping[str, str]) -> tuple[Rule, ...]:
    r"""Write rules that match whole names only, one for all layers in which a matrix has one option.

    ``blk.0.attn_q.weight`` and its likes become ``^blk\.[0-9]+\.attn_q\.weight$`` where all layers
    agree, otherwise ``^blk\.(0|3)\.attn_q\.weight$`` for each option. No two rules match one name.

    Args:
        intended: name of a tensor → name of its option.

    Raises:
        InputError: a name holds other characters than letters, digits, ``_``, ``-`` and ``.``.
    """
    layers: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, option in intended.items():
        if not _NAME.fullmatch(name):
            raise InputError(f"tensor {name!r}: no portable pattern can be written for this name.")
        numbered = re.fullmatch(r"(.*?\.)(\d+)(\..*)", name)
        head, number, tail = numbered.groups() if numbered else (name, "", "")
        layers.setdefault((head, tail), {}).setdefault(option, []).append(number)
    rules = []
    for (head, tail), options in layers.items():
        for option, numbers in options.items():
            middle = f"({'|'.join(numbers)})" if len(numbers) > 1 else numbers[0]
            if len(numbers) > 1 and len(options) == 1:
                middle = "[0-9]+"
            rules.append(Rule(f"^{_escape(head)}{middle}{_escape(tail)}$", option))
    return tuple(rules)


def _escape(name: str) -> str:
    return name.replace(".", r"\.")


def resolve(rules: Sequence[Rule], names: Sequence[str], loader: str) -> dict[str, Rule | None]:
    """Return which rule counts for every name under a loader; None where no rule matches.

    Raises:
        InputError: there is no such loader, or it does not read a pattern as it is written.
    """
    if loader not in LOADERS:
        raise InputError(
            f"no loader is called {loader!r} (loaders: {', '.join(LOADERS)}).{suggest(loader, LOADERS)}"
        )
    for rule in rules:
        check_pattern(rule.pattern)
        if LOADERS[loader].lowers and rule.pattern != rule.pattern.lower():
            raise InputError(f"rule {rule.pattern!r}: {loader} reads patterns in lower case.")
    chosen: dict[str, Rule | None] = {}
    for name in names:
        matching = [rule for rule in rules if re.search(rule.pattern, name)]
        chosen[name] = LOADERS[loader].choose(matching, name) if matching else None
    return chosen


def lint(
    rules: Sequence[Rule], intended: Mapping[str, str | None], loaders: Sequence[str] = tuple(LOADERS)
) -> dict[Rule, int]:
    """Check that a rule set says what is meant, whoever reads it.

    Args:
        rules: in the order of the file.
        intended: name of every tensor → name of its option; None where no rule may match.
        loaders: keys of :data:`LOADERS`, which must all come to the same.

    Returns:
        Rule → how many names it matches.

    Raises:
        InputError: a pattern is not portable or matches nothing; a name resolves to another option
            than meant under a loader, or to none; a rule never counts under a loader.
    """
    for rule in rules:
        check_pattern(rule.pattern)
    counts = {rule: sum(bool(re.search(rule.pattern, name)) for name in intended) for rule in rules}
    for rule, count in counts.items():
        if not count:
            raise InputError(f"rule {_quoted(rule)} matches none of the {len(intended)} tensors.")
    for loader in loaders:
        chosen = resolve(rules, tuple(intended), loader)
        for name, option in intended.items():
            _check_choice(name, option, chosen[name], loader)
        idle = [rule for n, rule in enumerate(rules) if rule in rules[:n] or rule not in chosen.values()]
        if idle:
            raise InputError(
                f"rule {_quoted(idle[0])} is never reached under {_named(loader)}: other rules take "
                f"every tensor that it matches ({counts[idle[0]]} of {len(intended)})."
            )
    return counts


def _check_choice(name: str, option: str | None, rule: Rule | None, loader: str) -> None:
    if (rule.option if rule else None) == option:
        return
    meant = f"{option} is meant" if option else "none is meant"
    if rule is None:
        raise InputError(f"tensor {name}: no rule matches it, where {meant}.")
    raise InputError(f"tensor {name}: {_named(loader)} gives it {_quoted(rule)}, where {meant}.")


def _named(loader: str) -> str:
    return f"loader {loader} ({LOADERS[loader].about})"


def _quoted(rule: Rule) -> str:
    return f"'{rule.pattern}={rule.option}'"
