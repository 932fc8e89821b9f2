"""The archive: every measurement goes through here, and none is ever made twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tightfit.search.progress import Tick
from tightfit.search.store import Store
from tightfit.spaces import Plan, Space
from tightfit.workers.crew import Alone, Crew, Job, Outcome
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.measurement import Failure, Measurement
from tightfit.workers.text import Window

SENSING = "sensing"
"""Split name of measurements that serve proxies; their windows are the first of ``selection``."""


@dataclass
class Archive:
    """Measures plans, or finds that they were measured before under the same content key.

    What comes back from a crew is stored as it arrives, so that a fault loses at most what was being
    measured; it is returned in the order that was asked for, so that nothing depends on who was faster.

    Attributes:
        splits: windows by split.
        crew: measures; one evaluator in this process unless given.
        made: measurements made for this process, and ``reused``: those found in the store.
        tokens: tokens run forward for this process, backward passes charged as forward ones.
    """

    store: Store
    space: Space
    evaluator: Evaluator
    splits: Mapping[str, Sequence[Window]]
    crew: Crew = field(init=False)
    made: int = 0
    reused: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        self.crew = Alone(self.evaluator, self.splits)

    def measure(self, plan: Plan, split: str, source: str, tokens: int | None = None) -> Outcome:
        """Return the measurement of a plan on a split, or why there is none; see :meth:`measure_all`."""
        return self.measure_all([(plan, source)], split, tokens)[0]

    def measure_all(
        self,
        plans: Sequence[tuple[Plan, str]],
        split: str,
        tokens: int | None = None,
        tick: Tick = lambda done, total: None,
    ) -> list[Outcome]:
        """Measure plans on a split, side by side where the crew can.

        Args:
            plans: each with who proposed it, kept where it is new. A plan may be partial: sites
                without a choice stay uncompressed.
            split: name of the split.
            tokens: use only the first windows that together score this number of tokens.
            tick: called with (plans done, plans in all) after every plan; may raise to stop.

        Returns:
            What came of each plan, in the order of the plans.
        """
        text = "selection" if split == SENSING else split
        windows = self.windows(split, tokens)
        protocol = self.evaluator.protocol(split, windows)
        found: dict[str, Outcome] = {}
        jobs: dict[str, Job] = {}
        for plan, source in plans:
            size, cache = self.space.charge(plan)
            self.store.add_plan(plan, size, source, cache)
            known = self._known(plan.digest, split, protocol)
            if known is not None:
                found[plan.digest] = known
                self.reused += 1
            elif plan.digest not in jobs:
                options = self.space.site_options(plan)
                kv = self.space.kv_options(plan)
                jobs[plan.digest] = Job(plan.digest, options, split, text, len(windows), kv)
        waiting = list(jobs.values())
        tick(len(found), len(plans))
        for position, outcome in self.crew.run(waiting):
            found[waiting[position].plan] = self._keep(outcome)
            self.made += 1
            self.tokens += sum(_run(window, waiting[position]) for window in windows)
            tick(len(found), len(plans))
        return [found[plan.digest] for plan, _ in plans]

    def _known(self, plan: str, split: str, protocol: str) -> Outcome | None:
        measured = self.store.find_measurement(plan, split, protocol)
        return measured or self.store.find_failure(plan, split, protocol)

    def _keep(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Measurement):
            return self.store.add_measurement(outcome)
        self.store.add_failure(outcome)
        return outcome

    def windows(self, split: str, tokens: int | None = None) -> Sequence[Window]:
        """Return the windows of a split, or its first ones that together score a number of tokens."""
        windows = self.splits["selection" if split == SENSING else split]
        if tokens is None:
            return windows
        taken: list[Window] = []
        for window in windows:
            if sum(w.scored for w in taken) >= tokens:
                break
            taken.append(window)
        return taken

    def plain_windows(self, split: str, tokens: int | None = None) -> Sequence[Window]:
        """Return the same windows without what comes before their scored tokens, for passes over matrices."""
        return [window.after(0) for window in self.windows(split, tokens)]


def _run(window: Window, job: Job) -> int:
    """Tokens that measuring a plan runs the model on; with its own weights prefixes have been read before."""
    return window.scored if not job.options else len(window.tokens) - 1


def successes(outcomes: Sequence[Outcome]) -> list[Measurement]:
    """Return the measurements among outcomes."""
    return [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
