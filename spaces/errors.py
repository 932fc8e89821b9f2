"""The errors a user can meet. Every message is one sentence: what is wrong, where, what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TightfitError(Exception):
    """Base of every error that Tightfit raises on purpose.

    Attributes:
        exit_code: what the command line exits with when this error reaches it.
    """

    exit_code = 1


class InputError(TightfitError):
    """The user asked for something that cannot be: an unknown key, a missing file, a wrong unit."""

    exit_code = 2


class InfeasibleError(TightfitError):
    """The request is well formed, but no plan satisfies it."""

    exit_code = 3


def suggest(word: str, allowed: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest allowed word, or nothing where none is near."""
    near = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
