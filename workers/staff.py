"""The workers of a pool: hired, checked when they are ready, replaced when they die, dismissed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tightfit.spaces import TightfitError
from tightfit.workers.cluster import WorkerError
from tightfit.workers.hand import PLACED_WITHIN, Answer, Death, Hand
from tightfit.workers.recipe import Recipe
from tightfit.workers.worker import Ready

_POLL = 1.0  # seconds
_GRACE = 2.0  # seconds for jobs under way when nobody wants their outcome any more
_FAILED_STARTS = 3  # workers that die one after the other before they are ready


class Staff:
    """A number of workers that all build from one recipe.

    Args:
        recipe: how workers build their evaluators.
        count: how many there should be.
        setup: what their losses must depend on, see :func:`tightfit.workers.recipe.describe_setup`.
        elsewhere: whether they may be on machines that do not have the recipe's files.
    """

    def __init__(self, recipe: Recipe, count: int, setup: Mapping[str, str], elsewhere: bool) -> None:
        import ray

        self._ray = ray
        self._count = count
        self._setup = setup
        self._gpus = gpus_each(recipe)
        self._recipe = ray.put(recipe)
        self._importance: Any = ray.put(recipe.importance.read_bytes()) if elsewhere else None
        self._failed_starts = 0
        self.hands: list[Hand] = []

    @property
    def idle(self) -> list[Hand]:
        """Workers that wait for a job."""
        return [hand for hand in self.hands if hand.idle]

    @property
    def busy(self) -> list[Hand]:
        """Workers that have one."""
        return [hand for hand in self.hands if hand.position is not None]

    def start(self) -> None:
        """Hire everybody and wait until they are ready.

        Raises:
            WorkerError: one does not start, or is not fit to measure.
        """
        self.fill()
        while any(hand.ready is None for hand in self.hands):
            for hand, answer in self.answers():
                self.welcome(hand, answer)
            if len(self.hands) < self._count:
                raise WorkerError(
                    f"workers.count: Ray found no place for {self._count} workers within "
                    f"{PLACED_WITHIN:.0f} s; others may be using its CPUs."
                )

    def fill(self) -> None:
        """Hire whoever is missing, without waiting for them."""
        while len(self.hands) < self._count:
            self.hire()

    def hire(self) -> None:
        """Ask Ray for one more."""
        self.hands.append(Hand(self._recipe, self._importance, self._gpus))

    def lose(self, hand: Hand) -> None:
        """Take a dead worker off the list."""
        self.hands.remove(hand)

    def dismiss(self) -> None:
        """End all of them."""
        for hand in self.hands:
            hand.kill()
        self.hands.clear()

    def answers(self) -> Iterator[tuple[Hand, Answer]]:
        """Wait a moment for answers; kill whoever takes too long."""
        calls = {hand.call: hand for hand in self.hands if hand.call is not None}
        done, _ = self._ray.wait(list(calls), num_returns=1, timeout=_POLL)
        # All that have come back, before anybody is found overdue: this process may have been paused.
        if len(done) < len(calls):
            done, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        for call in done:
            yield calls[call], calls[call].take()
        for hand in list(self.hands):
            if (death := hand.overdue()) is not None:
                yield hand, death

    def welcome(self, hand: Hand, answer: Answer) -> None:
        """Handle the first answer of a worker: it is ready, or it never will be.

        Raises:
            WorkerError: it is not fit to measure, or none can be had.
        """
        if isinstance(answer, TightfitError):
            raise answer
        if isinstance(answer, Ready):
            self._failed_starts = 0
            self._compare(answer)
        if isinstance(answer, Death):
            self.lose(hand)
            if answer.nowhere:  # the others go on without it
                if not self.hands:
                    raise WorkerError(f"workers: the last one is gone, since {answer.reason}.")
                return
            self._failed_starts += 1
            if self._failed_starts == _FAILED_STARTS:
                raise WorkerError(
                    f"workers: {_FAILED_STARTS} ended before they were ready, the last one since "
                    f"{answer.reason}."
                )
            self.hire()

    def let_go(self) -> None:
        """Wait shortly for jobs under way, whose outcome nobody wants any more, and end the others."""
        calls = [hand.call for hand in self.busy]
        if not calls:
            return
        done, _ = self._ray.wait(calls, num_returns=len(calls), timeout=_GRACE)
        for hand in self.busy:
            hand.position = None
            if hand.call in done:
                gone = isinstance(hand.take(), Death)
            else:
                hand.kill()
                gone = True
            if gone:
                self.lose(hand)

    def _compare(self, ready: Ready) -> None:
        """Refuse a worker whose losses would be others than this process's."""
        for what, value in ready.setup.items():
            if value != self._setup.get(what):
                raise WorkerError(
                    f"workers: the {what} is {value} on {ready.host} and {self._setup.get(what)} here, so "
                    "losses would not be the same; use equal machines with equal installations."
                )


def gpus_each(recipe: Recipe) -> int:
    """Accelerators that a worker takes, of those that Ray hands out."""
    return 1 if recipe.device.startswith("cuda") else 0
