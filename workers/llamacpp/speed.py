"""How fast a file is and what memory it takes, in rounds that compare paired."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

Quantity = Literal["prompt_rate", "generation_rate", "first_token", "load", "peak_bytes"]

_LEVEL = 0.95


@dataclass(frozen=True)
class Sample:
    """One run of a file in a process of its own.

    Attributes:
        prompt_rate: tokens of the prompt per second.
        generation_rate: tokens per second after the prompt, one by one.
        first_token: seconds from the prompt to the logits of the first new token, the model being loaded.
        load: seconds that loading took, the file being in the page cache.
        peak_bytes: most memory that the process had resident, pages of the mapped file included.
    """

    prompt_rate: float
    generation_rate: float
    first_token: float
    load: float
    peak_bytes: int


@dataclass(frozen=True)
class Estimate:
    """A median and an interval of about 95 % for it that assumes no distribution.

    See :func:`estimate`.
    """

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate the median of what values are drawn from.

    The interval ends at the k-th smallest and the k-th largest value, with the largest k that covers the
    median with 95 % (David and Nagaraja, *Order Statistics*, 2003, §7.1): from below, it is missed where
    fewer than k values fall below the median, and each does with probability one half. Fewer than six
    values cannot cover so much: they give their range, 94 % for five and 75 % for three.
    """
    ordered = sorted(values)
    k = 1
    while 2 * k < len(ordered) and _coverage(len(ordered), k + 1) >= _LEVEL:
        k += 1
    return Estimate(median(ordered), ordered[k - 1], ordered[-k])


def _coverage(count: int, k: int) -> float:
    return 1 - 2 * sum(math.comb(count, i) for i in range(k)) / (1 << count)


@dataclass(frozen=True)
class Speed:
    """What running a file gave on one machine.

    Attributes:
        file: its name.
        file_bytes: its size.
        prompt: tokens of the prompt.
        generate: tokens generated after it.
        machine: processor that it ran on, one thread of it.
        version: version of the package that llama.cpp came from.
        samples: one per round; equal rounds of the files of one bench belong together.
    """

    file: str
    file_bytes: int
    prompt: int
    generate: int
    machine: str
    version: str
    samples: tuple[Sample, ...]

    @property
    def peak_bytes(self) -> int:
        """Most memory that it took in any round."""
        return max(sample.peak_bytes for sample in self.samples)

    def values(self, quantity: Quantity) -> list[float]:
        """Return a quantity in all rounds."""
        return [getattr(sample, quantity) for sample in self.samples]

    def estimate(self, quantity: Quantity) -> Estimate:
        """Estimate a quantity over the rounds."""
        return estimate(self.values(quantity))

    def ratio(self, baseline: Speed, quantity: Quantity) -> Estimate:
        """Estimate a quantity as a multiple of another file's, paired by round.

        Within a round the machine was as busy for one as for the other, so that this is known better than
        either.

        Raises:
            ValueError: they do not come from the same bench.
        """
        if self._setting() != baseline._setting():
            raise ValueError("a paired ratio needs both files from one bench")
        pairs = zip(self.values(quantity), baseline.values(quantity), strict=True)
        return estimate([own / other for own, other in pairs])

    def to_dict(self) -> dict[str, Any]:
        """Return the speed as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Speed:
        """Read a speed from plain data."""
        return cls(**{**data, "samples": tuple(Sample(**row) for row in data["samples"])})

    def _setting(self) -> tuple[object, ...]:
        return (self.prompt, self.generate, self.machine, self.version, len(self.samples))


@dataclass(frozen=True)
class NoSpeed:
    """A file that could not be measured.

    Attributes:
        file: its name.
        reason: half a sentence.
    """

    file: str
    reason: str
