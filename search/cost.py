"""What a run will cost, before any weights load."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tightfit.search.agents import get_agent
from tightfit.search.agents.uniform import formats
from tightfit.search.contexts import prefix_of
from tightfit.search.hardware import bounds_of
from tightfit.search.machine import physical_cores
from tightfit.search.settings import Settings
from tightfit.spaces import InputError, Space, format_size

# A backward pass that only needs gradients of activations costs about as much as a forward one.
_BACKWARD = 1
# Share of the speed of one large matrix product that a whole forward pass reaches.
_EFFICIENCY = 0.5
# Candidates that agents put forward, beside the finalists: baselines in their usual number.
_BASELINES = 8
# Of these, so many are measured beside the finalists on other text, and run beside them: two of each kind.
_BASELINES_KEPT = 4

PLANS_PER_FORMAT = 3
"""Plans that are timed before solving, for each format on offer; a table has a few rates per format."""

FEWEST_PLANS = 12
"""Fewest plans that are timed before solving."""

SENSITIVITY_TOKENS = 1024
"""Tokens of a backward pass at a plan, where the settings name none."""


@dataclass(frozen=True)
class Cost:
    """What a run costs.

    Attributes:
        tokens: that go through the model, by stage.
        seconds: a guess at the time that all of it takes here.
        tool_tokens: that files compute in the tool which the plan is for, on one thread.
    """

    tokens: Mapping[str, int]
    seconds: float
    tool_tokens: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return the cost as it is kept in the store."""
        return {
            "forward_tokens": dict(self.tokens),
            "estimate_seconds": round(self.seconds, 1),
            "tool_tokens": self.tool_tokens,
        }


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
    options = max(len(decision.options) for decision in space.matrix_decisions)
    # Every window is read with what comes before it.
    read = 1 + prefix_of(settings, space) / text.sequence
    counts: dict[str, float] = {
        "prepare": text.calibration,
        # One backward pass per draw of labels; scoring multiplies every input by every option's error.
        "sense": sense.prescreen_tokens * (1 + LABELS * _BACKWARD + options)
        + sense.marginals * sense.marginal_tokens * read,
        "fit": sense.fit_plans * sense.fit_tokens * read,
        "certify": sense.certificate_plans * sense.fit_tokens * read,
        "explore": (finalists + _BASELINES + learned) * text.selection * read
        + steps * cost_tokens(along, [options]),
        "validate": (finalists + _BASELINES_KEPT) * text.validation * read
        + (2 + _BASELINES_KEPT) * text.holdout * read,
    }
    if space.has_kv:
        # Prefixes are read once for all caches of one plan of weights; a pair has one plan of its own.
        counts["sense"] += sense.prescreen_tokens * (read + 2 * LABELS)
        counts["sense"] += sense.kv_marginals * sense.marginal_tokens
        counts["sense"] += 2 * min(sense.pairs, space.geometry.layers) * sense.marginal_tokens * read
        counts["validate"] += 2 * (1 + _BASELINES_KEPT) * text.holdout * read
    tokens = {stage: round(count) for stage, count in counts.items()}
    # The head multiplies every position too, so a tied embedding counts once as a matrix product.
    products = sum(x.weights for x in space.geometry.linears if x.site != "embed")
    run = tool_tokens(settings, space)
    seconds = _seconds(products * sum(tokens.values()), settings.threads or physical_cores())
    return Cost(tokens, seconds + (_seconds(products * run, 1) if run else 0.0), run)


def runs_files(settings: Settings) -> bool:
    """Say whether plans are run in the tool that they are for."""
    return bool(settings.validation.hardware or bounds_of(settings))


def tool_tokens(settings: Settings, space: Space) -> int:
    """Return the tokens that files compute in the tool: every file in every round, and once to warm up."""
    asked, count = settings.validation, _finalists(settings) + _designed(settings, space)
    return count * (asked.rounds + 1) * (asked.prompt + asked.generate)


def files_at_once(settings: Settings, space: Space) -> int:
    """Return how many files of plans are on the disk at the same time, at most."""
    return max(_finalists(settings), _designed(settings, space))


def check_disk(settings: Settings, space: Space, limit: int) -> None:
    """Refuse a new run whose files would not fit on the disk.

    A run that was begun is not looked at: it may have its files behind it.

    Args:
        settings: of the run.
        space: its decisions.
        limit: most weight bytes of a finalist; plans that are timed before solving may be larger.

    Raises:
        InputError: there is less free than files take.
    """
    if not runs_files(settings):
        return
    from tightfit.search.store import RUN_FILE  # brings SQLite's tools, which a look at a model does without

    runs = Path(settings.runs).absolute()
    if (runs / settings.name / RUN_FILE).exists():
        return
    needed = max(_finalists(settings) * min(limit, space.ceiling), _designed_bytes(settings, space))
    free = shutil.disk_usage(next(path for path in (runs, *runs.parents) if path.is_dir())).free
    if needed > free:
        raise InputError(
            f"runs: the {files_at_once(settings, space)} files that are run in llama.cpp side by side take "
            f"about {format_size(needed)}, but only {format_size(free)} are free in {runs}: make room, name "
            "another folder, or offer fewer and smaller formats."
        )


def _finalists(settings: Settings) -> int:
    """Number of files that are run at the end."""
    return settings.search.finalists + _BASELINES_KEPT if runs_files(settings) else 0


def _designed(settings: Settings, space: Space) -> int:
    """Number of files that are run before solving, for a table of times."""
    if not bounds_of(settings):
        return 0
    return min(max(FEWEST_PLANS, PLANS_PER_FORMAT * len(formats(space))), space.size)


def _designed_bytes(settings: Settings, space: Space) -> int:
    """Bytes of these files, about: uniform plans as they are, mixed ones with every option equally often."""
    count = _designed(settings, space)
    uniform = [space.bytes_of(space.uniform_levels(option)) for option in formats(space)]
    mixed = space.fixed_bytes + sum(sum(x.costs) / len(x.costs) for x in space.decisions)
    return sum(sorted(uniform)[:count]) + round(mixed) * max(0, count - len(uniform))


def _seconds(products: int, threads: int) -> float:
    """Return a guess at the seconds of so many multiplications and additions."""
    return 2.0 * products / (_EFFICIENCY * _matrix_speed(threads))


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
