"""What to do with a plan whose measurement killed its process.

A process can die of anything: memory that another program took, a node that was switched off, or the
plan itself. So a death is no verdict. A job whose process died is measured again, at first beside
others; after two deaths it runs once more alone, in a process of its own with nothing beside it; and
only if that one dies too is it the plan's fault, and the job is never run again.
"""

from __future__ import annotations

from typing import Literal

DEATHS_BESIDE_OTHERS = 2
"""So many processes may die of a job before it is run alone."""

Key = tuple[str, str, str]
"""Which measurement: plan, split, protocol."""

Step = Literal["measure", "alone", "never"]


class Ledger:
    """Counts the deaths of every job and says how it may be run."""

    def __init__(self) -> None:
        self._deaths: dict[Key, list[str]] = {}

    def step(self, key: Key) -> Step:
        """Say how a job is to be run next: beside others, alone in a fresh process, or not at all."""
        deaths = len(self._deaths.get(key, ()))
        if deaths < DEATHS_BESIDE_OTHERS:
            return "measure"
        return "alone" if deaths == DEATHS_BESIDE_OTHERS else "never"

    def died(self, key: Key, reason: str) -> Step:
        """Note that the process that measured a job died, and say what to do with the job next.

        Args:
            key: which job.
            reason: what is known of the death, half a sentence.
        """
        self._deaths.setdefault(key, []).append(reason)
        return self.step(key)

    def finished(self, key: Key) -> None:
        """Note that a job came to its end: earlier deaths were not its fault."""
        self._deaths.pop(key, None)

    def reason(self, key: Key) -> str:
        """Say in one sentence why a job is not run any more."""
        deaths = self._deaths[key]
        return (
            f"The process that measured it died {len(deaths)} times, the last time with nothing beside it: "
            f"{deaths[-1]}."
        )
