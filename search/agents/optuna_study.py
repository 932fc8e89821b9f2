"""An Optuna study in memory, rebuilt from the history whenever plans are asked for.

Nothing of Optuna is kept between rounds: no storage, no pickled sampler. A study holds each plan of the
history once, whoever proposed it, as whole levels of the decisions that have a choice.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightfit.search.agents.base import History, Levels, Mode, Task, Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

Note = dict[str, Any]

MIB = 2**20

LEAST_LOSS = 1e-9
"""Nats per token; smaller losses are not told apart where their logarithm is used."""


@dataclass(frozen=True)
class Axes:
    """The parameters of a study: one for every decision with a choice, by its name.

    A parameter is the level of its decision, since options ascend in bytes.

    Attributes:
        sizes: number of options by decision; those with one option are left out.
        smooth: levels are rounded from real numbers and losses are logarithms, for a sampler that
            follows gradients.
    """

    sizes: dict[str, int]
    smooth: bool = False

    @classmethod
    def of(cls, task: Task, smooth: bool = False) -> Axes:
        """Return the parameters of a task."""
        sizes = {d.name: len(d.options) for d in task.space.decisions if len(d.options) > 1}
        return cls(sizes, smooth)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution of every parameter."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.smooth:
            # Half a level more at both ends, so that rounding gives every level the same share.
            return {name: FloatDistribution(-0.5, size - 0.5) for name, size in self.sizes.items()}
        return {name: IntDistribution(0, size - 1) for name, size in self.sizes.items()}

    def parameters(self, task: Task, levels: Sequence[int]) -> dict[str, float]:
        """Return the parameters of a plan."""
        kind = float if self.smooth else int
        named = zip(task.space.decisions, levels, strict=True)
        return {d.name: kind(level) for d, level in named if d.name in self.sizes}

    def levels(self, task: Task, parameters: dict[str, float]) -> Levels:
        """Return the plan of some parameters."""
        return tuple(
            min(max(round(parameters[d.name]), 0), self.sizes[d.name] - 1) if d.name in self.sizes else 0
            for d in task.space.decisions
        )


class LiveStudy:
    """The study of one round.

    Args:
        task: the problem.
        history: what was proposed so far. Measured plans enter as complete, failed ones as failed and
            without a value; no number that is not finite is ever told.
        sampler: a new sampler, seeded for this round.
        smooth: see :class:`Axes`.
        most: at most so many measured plans enter, half of them the best and half the newest; all of
            them where it is None.
    """

    def __init__(
        self,
        task: Task,
        history: History,
        sampler: BaseSampler,
        smooth: bool = False,
        most: int | None = None,
    ) -> None:
        import optuna

        self._task, self._axes = task, Axes.of(task, smooth)
        self._distributions = self._axes.distributions()
        # A genetic sampler breeds from the best of generation 0 once that is a whole population. With
        # the whole history in it, these are the survivors of all generations so far.
        generation = getattr(sampler, "_get_generation_key", None)
        self._attributes = {generation(): 0} if generation else {}
        objectives = 2 if task.mode == "front" else 1
        minimize = optuna.study.StudyDirection.MINIMIZE
        self.study = optuna.create_study(directions=[minimize] * objectives, sampler=sampler)
        for trial in _chosen(history, most, task.mode):
            self._add(trial.proposal.levels, self._values(trial))

    def ask(self) -> tuple[Levels, Note]:
        """Return the levels that the sampler asks for next; they may exceed the budget."""
        from optuna.trial import TrialState

        trial = self.study.ask(self._distributions)
        # What is measured is another plan, the projected one: see `expect`.
        self.study.tell(trial, state=TrialState.FAIL)
        return self._axes.levels(self._task, trial.params), {}

    def expect(self, levels: Levels) -> None:
        """Add a plan whose loss will be measured after this round, so that no other is asked near it."""
        from optuna.trial import TrialState, create_trial

        parameters = self._axes.parameters(self._task, levels)
        self.study.add_trial(
            create_trial(state=TrialState.RUNNING, params=parameters, distributions=self._distributions)
        )

    def _values(self, trial: Trial) -> list[float] | None:
        """Return what is minimized, or None where there is no finite loss."""
        loss = trial.loss
        if loss is None or not math.isfinite(loss):
            return None
        if self._axes.smooth:
            # Losses span orders of magnitude, and what follows gradients needs an even scale.
            loss = math.log(max(loss, LEAST_LOSS))
        return [trial.proposal.bytes / MIB, loss] if self._task.mode == "front" else [loss]

    def _add(self, levels: Levels, values: list[float] | None) -> None:
        from optuna.trial import TrialState, create_trial

        self.study.add_trial(
            create_trial(
                state=TrialState.FAIL if values is None else TrialState.COMPLETE,
                params=self._axes.parameters(self._task, levels),
                distributions=self._distributions,
                values=values,
                system_attrs={} if values is None else self._attributes,
            )
        )


def _chosen(history: History, most: int | None, mode: Mode) -> list[Trial]:
    """Return the trials that a study holds, in the order of the history, each plan once."""
    measured = {trial.proposal.plan.digest: trial for trial in history.measured}
    order = list(dict.fromkeys(trial.proposal.plan.digest for trial in history.trials))
    if most is not None and len(measured) > most:
        ranked = _by_dominance(history) if mode == "front" else list(measured)
        best = set(ranked[: most // 2])
        newest = [digest for digest in order if digest in measured and digest not in best]
        kept = best.union(newest[len(best) - most :])
        measured = {digest: trial for digest, trial in measured.items() if digest in kept}
    failed = {t.proposal.plan.digest: t for t in history.trials if t.measured is None}
    held = {**failed, **measured}
    return [held[digest] for digest in order if digest in held]


def _by_dominance(history: History) -> list[str]:
    """Return digests of measured plans, those first that the fewest others beat in both loss and bytes."""
    beaten: dict[str, int] = {}
    for place, trial in enumerate(history.measured):
        size = trial.proposal.bytes
        better = history.measured[:place]
        beaten[trial.proposal.plan.digest] = sum(t.proposal.bytes <= size for t in better)
    return sorted(beaten, key=lambda digest: beaten[digest])


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna's log below errors, and silence its warnings of experimental features."""
    import optuna
    from optuna.exceptions import ExperimentalWarning

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
