"""Progress lines: one per stage, with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tightfit.search.words import duration

Tick = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

# How often a line is written where it cannot be overwritten, in seconds.
_QUIET_INTERVAL = 15.0


class Progress:
    """Writes progress to a terminal as one line that changes, elsewhere as a line now and then.

    Args:
        stream: where to write; standard error unless given, so that output can be piped.
        clock: gives the time in seconds.
        checkpoint: called at every step; may raise to stop the run, or wait and return the seconds
            that it waited, which are not booked.

    Attributes:
        seconds: time spent so far, by stage.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
        checkpoint: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self.checkpoint = checkpoint
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[Tick]:
        """Show a stage; the block calls what it is given as steps are done.

        Args:
            name: stage under which the time is booked.
            what: shown before the numbers.
        """
        start = shown = self._clock()
        last = (0, 0)
        start += self.checkpoint()

        def tick(done: int, total: int) -> None:
            nonlocal start, shown, last
            last = (done, total)
            start += self.checkpoint()
            now = self._clock()
            interval = 0.2 if self._stream.isatty() else _QUIET_INTERVAL
            if now - shown < interval or done >= total:
                return
            shown = now
            left = (now - start) / max(done, 1) * (total - done)
            self._write(f"{what}: {done}/{total}, {duration(left)} left", end=False)

        try:
            yield tick
        except BaseException:
            if shown > start:
                self._leave_line()
            raise
        spent = self._clock() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + spent
        count = f" {last[1]}," if last[1] else ""
        self._write(f"{what}:{count} done in {duration(spent)}", end=True)

    def note(self, text: str) -> None:
        """Write a line that is no progress but belongs beside it."""
        self._write(text, end=True)

    def _leave_line(self) -> None:
        """End a line that was still changing, so that what stopped the stage begins on its own."""
        if self._stream.isatty():
            self._stream.write("\n")
            self._stream.flush()

    def _write(self, text: str, *, end: bool) -> None:
        if self._stream.isatty():
            self._stream.write(f"\r\033[K  {text}" + ("\n" if end else ""))
        else:
            self._stream.write(f"  {text}\n")
        self._stream.flush()
