"""What one forward and a few backward passes say about every matrix: its inputs and output gradients.

With the input x of a layer y = W x and the gradient δ of something at its output, δ · ΔW x is the
first-order change of that something by an error ΔW of the weights, token by token. One pass gives x and
δ of all layers at once, so that every option of every site can be scored from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tightfit.compress import Replica, watch_inputs
from tightfit.spaces import EMBED, Decision, Option

ReadBack = Callable[[str, Option], Tensor]
"""What a site's matrix reads back as under an option, shape (rows, cols)."""

Objectives = Callable[[Tensor], Iterable[Tensor]]
"""Scalars to differentiate, made one after another from the logits, shape (tokens, vocabulary)."""

# Inputs and gradients of this many tokens are held at once: about 1 MB per token, set of gradients and
# 100 M weights.
TRACED_TOKENS = 256


class Trace:
    """Inputs of every matrix on one window, and its output gradients for every objective."""

    def __init__(self) -> None:
        self.inputs: dict[str, Tensor] = {}
        self.gradients: dict[str, list[Tensor]] = {}


def trace_window(replica: Replica, window: Tensor, objectives: Objectives) -> Trace:
    """Run one window forward once, and backward once per objective.

    Args:
        replica: the model, with the weights to trace in place.
        window: token ids, shape (tokens,).
        objectives: what to differentiate.
    """
    trace = Trace()
    ids = window.to(replica.device).unsqueeze(0)
    handles = _watch_gradients(replica, trace)

    def record(site: str, x: Tensor) -> None:
        trace.inputs[site] = x.detach().reshape(-1, x.shape[-1])

    try:
        with watch_inputs(replica.model, replica.geometry, record), torch.enable_grad():
            logits = replica.model(input_ids=ids, use_cache=False).logits[0].float()
            for objective in objectives(logits):
                torch.autograd.backward(objective, retain_graph=True)
    finally:
        for handle in handles:
            handle.remove()
    return trace


def sampled_losses(logits: Tensor, generator: torch.Generator, draws: int) -> Iterator[Tensor]:
    """Yield −Σ log p(label) over the tokens, once per set of labels drawn from the logits."""
    probabilities = logits.detach().softmax(-1).cpu()
    labels = torch.multinomial(probabilities, draws, replacement=True, generator=generator)
    for column in range(draws):
        yield nn.functional.cross_entropy(logits, labels[:, column].to(logits.device), reduction="sum")


def effects(
    replica: Replica, decision: Decision, errors: Mapping[str, Tensor], trace: Trace, window: Tensor
) -> Tensor:
    """First-order change of every objective by errors of a decision's weights: Σ over its sites of δ · ΔW x.

    Args:
        replica: the model.
        decision: whose sites are changed; a tied matrix changes wherever it is used.
        errors: ΔW of every matrix that the decision owns, shape (rows, cols).
        trace: of the window.
        window: token ids, shape (tokens,).

    Returns:
        Shape (objectives, tokens).
    """
    sets = max((len(trace.gradients[site]) for site in decision.sites), default=0)
    total = torch.zeros(sets, window.numel(), device=replica.device)
    for site in decision.sites:
        error = errors[replica.geometry.linear(site).tied_to or site]
        if site == EMBED:
            # The module itself looks the error up, since some families scale what they read.
            embedding = replica.model.get_submodule(replica.geometry.linear(site).path)
            change = functional_call(embedding, {"weight": error}, (window.to(replica.device),))
        else:
            change = trace.inputs[site] @ error.t()
        total += torch.stack([(change * gradient).sum(-1) for gradient in trace.gradients[site]])
    return total


def owners(replica: Replica, decision: Decision) -> list[str]:
    """Return the sites whose matrices a decision owns, sorted; a tied site has none of its own."""
    return sorted({replica.geometry.linear(site).tied_to or site for site in decision.sites})


def stretches(windows: Sequence[Tensor], tokens: int) -> list[list[int]]:
    """Group windows into stretches whose traces fit in memory together, to read matrices less often.

    Args:
        windows: token ids.
        tokens: most tokens of a stretch; a longer window has one of its own.
    """
    chunks: list[list[int]] = []
    size = 0
    for row, window in enumerate(windows):
        if not chunks or size + window.numel() > tokens:
            chunks.append([])
            size = 0
        chunks[-1].append(row)
        size += window.numel()
    return chunks


def _watch_gradients(replica: Replica, trace: Trace) -> list[torch.utils.hooks.RemovableHandle]:
    """Record the gradient at the output of every matrix; parameters themselves need none."""
    handles = []
    for linear in replica.geometry.linears:

        def hook(module: nn.Module, args: object, output: Tensor, site: str = linear.site) -> Tensor:
            # The embedding is where the graph starts, as no parameter requires a gradient.
            output = output.requires_grad_() if site == EMBED else output
            output.register_hook(partial(_keep, trace, site))  # type: ignore[no-untyped-call]
            return output

        handles.append(replica.model.get_submodule(linear.path).register_forward_hook(hook))
    return handles


def _keep(trace: Trace, site: str, gradient: Tensor) -> None:
    trace.gradients.setdefault(site, []).append(gradient.reshape(-1, gradient.shape[-1]))
