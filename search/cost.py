"""What a run will cost, before any weights load."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from tightfit.search.agents import get_agent
from tightfit.search.machine import physical_cores
from tightfit.search.settings import Settings
from tightfit.spaces import Space

# A backward pass that only needs gradients of activations costs about as much as a forward one.
_BACKWARD = 1
# Share of the speed of one large matrix product that a whole forward pass reaches.
_EFFICIENCY = 0.5
# Candidates that agents put forward, beside the finalists: baselines in their usual number.
_BASELINES = 8

SENSITIVITY_TOKENS = 1024
"""Tokens of a backward pass at a plan, where the settings name none."""


@dataclass(frozen=True)
class Cost:
    """Tokens that go through the model, by stage, and a guess at the seconds that takes here."""

    tokens: Mapping[str, int]
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """Return the cost as it is kept in the store."""
        return {"forward_tokens": dict(self.tokens), "estimate_seconds": round(self.seconds, 1)}


def estimate_cost(settings: Settings, space: Space) -> Cost:
    """Estimate the cost of a run from its settings and a short matrix product on this machine."""
    from tightfit.proxies.prescreen import LABELS
    from tightfit.proxies.relinearization import cost_tokens

    sense, text, search = settings.sense, settings.text, settings.search
    finalists = search.finalists
    learning = [name for name in search.agents if get_agent(name).iterative]
    learned = search.evaluations if learning else 0
    # One backward pass per turn of the agent that makes them; turns are shared evenly.
    steps = -(-learned // (search.batch * len(learning))) if "relinearize" in learning else 0
    along = search.sensitivity_tokens or min(SENSITIVITY_TOKENS, text.calibration)
    options = max(len(decision.options) for decision in space.decisions)
    tokens = {
        "prepare": text.calibration,
        # One backward pass per draw of labels; scoring multiplies every input by every option's error.
        "sense": sense.prescreen_tokens * (1 + LABELS * _BACKWARD + options)
        + sense.marginals * sense.marginal_tokens,
        "fit": sense.fit_plans * sense.fit_tokens,
        "certify": sense.certificate_plans * sense.fit_tokens,
        "explore": (finalists + _BASELINES + learned) * text.selection
        + steps * cost_tokens(along, [options]),
        "validate": (finalists + 4) * text.validation + 6 * text.holdout,
    }
    # The head multiplies every position too, so a tied embedding counts once as a matrix product.
    products = sum(x.weights for x in space.geometry.linears if x.site != "embed")
    flops = 2.0 * products * sum(tokens.values())
    return Cost(tokens, flops / (_EFFICIENCY * _matrix_speed(settings.threads or physical_cores())))


def _matrix_speed(threads: int) -> float:
    """Floating-point operations per second of a float32 matrix product on this CPU, in about 0.1 s."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a, b = torch.ones(256, 1024), torch.ones(1024, 1024)
        _ = a @ b
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < 0.1:
            _ = a @ b
            count += 1
        return count * 2.0 * 256 * 1024 * 1024 / (time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
