"""What swaps would change at a plan: one backward pass there, kept on disk by content."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tightfit.proxies.relinearization import DRAWS, SWAPS_VERSION, cost_tokens, swap_scores
from tightfit.search.agents import Sensitivity
from tightfit.search.agents.base import Table
from tightfit.search.cost import SENSITIVITY_TOKENS
from tightfit.search.stages.kept import kept_scores
from tightfit.search.stages.prepare import Bench
from tightfit.workers.text import Window, digest_windows


def windows_of(bench: Bench) -> Sequence[Window]:
    """Return the text that such a pass runs on.

    It is calibration text: what a step gains by chance on the text that it was chosen on, it does not
    gain on the selection text, which so tells the two apart.
    """
    return bench.archive.plain_windows(
        "calibration", bench.settings.search.sensitivity_tokens or SENSITIVITY_TOKENS
    )


def sensitivity_at(bench: Bench, losses: Table) -> Sensitivity:
    """Return the function that scores every swap at a plan, for agents that ask for it.

    A backward pass is about matrices. What another option for a cache changes is taken from ``losses``.
    """
    matrices, caches = bench.space.matrix_decisions, bench.space.kv_decisions

    def score(levels: tuple[int, ...]) -> list[NDArray[np.float64]]:
        windows, plan = windows_of(bench), bench.space.plan(levels)
        what = {
            "swaps at": plan.digest,
            "version": str(SWAPS_VERSION),
            "text": digest_windows(windows),
            "draws": str(DRAWS),
        }

        def make() -> list[torch.Tensor]:
            references = bench.evaluator.references(windows)
            bench.evaluator.clear()
            with bench.progress.stage("explore", f"a backward pass at plan {plan.short}") as tick:
                return swap_scores(
                    bench.evaluator.replica,
                    matrices,
                    bench.evaluator.matrix,
                    levels[: len(matrices)],
                    [torch.from_numpy(window.tokens) for window in windows],
                    references,
                    bench.settings.seed,
                    tick,
                )

        options = [len(decision.options) for decision in matrices]
        cost = cost_tokens(sum(len(window.tokens) for window in windows), options)
        scored = kept_scores(bench, "sensitivity", what, make, cost, len(matrices))
        first = len(matrices)
        known = [losses[first + i] - losses[first + i][levels[first + i]] for i in range(len(caches))]
        return [rows.mean(0).numpy() for rows in scored] + known

    return score
