"""Which plans to time, so that few of them tell the most about the table of times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightfit.proxies.latency import Class, Floats, Phase, Products
from tightfit.spaces import Space

_PURPOSE = 61
_POOL = 512  # mixed plans to choose from
_NOISE = 0.02  # of a measured ratio
# Standard deviations of what is unknown, relative: fixed time, common rate, formats, shapes, classes.
_FIXED, _RATE, _TYPE, _SHAPE, _CLASS = 1.0, 1.0, 0.5, 0.2, 0.2


def design_plans(space: Space, count: int, seed: int, phase: Phase = "generate") -> list[tuple[int, ...]]:
    """Return distinct plans to time: the uniform ones first, then mixed ones.

    Mixed plans give every shape a format of its own, all formats equally often, or every matrix. Of many
    such plans each next one is that whose time is least certain after the plans before it: the greedy form
    of a Bayesian D-optimal design (Chaloner & Verdinelli, *Bayesian experimental design*, Statistical
    Science 10, 1995), under the same prior as the table's regression has. Where there are more uniform
    plans than asked for, they are chosen in the same way.

    Args:
        space: the decisions.
        count: most plans; fewer where the space has no more.
        seed: draws come from a generator made from it.
        phase: what is timed; it says what counts as work.
    """
    design = _Design(space, Products(space.geometry, phase))
    uniform = list(dict.fromkeys(uniform_plans(space)))
    chosen = design.choose([], uniform, count)
    pool = [plan for plan in _mixed(space, seed) if plan not in set(uniform)]
    return design.choose(chosen, list(dict.fromkeys(pool)), count)


def uniform_plans(space: Space) -> list[tuple[int, ...]]:
    """Return the plan of every format that is offered where there is a choice, used wherever it can be."""
    free = [decision for decision in space.decisions if len(decision.options) > 1]
    formats = sorted({option for decision in free for option in decision.matrix_options})
    return [space.uniform_levels(each) for each in formats]


def _mixed(space: Space, seed: int) -> list[tuple[int, ...]]:
    """Draw plans: in one half every group of equal matrices has a format, in the other every matrix."""
    groups: dict[object, list[int]] = {}
    for index, decision in enumerate(space.decisions):
        groups.setdefault((decision.weights, decision.options), []).append(index)
    plans = []
    for draw in range(_POOL):
        rng = np.random.default_rng([seed, _PURPOSE, draw])
        levels = [0] * len(space.decisions)
        for members in groups.values():
            sizes = len(space.decisions[members[0]].options)
            own = rng.permutation(np.arange(len(members)) % sizes) if draw % 2 else [int(rng.integers(sizes))]
            for at, member in enumerate(members):
                levels[member] = int(own[at % len(own)])
        plans.append(tuple(levels))
    return plans


class _Design:
    """What is certain about times after some plans: a Gaussian over fixed time and the rates of classes."""

    def __init__(self, space: Space, products: Products) -> None:
        parts = [
            [products.classes(dict.fromkeys(decision.sites, option)) for option in decision.matrix_options]
            for decision in space.decisions
        ]
        classes = sorted({each for rows in parts for row in rows for each in row})
        at = {each: index for index, each in enumerate(classes)}
        self._parts = [np.zeros((len(rows), len(classes))) for rows in parts]
        for rows, work in zip(parts, self._parts, strict=True):
            for level, row in enumerate(rows):
                for each in row:
                    work[level, at[each]] += products.work(each)
        self._prior = _prior(classes)

    def choose(
        self, chosen: Sequence[tuple[int, ...]], pool: list[tuple[int, ...]], count: int
    ) -> list[tuple[int, ...]]:
        """Return these plans, then the least certain of a pool, one after the other, so many in all."""
        plans, covariance = list(chosen), self._prior.copy()
        rows = self._rows([*plans, *pool])
        for row in rows[: len(plans)]:
            covariance = _after(covariance, row)
        rows, left = rows[len(plans) :], np.ones(len(pool), dtype=np.bool_)
        while len(plans) < count and left.any():
            variances = np.where(left, np.einsum("ij,jk,ik->i", rows, covariance, rows), -1.0)
            best = int(variances.argmax())
            plans.append(pool[best])
            left[best] = False
            covariance = _after(covariance, rows[best])
        return plans

    def _rows(self, plans: Sequence[tuple[int, ...]]) -> Floats:
        """Fixed time and work of every class, relative to the plan's own, in units of the noise."""
        if not plans:
            return np.zeros((0, len(self._prior)))
        work = np.array([sum(part[x] for part, x in zip(self._parts, plan, strict=True)) for plan in plans])
        work /= work.sum(axis=1).mean()
        rows = np.concatenate([np.ones((len(plans), 1)), work], axis=1)
        return np.asarray(rows / (_NOISE * (1 + work.sum(axis=1, keepdims=True))))


def _prior(classes: Sequence[Class]) -> Floats:
    """Covariance of fixed time and rates: classes share what their formats and shapes have in common."""
    same_type = np.array([[a[0] == b[0] for b in classes] for a in classes])
    same_shape = np.array([[a[1:] == b[1:] for b in classes] for a in classes])
    rates = _RATE**2 + _TYPE**2 * same_type + _SHAPE**2 * same_shape + _CLASS**2 * np.eye(len(classes))
    prior = np.zeros((len(classes) + 1, len(classes) + 1))
    prior[0, 0], prior[1:, 1:] = _FIXED**2, rates
    return prior


def _after(covariance: Floats, row: Floats) -> Floats:
    """Covariance once a plan with this row was timed, with noise of variance 1."""
    spread = covariance @ row
    return np.asarray(covariance - np.outer(spread, spread) / (1 + row @ spread))
