from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tightfit.proxies import Link, LinkAdditive

TYPES = ("q_proj", "o_proj", "up_proj", "down_proj")
BITS = (3, 4, 5, 6)


@dataclass(frozen=True)
class World:
    """A simulated model whose plans' losses are known exactly."""

    scores: list[np.ndarray]
    groups: list[list[tuple[str, int]]]
    costs: list[np.ndarray]
    truth: LinkAdditive

    def draw(self, plans: int, seed: int) -> np.ndarray:
        """Plans of mixed width, some of them aggressive as a whole."""
        rng = np.random.default_rng([seed, 99])
        tilt = rng.normal(0, 0.7, (plans, 1, 1)) * np.arange(len(BITS))
        shape = (plans, len(self.scores), len(BITS))
        return (tilt + rng.gumbel(size=shape)).argmax(axis=2)

    def measure(self, levels: np.ndarray, seed: int, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
        """Losses with relative noise, and their standard errors."""
        truth = self.truth.predict(levels)
        rng = np.random.default_rng([seed, 98])
        return truth * (1 + noise * rng.normal(size=len(levels))), noise * truth


@pytest.fixture
def make_world():
    """Build a world whose scores scatter around the prior by type, width and site."""

    def build(link: Link, seed: int, blocks: int = 15, level: float = 0.4) -> World:
        rng = np.random.default_rng([seed, 97])
        scale = {(kind, b): rng.lognormal(0, 0.15) for kind in TYPES for b in BITS}
        scores, groups, costs, truth = [], [], [], []
        for _ in range(blocks):
            for kind in TYPES:
                site = rng.lognormal(-0.18, 0.6) * level / (blocks * len(TYPES))
                prior = site * 3.5 ** (4.0 - np.array(BITS)) * rng.lognormal(0, 0.1, len(BITS))
                factor = np.array([scale[kind, b] for b in BITS]) * rng.lognormal(-0.045, 0.3, len(BITS))
                scores.append(link(prior))
                truth.append(prior * factor)
                groups.append([(kind, b) for b in BITS])
                costs.append(np.array(BITS) * (3000 if "down" in kind or "up" in kind else 1000))
        return World(scores, groups, costs, LinkAdditive(tuple(truth), link))

    return build
