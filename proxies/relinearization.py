"""Re-linearization: what every swap would change at a plan, from backward passes *at that plan*.

At the reference KL(p_reference ‖ p_plan) has no gradient, so a pre-screen there sees single errors and none
of their interaction. At a plan it has one: ∂KL/∂logits = p_plan − p_reference, exact and without labels. A
swap of a decision's option changes the weights by ΔW = W_option − W_now, and to second order the loss by

    Σ δ · ΔW x  +  ½ Σ (δₛ · ΔW x)²,   per scored token,

with x and δ of :mod:`~tightfit.proxies.tracing`: δ of the KL, δₛ of −log p(label) with labels drawn from the
*plan's* predictions (the Gauss-Newton term, as in the pre-screen). The first term carries the interaction
with all errors that the plan has already: made for few bits, where losses no longer add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from tightfit.compress import Replica
from tightfit.proxies.tracing import (
    LABELS,
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

_TRACED_TOKENS = TRACED_TOKENS


def swap_terms(
    replica: Replica,
    decisions: Sequence[Decision],
    read_back: ReadBack,
    levels: Sequence[int],
    windows: Sequence[Tensor],
    references: Sequence[Tensor],
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Tensor]:
    terms = [torch.zeros(3, len(windows), len(d.options), dtype=torch.float64) for d in decisions]
    generator = torch.Generator().manual_seed(seed)
    chunks = stretches(windows, _TRACED_TOKENS)
    matrices = {
        site: read_back(site, decision.options[level])
        for decision, level in zip(decisions, levels, strict=True)
        for site in owners(replica, decision)
    }
    done = 0
    for chunk in chunks:
        replica.apply(matrices)
        try:
            traces = [(row, _trace(replica, windows[row], references[row], generator)) for row in chunk]
        finally:
            replica.restore()
        for index, decision in enumerate(decisions):
            for column, option in enumerate(decision.options):
                if column == levels[index]:
                    continue
                errors = {s: read_back(s, option) - matrices[s] for s in owners(replica, decision)}
                for row, trace in traces:
                    e = effects(replica, decision, errors, trace, windows[row]).cpu().double()
                    n = windows[row].numel() - 1
                    terms[index][0, row, column] = e[0].sum() / n
                    terms[index][1, row, column] = e[1:].square().mean() / 2
                    terms[index][2, row, column] = e[1:].sum(1).square().mean() / 2 / (n + 1)
            done += 1
            progress(done, len(chunks) * len(decisions))
    return terms


def _trace(replica: Replica, window: Tensor, reference: Tensor, generator: torch.Generator) -> Trace:
    def objectives(logits: Tensor) -> Iterator[Tensor]:
        # KL up to a constant: its gradient is p_plan − p_reference at every scored position.
        expected = reference.to(logits.device).exp()
        yield -(expected * logits[:-1].log_softmax(-1)).sum()
        yield from sampled_losses(logits, generator)

    return trace_window(replica, window, objectives)
