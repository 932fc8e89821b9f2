"""Drawing plans at random: to fit loss models near the budget, and to certify them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from tightfit.proxies.links import Floats
from tightfit.spaces import InfeasibleError

Levels = NDArray[np.integer[Any]]
Costs = Sequence[NDArray[np.integer[Any]]]

_STEEPEST = 1e4  # in units of one per mean cost step; every decision then sits at one end
_ROUNDS = 50  # of drawing before too few distinct plans are accepted as all there are


def tilted(
    costs: Costs, mean_bytes: float, losses: Sequence[Floats] | None = None, temperature: float | None = None
) -> list[Floats]:
    """Return the product distribution over plans whose expected bytes are ``mean_bytes``.

    Every decision chooses independently, an option with probability ∝ exp(−λ·bytes), λ the same for
    all decisions: of all distributions with this mean it has the largest entropy (Jaynes, *Information
    theory and statistical mechanics*, 1957). With losses, ∝ exp(−λ·bytes − loss/temperature), which
    draws plans near good ones.

    Args:
        costs: per decision the bytes of its options.
        mean_bytes: expected bytes over the decisions, without a space's fixed bytes.
        losses: per decision the scores of its options, in nats.
        temperature: in nats; the smaller, the closer to the best plans.

    Returns:
        Per decision the probabilities of its options.

    Raises:
        InfeasibleError: no plan is as small, or as large, as ``mean_bytes``.
        ValueError: losses without a positive temperature, or the reverse.
    """
    if (losses is None) != (temperature is None) or (temperature is not None and temperature <= 0):
        raise ValueError("losses and a positive temperature go together")
    floor, ceiling = (sum(int(end(row)) for row in costs) for end in (np.min, np.max))
    if not floor <= mean_bytes <= ceiling:
        raise InfeasibleError(
            f"no plans average {mean_bytes:.0f} bytes over their decisions: these take {floor} to {ceiling}."
        )
    if losses is None or temperature is None:
        energies = [np.zeros(len(row)) for row in costs]
    else:
        energies = [np.asarray(row, dtype=np.float64) / temperature for row in losses]
    step = max((ceiling - floor) / len(costs), 1.0)

    def surplus(steepness: float) -> float:
        probabilities = _boltzmann(costs, energies, steepness / step)
        expected = sum(float(p @ row) for p, row in zip(probabilities, costs, strict=True))
        return expected - mean_bytes

    if surplus(_STEEPEST) >= 0 or surplus(-_STEEPEST) <= 0:
        return _boltzmann(costs, energies, np.sign(surplus(0.0)) * _STEEPEST / step)
    return _boltzmann(
        costs, energies, scipy.optimize.brentq(surplus, -_STEEPEST, _STEEPEST, xtol=1e-10) / step
    )


def distribution_text(mean_bytes: float, temperature: float | None = None) -> str:
    """Say in words what :func:`tilted` draws from, as a certificate must state it."""
    tilt = "" if temperature is None else f", tilted to low predicted loss at {temperature:g} nats"
    return f"independent choices of largest entropy with {mean_bytes / 2**20:.2f} MiB on average{tilt}"


def sample(probabilities: Sequence[Floats], n: int, rng: np.random.Generator) -> Levels:
    """Draw distinct plans from a product distribution.

    Returns:
        Levels, shape ``(n, D)``; fewer rows where the distribution hardly has n distinct plans.
    """
    found: dict[bytes, Levels] = {}
    for _ in range(_ROUNDS):
        for row in _draw(probabilities, n, rng):
            found.setdefault(row.tobytes(), row)
        if len(found) >= n:
            break
    return _stack(list(found.values())[:n], len(probabilities))


def sample_band(
    costs: Costs, probabilities: Sequence[Floats], low: float, high: float, n: int, rng: np.random.Generator
) -> Levels:
    """Draw distinct plans from a product distribution whose total bytes lie in [low, high].

    Draws that fall into the band by themselves are taken as they are. Where they are too few, other
    draws are repaired by single swaps towards the band, chosen with the distribution's own
    probabilities; repaired plans are close to the conditional distribution, not exactly of it.

    Returns:
        Levels, shape ``(n, D)``; fewer rows where the band hardly holds n distinct plans.
    """
    found: dict[bytes, Levels] = {}
    outside: list[Levels] = []
    for _ in range(_ROUNDS):
        drawn = _draw(probabilities, n, rng)
        totals = np.sum([row[column] for row, column in zip(costs, drawn.T, strict=True)], axis=0)
        inside = (low <= totals) & (totals <= high)
        found.update({row.tobytes(): row for row in drawn[inside] if row.tobytes() not in found})
        outside.extend(drawn[~inside])
        if len(found) >= n:
            break
    for row in outside:
        if len(found) >= n:
            break
        repaired = _repair(costs, probabilities, row, low, high, rng)
        if repaired is not None:
            found.setdefault(repaired.tobytes(), repaired)
    return _stack(list(found.values())[:n], len(probabilities))


def _boltzmann(costs: Costs, energies: Sequence[Floats], steepness: float) -> list[Floats]:
    result = []
    for row, energy in zip(costs, energies, strict=True):
        exponent = -steepness * (row - row.min()) - energy
        weight = np.exp(exponent - exponent.max())
        result.append(weight / weight.sum())
    return result


def _draw(probabilities: Sequence[Floats], n: int, rng: np.random.Generator) -> Levels:
    uniform = rng.random((n, len(probabilities)))
    columns = []
    for column, p in zip(uniform.T, probabilities, strict=True):
        cumulative = np.cumsum(p)
        columns.append(np.searchsorted(cumulative / cumulative[-1], column, side="right"))
    return np.column_stack(columns).astype(np.int64)


def _repair(
    costs: Costs,
    probabilities: Sequence[Floats],
    levels: Levels,
    low: float,
    high: float,
    rng: np.random.Generator,
) -> Levels | None:
    """Swap single decisions until the plan is in the band; None where no swap gets any closer."""
    decision = np.repeat(np.arange(len(costs)), [len(row) for row in costs])
    option = np.concatenate([np.arange(len(row)) for row in costs])
    cost, probability = np.concatenate(costs), np.concatenate(probabilities)
    levels = levels.copy()
    total = sum(int(row[level]) for row, level in zip(costs, levels, strict=True))
    while not low <= total <= high:
        now = np.array([row[level] for row, level in zip(costs, levels, strict=True)])
        totals = total + cost - now[decision]
        nearer = _distance(totals, low, high) < _distance(np.array(total), low, high)
        chance = np.where(nearer, probability, 0.0)
        if not chance.sum() > 0:
            return None
        swap = int(rng.choice(len(chance), p=chance / chance.sum()))
        levels[decision[swap]] = option[swap]
        total = int(totals[swap])
    return levels


def _distance(totals: NDArray[Any], low: float, high: float) -> Floats:
    return np.asarray(np.maximum(np.maximum(low - totals, totals - high), 0.0))


def _stack(rows: list[Levels], decisions: int) -> Levels:
    return np.array(rows, dtype=np.int64).reshape(len(rows), decisions)
