"""One worker as the driver sees it: a Ray actor with at most one call that has not come back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tightfit.spaces import TightfitError
from tightfit.workers.cluster import WorkerError
from tightfit.workers.crew import Job, Outcome
from tightfit.workers.worker import Fault, Ready, Worker

PLACED_WITHIN = 60.0
"""Seconds that Ray may take to find a place for a worker and to start its process."""

READY_WITHIN = 1800.0
"""Seconds that a worker may take to load the model: it may have to be downloaded first."""

_FETCHED_WITHIN = 30.0  # seconds, for an answer that is there already


@dataclass(frozen=True)
class Death:
    """The end of a worker's process.

    Attributes:
        reason: half a sentence.
        nowhere: it never began, since Ray found no place for it.
    """

    reason: str
    nowhere: bool = False


Answer = Ready | Outcome | Fault | TightfitError | Death


class Hand:
    """A worker, from the moment that Ray is asked for it.

    Args:
        recipe: reference to a :class:`~tightfit.workers.recipe.Recipe` in Ray's object store.
        importance: reference to the content of its importance file, or None where all machines have it.
        gpus: accelerators that it takes.
    """

    def __init__(self, recipe: Any, importance: Any, gpus: int) -> None:
        import ray

        # Never restarted or tried again by Ray, whose counting cannot tell a deadly plan from a bad day.
        kind: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(Worker)
        self._ray = ray
        self._actor: Any = kind.remote(recipe, importance)
        self._here = self._actor.here.remote()
        self.call: Any = self._actor.prepare.remote()
        self.ready: Ready | None = None
        self.position: int | None = None
        self._since = time.monotonic()
        self._limit = READY_WITHIN

    @property
    def idle(self) -> bool:
        """Whether it can be given a job."""
        return self.call is None

    @property
    def seconds(self) -> float:
        """How long its call is under way."""
        return time.monotonic() - self._since

    def send(self, position: int, job: Job, limit: float) -> None:
        """Give it a job.

        Args:
            position: whose answer it will be.
            job: what to measure.
            limit: seconds that it may take.
        """
        self.position = position
        self._since, self._limit = time.monotonic(), limit
        self.call = self._actor.measure.remote(job)

    def overdue(self) -> Death | None:
        """Kill it if it takes too long."""
        if self.call is None:
            return None
        if self.seconds > self._limit:
            death = Death(f"it took longer than {self._limit:.0f} s")
        elif self.ready is None and self.seconds > PLACED_WITHIN and not self._placed():
            death = Death(f"Ray found no place for it within {PLACED_WITHIN:.0f} s", nowhere=True)
        else:
            return None
        self.kill()
        return death

    def take(self) -> Answer:
        """Return the answer to its call, which has come back."""
        from ray.exceptions import RayError, RayTaskError

        call, self.call = self.call, None
        try:
            answer: Answer = self._ray.get(call, timeout=_FETCHED_WITHIN)
        except RayTaskError as error:  # it could not even read what it was sent
            return WorkerError(f"workers: one does not understand what it is asked: {_last_line(error)}.")
        except RayError as error:
            self.kill()
            return Death(_cause(error))
        if isinstance(answer, Ready):
            self.ready = answer
        return answer

    def kill(self) -> None:
        """End its process, whatever it is at."""
        self.call = None
        self._ray.kill(self._actor)

    def _placed(self) -> bool:
        done, _ = self._ray.wait([self._here], timeout=0)
        return bool(done)


def _cause(error: Exception) -> str:
    """Say in half a sentence why a worker is gone."""
    from ray import exceptions

    match error:
        case exceptions.OutOfMemoryError():
            return "its machine ran out of memory"
        case exceptions.NodeDiedError():
            return "its machine was lost"
        case exceptions.ActorDiedError() if "creation task" in str(error):
            return _last_line(error)
        case exceptions.ActorDiedError():
            return "it ended without a word, as processes do that crash or are killed"
        case _:
            return f"Ray lost it ({type(error).__name__})"


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip().rstrip(".")
