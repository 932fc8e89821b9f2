"""When llama.cpp's SentencePiece does what a byte-pair tokenizer over characters does.

Such a tokenizer (Llama 2, Gemma) is one that was converted from SentencePiece. It knows an order of
merges, SentencePiece knows a score of every token, and they agree only where the merges are complete.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from tightfit.spaces import InputError

SPACE = "▁"
"""What stands for a space inside a token."""

_TEXT = "x  y\n z 3 '."


def space_in_front(backend: Any, folder: Path) -> bool:
    """Return whether a text gets a space in front.

    Where a text begins with a space already, or goes on after a special token, llama.cpp may put one more
    than newer tokenizers do.

    Args:
        backend: tokenizer of the ``tokenizers`` library.
        folder: named in errors.

    Raises:
        InputError: text is changed or cut in a way that llama.cpp does not have.
    """
    text = _TEXT if backend.normalizer is None else backend.normalizer.normalize_str(_TEXT)
    pieces = [text]
    if backend.pre_tokenizer is not None:
        pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    plain = _TEXT.replace(" ", SPACE)
    if pieces not in ([plain], [SPACE + plain]):
        raise InputError(
            f"{folder}: llama.cpp does not cut text as this tokenizer with bytes as fallback does."
        )
    return pieces != [plain]


def joining_ranks(normal: Collection[str], merges: Sequence[tuple[str, ...]], folder: Path) -> dict[str, int]:
    """Return by token how early it is joined, 0 first, of those that a merge makes.

    SentencePiece joins any two neighbours that make a token, merges only those that they list.

    Args:
        normal: tokens that are neither special nor single bytes.
        merges: pairs in their order.
        folder: named in errors.

    Raises:
        InputError: two tokens make a third, but no merge says so.
    """
    ranks: dict[str, int] = {}
    for position, pair in enumerate(merges):
        ranks.setdefault("".join(pair), position)
    pairs = set(merges)
    for token in sorted(normal):
        for cut in range(1, len(token)):
            pair = (token[:cut], token[cut:])
            if pair[0] in normal and pair[1] in normal and pair not in pairs:
                raise InputError(
                    f"{folder}: llama.cpp would join {pair[0]!r} and {pair[1]!r} to a token, which this "
                    "tokenizer does not."
                )
    return {token: rank for token, rank in ranks.items() if token in normal}
