"""Small random knapsacks with everything that makes them awkward, and brute force to check against."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Instance:
    """A knapsack that is small enough to list all of its plans.

    Attributes:
        costs: per decision the bytes of its options.
        losses: per decision the losses of its options.
        limit: most bytes; between the floor and a little above the ceiling.
    """

    costs: list[NDArray[np.int64]]
    losses: list[NDArray[np.float64]]
    limit: int

    def plans(self) -> list[tuple[int, ...]]:
        """Every plan, within the limit or not."""
        return list(itertools.product(*(range(len(row)) for row in self.costs)))

    def cost(self, levels: tuple[int, ...]) -> int:
        return sum(int(row[level]) for row, level in zip(self.costs, levels, strict=True))

    def loss(self, levels: tuple[int, ...]) -> float:
        return sum(float(row[level]) for row, level in zip(self.losses, levels, strict=True))

    def ranked(self) -> list[float]:
        """Losses of all plans within the limit, best first."""
        levels = np.array(self.plans())
        costs = sum(row[column] for row, column in zip(self.costs, levels.T, strict=True))
        losses = sum(row[column] for row, column in zip(self.losses, levels.T, strict=True))
        return [float(loss) for loss in np.sort(losses[costs <= self.limit])]


# (smallest cost, spread of costs, common unit): ties, few and many distinct sums, bytes of real
# matrices, and costs that differ by a byte in a petabyte.
COSTS = ((0, 4, 1), (0, 30, 1), (3, 5, 7), (0, 10**7, 1), (10**5, 40, 41472), (10**15, 3, 1))


def random_instance(seed: int) -> Instance:
    """At most six decisions with at most five options; about a third of the losses are negative."""
    rng = np.random.default_rng([41, seed])
    lowest, spread, unit = COSTS[rng.integers(len(COSTS))]
    tied = rng.random() < 0.3
    costs, losses = [], []
    for _ in range(rng.integers(1, 7)):
        options = rng.integers(1, 6)
        costs.append((lowest + rng.integers(0, spread, options)) * unit)
        losses.append(rng.integers(-1, 3, options).astype(float) if tied else rng.normal(0.4, 1, options))
    floor, ceiling = (sum(int(pick(row)) for row in costs) for pick in (np.min, np.max))
    return Instance(costs, losses, int(rng.integers(floor, ceiling + 3)))


def large_instance(decisions: int, options: int, seed: int = 0) -> Instance:
    """Matrices of 0.3–30 MB, losses falling with the bits; the limit is halfway."""
    rng = np.random.default_rng([43, seed])
    costs, losses = [], []
    for _ in range(decisions):
        weights = 64 * rng.integers(4096, 409600)
        costs.append(weights * (2 * np.arange(options) + 8) // 32 + 2 * rng.integers(1, 999))
        losses.append(rng.lognormal(-5, 1) * 2.0 ** -np.arange(options) * rng.lognormal(0, 0.2, options))
    floor, ceiling = (sum(int(pick(row)) for row in costs) for pick in (np.min, np.max))
    return Instance(costs, losses, (floor + ceiling) // 2)


@pytest.fixture(scope="session")
def random_small() -> Callable[[int], Instance]:
    return random_instance


@pytest.fixture(scope="session")
def random_large() -> Callable[..., Instance]:
    return large_instance


@pytest.fixture(scope="session")
def instances() -> st.SearchStrategy[Instance]:
    """Hypothesis' own small instances: it finds the ties and the extremes that random ones miss."""

    @st.composite
    def draw(draw: st.DrawFn) -> Instance:
        sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
        cost = st.integers(0, 12) | st.integers(0, 10**9)
        loss = st.integers(-3, 3).map(float) | st.floats(-1e3, 1e3)
        costs = [np.array(draw(st.lists(cost, min_size=n, max_size=n))) for n in sizes]
        losses = [np.array(draw(st.lists(loss, min_size=n, max_size=n))) for n in sizes]
        floor, ceiling = (sum(int(pick(row)) for row in costs) for pick in (np.min, np.max))
        return Instance(costs, losses, draw(st.integers(floor, ceiling + 1)))

    return draw()
