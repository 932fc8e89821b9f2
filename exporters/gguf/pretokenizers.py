"""Which of llama.cpp's ways to cut text into words a tokenizer has.

llama.cpp holds a list of pre-tokenizers under fixed names (``llm_tokenizer_bpe`` in
``src/llama-vocab.cpp``) and knows no other. A tokenizer is recognized by what it does and not by how
it is written down: it must cut a text full of the cases where they differ just as one of the list does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tightfit.spaces import InputError

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_EDGE = r"[^\r\n\p{L}\p{N}]?"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"


def _cased(ending: str) -> str:
    """Words that begin anew where capitals do."""
    return f"{_EDGE}{_UPPER}*{_LOWER}+{ending}|{_EDGE}{_UPPER}+{_LOWER}*{ending}"


@dataclass(frozen=True)
class Words:
    """One pre-tokenizer of llama.cpp.

    Attributes:
        name: llama.cpp's.
        pattern: what one word is; empty for GPT-2's own rule.
        digits: whether every digit is cut off by itself beforehand.
        whole: whether a word that is a token stays whole, whatever the merges say.
    """

    name: str
    pattern: str = ""
    digits: bool = False
    whole: bool = False


WORDS = (
    Words("gpt-2"),
    Words("smollm", digits=True),
    Words("llama-bpe", rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_SIGNS}[\r\n]*|{_TAIL}", whole=True),
    Words("dbrx", rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_SIGNS}[\r\n]*|{_TAIL}"),
    Words("qwen2", rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_SIGNS}[\r\n]*|{_TAIL}"),
    Words("tekken", rf"{_cased('')}|\p{{N}}|{_SIGNS}[\r\n/]*|{_TAIL}", whole=True),
    Words("gpt-4o", rf"{_cased(_ENDINGS + '?')}|\p{{N}}{{1,3}}|{_SIGNS}[\r\n/]*|{_TAIL}"),
)
"""The pre-tokenizers that are recognized."""

PROBE = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶‍🌫️ ✅ 3 33 333 3333 33333 333333 3.3 3..3 "
    "៣៣៣៣ កាន់តែ ?我想在apple工作1314151天～ ------======= нещо на Български ''''''```````\"\"\"\"......!!!!!!"
    "?????? I've been 'told HE'S there, 'RE you sure? 'M not sure I'll make it, We'Ve a'lL camelCase "
    "HTTPServer x²½ é é हिन्दी a/b/c\r\n//\n  def f(x):\r\n\treturn  x+1;;\n\n\n  #end   "
)
"""A text on which any two of :data:`WORDS` differ, unless only ``whole`` tells them apart."""


def recognize(pre_tokenizer: Any, whole: bool) -> str:
    """Return llama.cpp's name for how a tokenizer cuts text into words.

    Args:
        pre_tokenizer: of the ``tokenizers`` library, or None.
        whole: ``ignore_merges`` of the tokenizer's model.

    Raises:
        InputError: llama.cpp has no pre-tokenizer that does the same.
    """
    cut = None if pre_tokenizer is None else pre_tokenizer.pre_tokenize_str(PROBE)
    for words in WORDS:
        if words.whole == whole and build(words).pre_tokenize_str(PROBE) == cut:
            return words.name
    raise InputError(
        "tokenizer.json: it cuts text into words in a way that llama.cpp is not known to have "
        f"(known: {', '.join(words.name for words in WORDS)})."
    )


def build(words: Words) -> Any:
    """Return the same as a pre-tokenizer of the ``tokenizers`` library."""
    from tokenizers import Regex, pre_tokenizers

    parts: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not words.pattern)]
    if words.pattern:
        parts.insert(0, pre_tokenizers.Split(Regex(words.pattern), "isolated"))
    if words.digits:
        parts.insert(0, pre_tokenizers.Digits(individual_digits=True))
    return pre_tokenizers.Sequence(parts)
