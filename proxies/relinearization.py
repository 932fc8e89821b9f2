"""Re-linearization: what every swap would change at a plan, from backward passes *at that plan*.

At the reference KL(p_reference ‖ p_plan) has no gradient, so a pre-screen there sees single errors and
nothing of their interaction. At a plan it has one, ∂KL/∂logits = p_plan − p_reference, exact and without
labels. Another option for a decision changes its weights by ΔW = W_option − W_now, and the loss by

    mean (δ · ΔW x)  +  ½ mean (δₛ · ΔW x)²

over tokens: to first order, and half the Gauss-Newton curvature (Martens, *New insights and perspectives on
the natural gradient method*, JMLR 2020). x and δ are those of :mod:`~tightfit.proxies.tracing`: δ of the
KL, δₛ of −log p(label) with labels drawn from the *plan's* predictions, as in the pre-screen. The first
term carries the interaction with all errors that the plan has already, so it is made for few bits, where
losses no longer add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from tightfit.compress import Replica
from tightfit.proxies.tracing import (
    TRACED_TOKENS,
    ReadBack,
    Trace,
    effects,
    owners,
    sampled_losses,
    stretches,
    trace_window,
)
from tightfit.spaces import Decision

# Label sets drawn per token. The first-order term needs none and weighs more than the noise of the other:
# on the tests' model one draw orders swaps as well as four do.
DRAWS = 2

SWAPS_VERSION = 1
"""Raised whenever a change here or in the tracing changes any score: scores are kept by content."""

_TRACED_TOKENS = TRACED_TOKENS


def swap_scores(
    replica: Replica,
    decisions: Sequence[Decision],
    read_back: ReadBack,
    levels: Sequence[int],
    windows: Sequence[Tensor],
    references: Sequence[Tensor],
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    draws: int = DRAWS,
) -> list[Tensor]:
    """Score every swap of one option at a plan.

    The plan is put into the replica while text runs through it, and taken out again.

    Args:
        replica: the model, with its original weights in place, which it has again afterwards.
        decisions: D decisions in depth order.
        read_back: gives the matrix that an option would store.
        levels: the plan, one position of an option per decision.
        windows: token ids to score on, each of shape (tokens,).
        references: per window the reference's log-probabilities of the next token, shape
            (tokens − 1, vocabulary).
        seed: of the labels drawn from the plan's predictions.
        progress: called with (done, total) as decisions are finished.
        draws: label sets per token.

    Returns:
        D float64 tensors of shape (windows, options): the change of the window's mean loss, in nats per
        token, negative where a swap helps and exactly 0 for the option in place.

    Raises:
        ValueError: the lengths of windows and references, or of decisions and levels, do not agree.
    """
    _check(decisions, levels, windows, references)
    scores = [torch.zeros(len(windows), len(d.options), dtype=torch.float64) for d in decisions]
    generator = torch.Generator().manual_seed(seed)
    chunks = stretches(windows, _TRACED_TOKENS)
    done = 0
    for chunk in chunks:
        with _applied(replica, decisions, read_back, levels):
            traces = {row: _trace(replica, windows[row], references[row], generator, draws) for row in chunk}
        for decision, level, table in zip(decisions, levels, scores, strict=True):
            now = _matrices(replica, decision, read_back, level)
            for column in (c for c in range(len(decision.options)) if c != level):
                then = _matrices(replica, decision, read_back, column)
                errors = {site: then[site] - now[site] for site in now}
                for row, trace in traces.items():
                    change = effects(replica, decision, errors, trace, windows[row]).cpu().double()
                    table[row, column] = _second_order(change, len(references[row]))
            done += 1
            progress(done, len(chunks) * len(decisions))
    return scores


def cost_tokens(tokens: int, options: Sequence[int], draws: int = DRAWS) -> int:
    """Return what :func:`swap_scores` costs, in tokens that go forward through the model.

    One forward pass, one backward pass for the KL and one per label set, each about as much as a forward
    one since no weight needs a gradient; then every input is multiplied by the error of every option that
    is not in place, a forward pass of all matrices per option.

    Args:
        tokens: length of all windows.
        options: number of options of every decision.
        draws: label sets per token.
    """
    products = max(options, default=1) - 1
    return tokens * (1 + 1 + draws + products)


def _second_order(change: Tensor, scored: int) -> float:
    """Change of a window's mean loss by the effects on its KL, row 0, and on its label losses, the others."""
    return change[0].sum().item() / scored + change[1:].square().mean().item() / 2


def _trace(
    replica: Replica, window: Tensor, reference: Tensor, generator: torch.Generator, draws: int
) -> Trace:
    def objectives(logits: Tensor) -> Iterator[Tensor]:
        # The KL up to a constant; nothing is scored after the last token.
        yield -(reference.to(logits.device).exp() * logits[:-1].log_softmax(-1)).sum()
        yield from sampled_losses(logits, generator, draws)

    return trace_window(replica, window, objectives)


@contextmanager
def _applied(
    replica: Replica, decisions: Sequence[Decision], read_back: ReadBack, levels: Sequence[int]
) -> Iterator[None]:
    """Keep the plan in the replica for as long as the context lasts."""
    try:
        for decision, level in zip(decisions, levels, strict=True):
            replica.apply(_matrices(replica, decision, read_back, level))
        yield
    finally:
        replica.restore()


def _matrices(replica: Replica, decision: Decision, read_back: ReadBack, level: int) -> Mapping[str, Tensor]:
    """What the matrices that a decision owns read back as under one of its options."""
    return {site: read_back(site, decision.matrix_options[level]) for site in owners(replica, decision)}


def _check(
    decisions: Sequence[Decision],
    levels: Sequence[int],
    windows: Sequence[Tensor],
    references: Sequence[Tensor],
) -> None:
    if len(decisions) != len(levels):
        raise ValueError(f"{len(levels)} levels for {len(decisions)} decisions")
    if [len(window) - 1 for window in windows] != [len(reference) for reference in references]:
        raise ValueError("every window needs a reference of one token less")
