"""Further looks at KV caches, beside the loss on ordinary text: less context, and copying from afar.

A loss on ordinary text hardly notices that a cache has forgotten something, since most next words follow
from the last few. So a sequence of random tokens is planted in the prompt, where nothing but the cache can
know it, and asked for again at the end: a needle in a haystack, found by copying, as induction heads do
(Olsson et al., *In-context Learning and Induction Heads*, 2022). The cache is compressed before it is asked
for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightfit.workers.text import Window

PLANTED = 32
"""Tokens of a planted sequence."""

_DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)  # where in the prompt, in turn


def shorter(windows: Sequence[Window]) -> list[Window]:
    """Return windows that score the same tokens after half the context, where there is half of it."""
    return [window.after(window.prefix // 2) for window in windows if window.prefix > 1]


def planted(windows: Sequence[Window], seed: int) -> list[Window]:
    """Return one window per document that asks for a sequence planted in its prefix.

    Args:
        windows: with prefixes, which serve as haystacks; prefixes of fewer than four times
            :data:`PLANTED` tokens are left out.
        seed: of the sequences, which are drawn from the tokens that occur in the windows.
    """
    vocabulary = np.unique(np.concatenate([window.tokens for window in windows] or [np.zeros(0, np.int64)]))
    made: dict[str, Window] = {}
    for window in windows:
        if window.document in made or window.prefix < 4 * PLANTED:
            continue
        rng = np.random.default_rng([seed, 61, len(made)])
        needle = rng.choice(vocabulary, PLANTED)
        prompt = window.tokens[: window.prefix].copy()
        depth = _DEPTHS[len(made) % len(_DEPTHS)]
        start = round(depth * (window.prefix - 2 * PLANTED))
        prompt[start : start + PLANTED] = needle
        tokens = np.concatenate([prompt, needle])
        made[window.document] = Window(window.document, tokens, window.prefix, window.head)
    return list(made.values())
