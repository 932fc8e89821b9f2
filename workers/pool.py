"""The Ray pool: plans measured side by side, each worker a process with one thread and one replica.

Ray only starts processes and carries calls to them. What is measured again after a death, and when to
stop, is decided by :mod:`~tightfit.workers.ledger`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from tightfit.spaces import InputError, TightfitError
from tightfit.workers.cluster import Cluster, WorkerError
from tightfit.workers.crew import Failure, Job, Outcome
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.hand import Answer, Death, Hand
from tightfit.workers.ledger import Key, Ledger
from tightfit.workers.measurement import Measurement
from tightfit.workers.recipe import Recipe, describe_setup
from tightfit.workers.staff import Staff, gpus_each
from tightfit.workers.worker import Fault, Ready

SHORTEST_LEASE = 120.0
"""Seconds that every job may take at least."""

_PATIENCE = 20  # a job may take so many times what the slowest one took per token
_UNKNOWN_PACE = 2.0  # seconds per token that are allowed until one has been seen


@dataclass
class _Shift:
    """What one call of :meth:`RayPool.run` has still to do.

    Attributes:
        jobs: all of them, and their ``keys`` in the ledger.
        waiting: positions to be sent, in order.
        alone: positions that have to wait until everything else is done.
        solo: the position that is running alone.
        outcomes: positions and what came of them, not yet given to the caller.
    """

    jobs: Sequence[Job]
    keys: Sequence[Key]
    waiting: deque[int]
    alone: deque[int] = field(default_factory=deque)
    solo: int | None = None
    outcomes: deque[tuple[int, Outcome]] = field(default_factory=deque)


class RayPool:
    """A crew of Ray actors on this machine or in a cluster.

    Jobs are sent in order, one per worker at a time. Losses are those that ``evaluator`` would measure,
    bit for bit: workers with another setup are refused.

    Where this process is connected to Ray already, that connection is used and left open. The thread
    that makes a pool should outlive it: a local Ray ends with the thread that started it.

    Args:
        recipe: how workers build their evaluators.
        count: number of workers; None for one per CPU of the cluster.
        evaluator: of this process; says which losses are expected, and measures nothing.
        address: None for a Ray of its own on this machine, ``auto`` or ``host:port`` for a cluster.
        shortest_lease: seconds that every job may take at least before its worker is taken for hung.

    Raises:
        InputError: the address is none, or what the recipe names is not what it should be.
        WorkerError: Ray or the workers do not start, or the workers' losses would be others.
    """

    def __init__(
        self,
        recipe: Recipe,
        count: int | None,
        evaluator: Evaluator,
        address: str | None = None,
        shortest_lease: float = SHORTEST_LEASE,
    ) -> None:
        if count is not None and count < 1:
            raise InputError(f"workers.count: a pool needs at least one worker, not {count}.")
        self._texts = recipe.texts
        self._evaluator = evaluator
        self._lease = shortest_lease
        self._ledger = Ledger()
        self._pace: float | None = None  # the most seconds per token that a job took
        self._staff: Staff | None = None
        self._cluster = Cluster(count, address, (count or 1) * gpus_each(recipe))
        try:
            elsewhere = address is not None
            self._staff = Staff(recipe, self._cluster.cpus, describe_setup(evaluator), elsewhere)
            self._staff.start()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that are ready, each on its own machine."""
        hands = self._staff.hands if self._staff else []
        return [hand.ready.pid for hand in hands if hand.ready is not None]

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        """Measure every job; yield (its position, what came of it) as they finish.

        A caller that stops early drops what was not sent yet, and what is under way unless it ends
        within a moment.

        Raises:
            InputError: a job names a part of the text that is not there.
            WorkerError: no worker is left, or one is not fit to measure.
        """
        staff = self._staff
        if staff is None:
            raise WorkerError("workers: the pool is closed.")
        shift = _Shift(jobs, [self._key(job) for job in jobs], deque(range(len(jobs))))
        staff.fill()
        try:
            while True:
                self._send(shift, staff)
                while shift.outcomes:  # the workers are busy with what comes next
                    yield shift.outcomes.popleft()
                if not staff.busy and not shift.waiting and shift.solo is None:
                    return
                for hand, answer in staff.answers():
                    if hand.position is None:
                        staff.welcome(hand, answer)
                    else:
                        self._settle(shift, staff, hand, hand.position, answer)
        finally:
            staff.let_go()

    def close(self) -> None:
        """End all workers, and Ray where this pool started it."""
        staff, self._staff = self._staff, None
        try:
            if staff is not None:
                staff.dismiss()
        finally:
            self._cluster.close()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _key(self, job: Job) -> Key:
        if job.text not in self._texts:
            raise InputError(f"workers: there is no text {job.text!r} (there are {', '.join(self._texts)}).")
        windows = self._texts[job.text][: job.windows]
        return job.plan, job.split, self._evaluator.protocol(job.split, windows)

    def _send(self, shift: _Shift, staff: Staff) -> None:
        """Give workers what comes next."""
        idle = deque(staff.idle)
        while shift.waiting and (idle or not self._may_run(shift, shift.waiting[0])):
            position = shift.waiting.popleft()
            if self._may_run(shift, position):
                self._give(idle.popleft(), position, shift)
            elif self._ledger.step(shift.keys[position]) == "alone":
                shift.alone.append(position)
            else:
                self._give_up(shift, position)
        if shift.waiting or staff.busy:
            return
        if shift.solo is not None and idle:
            self._give(idle.popleft(), shift.solo, shift)
        while shift.solo is None and shift.alone:
            position = shift.alone.popleft()
            if self._ledger.step(shift.keys[position]) == "never":  # its twin was the last straw
                self._give_up(shift, position)
                continue
            shift.solo = position
            staff.dismiss()
            staff.hire()

    def _may_run(self, shift: _Shift, position: int) -> bool:
        return self._ledger.step(shift.keys[position]) == "measure"

    def _give_up(self, shift: _Shift, position: int) -> None:
        key = shift.keys[position]
        shift.outcomes.append((position, Failure(*key, "died", self._ledger.reason(key))))

    def _give(self, hand: Hand, position: int, shift: _Shift) -> None:
        pace = _UNKNOWN_PACE if self._pace is None else _PATIENCE * self._pace
        job = shift.jobs[position]
        hand.send(position, job, max(self._lease, pace * self._tokens(job)))

    def _settle(self, shift: _Shift, staff: Staff, hand: Hand, position: int, answer: Answer) -> None:
        """Handle what a worker says of its job."""
        alone, shift.solo, hand.position = position == shift.solo, None, None
        key, job = shift.keys[position], shift.jobs[position]
        if isinstance(answer, TightfitError):
            raise answer
        if isinstance(answer, Death | Fault):
            self._ledger.died(key, answer.reason)
            shift.waiting.appendleft(position)
            if isinstance(answer, Death):
                staff.lose(hand)
            if isinstance(answer, Death) and not alone:
                staff.hire()
            return
        if isinstance(answer, Ready) or answer.protocol != key[2]:
            raise WorkerError("workers: one measured something else than it was asked to.")
        self._ledger.finished(key)
        # By the worker's own clock: this process may have been paused meanwhile.
        if isinstance(answer, Measurement) and (tokens := self._tokens(job)) > 0:
            self._pace = max(self._pace or 0.0, answer.seconds / tokens)
        shift.outcomes.append((position, answer))

    def _tokens(self, job: Job) -> int:
        return sum(len(window.tokens) for window in self._texts[job.text][: job.windows])
