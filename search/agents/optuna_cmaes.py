"""CMA-ES with margin on the levels of decisions (Hamano et al., GECCO 2022, https://arxiv.org/abs/2205.13482).

Driven through ``cmaes``, the package that Optuna's own sampler calls. That sampler keeps its optimizer as a
pickle in the attributes of trials and learns at most one generation per plan that it is asked for; here the
optimizer is told every generation anew, from the points noted with the agent's own trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from tightfit.search.agents.base import Levels, Task, Trial
from tightfit.search.agents.optuna_study import Note
from tightfit.search.solvers import solve

# A sixth of a decision's range: the first step that Optuna takes.
_SIGMA = 1 / 6
_DIGITS = 4


class Evolution:
    """The optimizer after every whole generation so far.

    It works in the unit cube, every decision from its smallest to its largest option, and starts at
    the optimum of the most trusted loss table. A generation is the next so many measured plans of the
    agent; failed ones belong to none.

    Args:
        task: the problem; some decision has a choice.
        own: the trials of the agent, oldest first.
        seed: of the points of this round.
    """

    def __init__(self, task: Task, own: Iterable[Trial], seed: int) -> None:
        from cmaes import CMAwM

        self._tops = np.array([len(d.options) - 1 for d in task.space.decisions])
        self._free = np.flatnonzero(self._tops)
        steps = 1 / self._tops[self._free]
        best = solve(task.costs, task.trusted, task.free_bytes, task.tolerance, task.sides)
        start = np.array(best.levels)[self._free] * steps
        # The method needs two dimensions; one that means nothing joins a single decision.
        idle = max(0, 2 - len(steps))
        steps, start = np.append(steps, [0.0] * idle), np.append(start, [0.5] * idle)
        self._optimizer = CMAwM(start, _SIGMA, np.array([[0.0, 1.0]] * len(steps)), steps, seed=seed)
        told = [(np.array(t.proposal.note["x"]), loss) for t in own if (loss := _usable(t)) is not None]
        size = self._optimizer.population_size
        for first in range(0, len(told) - size + 1, size):
            self._optimizer.tell(told[first : first + size])

    def ask(self) -> tuple[Levels, Note]:
        """Return levels, and the point that they were rounded from, of which the optimizer learns."""
        rounded, point = self._optimizer.ask()
        levels = np.zeros(len(self._tops), dtype=np.int64)
        free = self._free
        levels[free] = np.rint(rounded[: len(free)] * self._tops[free])
        return tuple(levels.tolist()), {"x": np.round(point, _DIGITS).tolist()}

    def expect(self, levels: Levels) -> None:
        """Nothing to do: points of one generation are drawn independently."""


def _usable(trial: Trial) -> float | None:
    """Return the loss that the optimizer is told, or None for a plan that is in no generation."""
    loss = trial.loss
    return loss if loss is not None and math.isfinite(loss) and "x" in trial.proposal.note else None
