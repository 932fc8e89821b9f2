"""Whoever measures plans: one evaluator in this process, or a pool of them elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tightfit.spaces import KvOption, Option
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.measurement import Failure, FailureKind, Measurement, fault
from tightfit.workers.text import Window


@dataclass(frozen=True)
class Job:
    """One plan to measure.

    Attributes:
        plan: its digest.
        options: the option of every compressed site.
        split: the name that the measurement gets.
        text: name of the part of the text that the windows come from.
        windows: the first so many windows of it.
        kv: the option of every compressed KV cache, by layer.
    """

    plan: str
    options: Mapping[str, Option]
    split: str
    text: str
    windows: int
    kv: Mapping[int, KvOption] = field(default_factory=dict)


Outcome = Measurement | Failure

__all__ = ["Alone", "Crew", "Failure", "FailureKind", "Job", "Outcome", "measure"]


class Crew(Protocol):
    """Measures plans, in any order and side by side."""

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        """Measure every job; yield (its position, what came of it) as they finish."""
        ...

    def close(self) -> None:
        """Let go of whatever it holds."""
        ...


class Alone:
    """The crew of one: an evaluator in this process.

    Args:
        evaluator: measures.
        texts: windows by part of the text.
    """

    def __init__(self, evaluator: Evaluator, texts: Mapping[str, Sequence[Window]]) -> None:
        self._evaluator = evaluator
        self._texts = texts

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        """Measure one job after another, in order."""
        for position, job in enumerate(jobs):
            yield position, measure(self._evaluator, self._texts, job)

    def close(self) -> None:
        """Do nothing: the evaluator is somebody else's."""


def measure(evaluator: Evaluator, texts: Mapping[str, Sequence[Window]], job: Job) -> Outcome:
    """Measure one job; a loss that is not finite is a failure of the plan."""
    windows = texts[job.text][: job.windows]
    measured = evaluator.measure(job.plan, job.options, job.split, windows, job.kv)
    wrong = fault(measured)
    if wrong is None:
        return measured
    return Failure(job.plan, job.split, measured.protocol, "not finite", wrong)
