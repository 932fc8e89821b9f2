"""How much of a document the model has read before the tokens that a loss is measured on."""

from __future__ import annotations

from tightfit.search.settings import Settings
from tightfit.spaces import InputError, Space

LONGEST = 1024
"""Tokens of context that losses are measured after where the settings do not say."""


def prefix_of(settings: Settings, space: Space) -> int:
    """Return the tokens that come before those of a window.

    Raises:
        InputError: windows with their prefixes are longer than the model's context, or there is nothing in
            the KV caches that are to be judged.
    """
    text, longest = settings.text, space.geometry.max_context
    if text.sequence > longest:
        raise InputError(
            f"text.sequence: windows of {text.sequence} tokens are longer than the longest context of "
            f"{settings.model}, {longest}."
        )
    prefix = text.prefix
    if prefix is None:
        prefix = min(space.load.context, LONGEST, longest - text.sequence) if space.load else 0
    if prefix + text.sequence > longest:
        raise InputError(
            f"text.prefix: {prefix} tokens and windows of {text.sequence} (text.sequence) are longer than "
            f"the longest context of {settings.model}, {longest}."
        )
    if space.load is not None and not 0 < prefix <= space.load.context:
        raise InputError(
            f"text.prefix: losses of KV caches are measured after 1 to {space.load.context} tokens "
            f"(budget.context), not after {prefix}; a smaller text.sequence leaves room for them."
        )
    return prefix


def context_note(settings: Settings, space: Space) -> str | None:
    """Say where losses are measured after fewer tokens than the budget counts."""
    if space.load is None or prefix_of(settings, space) == space.load.context:
        return None
    return (
        f"losses are measured after {prefix_of(settings, space)} tokens of context; at the "
        f"{space.load.context} that the budget counts they are not measured."
    )
