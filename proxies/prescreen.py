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
from torch import Tensor, nn
from torch.func import functional_call

from tightfit.compress import Replica, watch_inputs
from tightfit.spaces import EMBED, Decision, WeightOption

ReadBack = Callable[[str, WeightOption], Tensor]
"""What a site's matrix reads back as under an option, shape (rows, cols)."""

# Label sets drawn per token. A square of one draw is noisy, and further draws are cheap: the products
# ΔW x, most of the cost, are shared by all of them.
LABELS = 4
# Inputs and gradients of this many tokens are held at once: about 1 MB per token, label set and 100 M
# weights.
_TRACED_TOKENS = 256


class _Trace:
    """Inputs of every matrix on one window, and its output gradients for every set of labels."""

    def __init__(self) -> None:
        self.inputs: dict[str, Tensor] = {}
        self.gradients: dict[str, list[Tensor]] = {}


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
    chunks = _chunks(windows)
    done = 0
    for chunk in chunks:
        traces = [(row, _backward(replica, windows[row], generator)) for row in chunk]
        for index, decision in enumerate(decisions):
            for column, option in enumerate(decision.options):
                errors = _errors(replica, decision, option, read_back)
                for row, trace in traces:
                    effect = _effect(replica, decision, errors, trace, windows[row])
                    scores[index][row, column] = effect.cpu().double().square().mean().item() / 2
            done += 1
            progress(done, len(chunks) * len(decisions))
    return scores


def _chunks(windows: Sequence[Tensor]) -> list[list[int]]:
    """Group windows into stretches whose traces fit in memory together, to read matrices less often."""
    chunks: list[list[int]] = []
    size = 0
    for row, window in enumerate(windows):
        if not chunks or size + window.numel() > _TRACED_TOKENS:
            chunks.append([])
            size = 0
        chunks[-1].append(row)
        size += window.numel()
    return chunks


def _backward(replica: Replica, window: Tensor, generator: torch.Generator) -> _Trace:
    """Run one window forward and backward with labels sampled from the model's predictions."""
    trace = _Trace()
    ids = window.to(replica.device).unsqueeze(0)
    handles = _watch_gradients(replica, trace)

    def record(site: str, x: Tensor) -> None:
        trace.inputs[site] = x.detach().reshape(-1, x.shape[-1])

    try:
        with watch_inputs(replica.model, replica.geometry, record), torch.enable_grad():
            logits = replica.model(input_ids=ids, use_cache=False).logits[0].float()
            probabilities = logits.detach().softmax(-1).cpu()
            labels = torch.multinomial(probabilities, LABELS, replacement=True, generator=generator)
            for column in range(LABELS):
                drawn = labels[:, column].to(replica.device)
                loss = nn.functional.cross_entropy(logits, drawn, reduction="sum")
                torch.autograd.backward(loss, retain_graph=column < LABELS - 1)
    finally:
        for handle in handles:
            handle.remove()
    return trace


def _watch_gradients(replica: Replica, trace: _Trace) -> list[torch.utils.hooks.RemovableHandle]:
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


def _keep(trace: _Trace, site: str, gradient: Tensor) -> None:
    trace.gradients.setdefault(site, []).append(gradient.reshape(-1, gradient.shape[-1]))


def _errors(
    replica: Replica, decision: Decision, option: WeightOption, read_back: ReadBack
) -> dict[str, Tensor]:
    """Weight error ΔW of every matrix that a decision owns, shape (rows, cols)."""
    owners = {replica.geometry.linear(site).tied_to or site for site in decision.sites}
    return {site: read_back(site, option) - replica.original(site) for site in sorted(owners)}


def _effect(
    replica: Replica, decision: Decision, errors: dict[str, Tensor], trace: _Trace, window: Tensor
) -> Tensor:
    """First-order change of −log p(label) by an option: Σ over its sites of δ · ΔW x.

    Returns:
        Shape (label sets, tokens).
    """
    total = torch.zeros(LABELS, window.numel(), device=replica.device)
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
