"""How much of a document the model has read before the tokens that a loss is measured on."""

from __future__ import annotations

from tightfit.search.settings import Settings
from tightfit.spaces import Attention, InputError, KvOption, Space

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
    if space.load is not None:
        _check_compresses(space, prefix, space.load.context)
    return prefix


def _check_compresses(space: Space, prefix: int, context: int) -> None:
    """Refuse a prefix so short that an option changes nothing there which it changes at the budget's context.

    Raises:
        InputError: naming the option and the two lengths.
    """
    for decision in space.kv_decisions:
        layer = space.geometry.attention[decision.kv_layers[0]]
        for option in decision.kv_options:
            if _compresses(option, layer, context) and not _compresses(option, layer, prefix):
                raise InputError(
                    f"text.prefix: after {prefix} tokens {option.name} keeps a cache as it is, which at the "
                    f"{context} of budget.context it does not, so its loss cannot be measured there; give a "
                    "longer prefix, or fewer residual and smaller groups."
                )


def _compresses(option: KvOption, layer: Attention, tokens: int) -> bool:
    """Whether an option leaves out or quantizes anything of so many tokens."""
    visible = tokens if layer.window is None else min(tokens, layer.window)
    kept = option.kept(visible)
    return option.shared or kept < visible or option.quantized_tokens(kept) > 0


def context_note(settings: Settings, space: Space) -> str | None:
    """Say where losses are measured after fewer tokens than the budget counts."""
    prefix = prefix_of(settings, space)
    if space.load is None or prefix == space.load.context:
        return None
    return (
        f"losses are measured after {prefix} tokens of context; at the "
        f"{space.load.context} that the budget counts they are not measured."
    )
