"""Pre-screen: the loss of every option of every site from one backward pass.

KL(p_reference ‖ p_plan) has no gradient at the reference, so its leading term is quadratic: half
the Fisher information along the weight error ΔW. For a layer y = W x with output gradient δ of
−log p(label), labels drawn from the model itself, one sample of that term is ½ (δ · ΔW x)², and its
mean over tokens and draws scores the option. Inputs and gradients of all layers come from the same pass
(Fisher information with sampled labels: Kunstner et al. 2019, arXiv:1905.12558).

Cross terms between tokens are left out, so scores are right up to a factor per bit width, which
measured marginals supply (:mod:`tightfit.proxies.calibration`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from tightfit.compress import Replica
from tightfit.proxies.tracing import (
    TRACED_TOKENS,
    ReadBack,
    effects,
    owners,
    sampled_losses,
    stretches,
    trace_window,
)
from tightfit.spaces import Decision, Option

# Label sets drawn per token. A square of one draw is noisy, and further draws are cheap: the products
# ΔW x, most of the cost, are shared by all of them.
LABELS = 4

PRESCREEN_VERSION = 1
"""Raised whenever a change here or in the tracing changes any score: scores are kept by content."""
_TRACED_TOKENS = TRACED_TOKENS


def prescreen(
    replica: Replica,
    decisions: Sequence[Decision],
    read_back: ReadBack,
    windows: Sequence[Tensor],
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Tensor]:
    """Score every option of every decision.

    Args:
        replica: the model, with its original weights in place.
        decisions: D decisions in depth order.
        read_back: gives the matrix that an option would store.
        windows: token ids to score on, each of shape (tokens,).
        seed: of the labels drawn from the model.
        progress: called with (done, total) as decisions are finished.

    Returns:
        D float64 tensors of shape (windows, options), in nats per token. Their mean over windows is
        the score; the rows are kept apart so that halves of the text can be compared.
    """
    scores = [torch.zeros(len(windows), len(d.options), dtype=torch.float64) for d in decisions]
    generator = torch.Generator().manual_seed(seed)
    draw = partial(sampled_losses, generator=generator, draws=LABELS)
    chunks = _chunks(windows)
    done = 0
    for chunk in chunks:
        traces = [(row, trace_window(replica, windows[row], draw)) for row in chunk]
        for index, decision in enumerate(decisions):
            for column, option in enumerate(decision.matrix_options):
                errors = _errors(replica, decision, option, read_back)
                for row, trace in traces:
                    effect = effects(replica, decision, errors, trace, windows[row])
                    scores[index][row, column] = effect.cpu().double().square().mean().item() / 2
            done += 1
            progress(done, len(chunks) * len(decisions))
    return scores


def _chunks(windows: Sequence[Tensor]) -> list[list[int]]:
    return stretches(windows, _TRACED_TOKENS)


def _errors(replica: Replica, decision: Decision, option: Option, read_back: ReadBack) -> dict[str, Tensor]:
    """Weight error ΔW of every matrix that a decision owns, shape (rows, cols)."""
    return {site: read_back(site, option) - replica.original(site) for site in owners(replica, decision)}


__all__ = ["LABELS", "ReadBack", "prescreen"]
