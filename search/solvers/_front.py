"""All limits at once: dynamic programming over a coarse table of byte buckets.

After each decision the table holds, per bucket b, the least loss of the decisions so far within b
buckets. An option's bytes above its decision's cheapest are rounded *up* to whole buckets, so that what
fits in buckets fits in bytes; the true bytes of every plan are counted afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.coupling import Coupling
from tightfit.search.solvers._coupled import Coupled
from tightfit.search.solvers._relaxation import Relaxation
from tightfit.search.solvers._solution import Solution, relative_gap
from tightfit.search.solvers._table import Floats, Ints, Ragged, Table
from tightfit.spaces import InfeasibleError


@dataclass(frozen=True, eq=False)
class _Layer:
    """One decision in the table.

    Attributes:
        decision: which one.
        options: its options worth considering, cheapest first.
        buckets: what each takes above the first.
        choices: per bucket the best of ``options`` for this decision, shape ``(width,)``; compact
            integers, since a table has 560 × 65k of them.
    """

    decision: int
    options: Ints
    buckets: Ints
    choices: NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, eq=False)
class Front:
    """Non-dominated plans for all limits.

    Attributes:
        costs: true bytes, rising, shape ``(P,)``.
        losses: falling, shape ``(P,)``.
        unit: bytes per bucket.
        exact: whether no cost had to be rounded, so that every point is optimal for its bytes.
    """

    costs: Ints
    losses: Floats
    unit: int
    exact: bool
    _problem: Coupled = field(repr=False)
    _relaxation: Relaxation = field(repr=False)
    _layers: tuple[_Layer, ...] = field(repr=False)
    _buckets: Ints = field(repr=False)

    @cached_property
    def bounds(self) -> Floats:
        """Lower bound on the loss of any plan of at most each point's bytes, shape ``(P,)``."""
        return np.minimum(self._relaxation.curve(self.costs), self.losses)

    @cached_property
    def gaps(self) -> Floats:
        """How far each point can be from the optimum for its bytes, relative to its loss."""
        table = self._relaxation.table
        return np.asarray(relative_gap(table, self.losses, self.bounds), dtype=np.float64)

    def lower(self, limits: Ints) -> Floats:
        """Return lower bounds on the loss of any plan within limits not below the floor, same shape."""
        if not self.exact:
            return self._relaxation.curve(limits)
        bounds: Floats = self.losses[np.searchsorted(self.costs, limits, side="right") - 1]
        return bounds

    def at(self, limit: int) -> int:
        """Return the position of the best point within a limit.

        Raises:
            InfeasibleError: the limit is below the floor.
        """
        position = int(np.searchsorted(self.costs, limit, side="right")) - 1
        if position < 0:
            raise InfeasibleError(f"a limit of {limit} bytes is below the floor of {self.costs[0]} bytes.")
        return position

    def levels(self, position: int) -> tuple[int, ...]:
        """Return the plan of a point."""
        return self._problem.levels(self._merged_levels(position).tolist())

    def solution(self, limit: int) -> Solution:
        """Return the best point within a limit as a solution with the relaxation's bound there.

        Raises:
            InfeasibleError: the limit is below the floor.
        """
        levels = self._merged_levels(self.at(limit))
        bound = float(self._relaxation.curve(limit))
        return self._problem.solution(Solution.of(self._relaxation.table, levels, bound))

    def _merged_levels(self, position: int) -> Ints:
        """Return the options of the decisions in the table, where coupled ones are one."""
        levels = np.empty(len(self._layers), dtype=np.int64)
        for layer, choice in _backtrack(self._layers, self._buckets[[position]]):
            levels[layer.decision] = layer.options[choice[0]]
        return levels


def solve_front(
    costs: Ragged, losses: Ragged, buckets: int = 65536, couplings: Sequence[Coupling] = ()
) -> Front:
    """Find plans for all limits.

    Where the costs' common unit is at least a bucket, the table is exact. Otherwise rounding costs up
    leaves gaps of some 1e-3 (560 decisions with twelve options, 65k buckets): see :attr:`Front.gaps`,
    and use :func:`solve` for one limit.

    Args:
        costs: per decision the bytes of its options.
        losses: per decision the losses of its options, of any sign.
        buckets: width of the table; time and memory (at most D × buckets bytes) grow with it.
        couplings: decisions that interact (see :mod:`_coupled <tightfit.search.solvers._coupled>`).

    Raises:
        InputError: see :meth:`Table.of`; or a coupling is about other decisions.
    """
    problem = Coupled.of(costs, losses, couplings)
    table = Table.of(problem.costs, problem.losses)
    relaxation = Relaxation.of(table)
    added = table.costs - table.costs.min(axis=1, keepdims=True)
    common = max(int(np.gcd.reduce(added, axis=None)), 1)
    unit = max(common, -(-int(added.max(axis=1).sum()) // buckets))
    layers, best = _fill_table(table, -(-added // unit))
    # Only buckets where the loss falls hold a plan of their own.
    ends = np.flatnonzero(np.concatenate([[True], np.diff(best) < 0]))
    cost = np.full(len(ends), table.floor)
    for layer, choice in _backtrack(layers, ends):
        cost += added[layer.decision, layer.options][choice]
    kept = _non_dominated(cost, best[ends])
    ends = ends[kept]
    return Front(cost[kept], best[ends], unit, unit == common, problem, relaxation, layers, ends)


def _fill_table(table: Table, buckets: Ints) -> tuple[tuple[_Layer, ...], Floats]:
    """Go through the decisions; return their layers and the least loss within each bucket."""
    # Small decisions first: the table only has to reach as far as the decisions so far can spend.
    order = np.argsort(buckets.max(axis=1), kind="stable")
    best, layers = np.zeros(1), []
    for decision in order.tolist():
        options = _non_dominated(buckets[decision], table.losses[decision])
        shifts = buckets[decision, options]
        best, choices = _add_decision(best, shifts, table.losses[decision, options])
        layers.append(_Layer(decision, options, shifts, choices))
    return tuple(layers), best


def _add_decision(
    best: Floats, shifts: Ints, losses: Floats
) -> tuple[Floats, NDArray[np.unsignedinteger[Any]]]:
    """Return the table with one more decision, and the chosen option per bucket."""
    before = np.pad(best, (0, int(shifts[-1])), mode="edge")
    after = before + losses[0]
    choices = np.zeros(len(after), dtype=np.min_scalar_type(len(losses) - 1))
    scratch, mask = np.empty(len(after)), np.empty(len(after), dtype=np.bool_)
    for option, (shift, loss) in enumerate(zip(shifts[1:].tolist(), losses[1:].tolist(), strict=True), 1):
        size = len(after) - shift
        candidate = np.add(before[:size], loss, out=scratch[:size])
        better = np.less(candidate, after[shift:], out=mask[:size])
        np.copyto(after[shift:], candidate, where=better)
        np.copyto(choices[shift:], choices.dtype.type(option), where=better)
    return after, choices


def _backtrack(layers: tuple[_Layer, ...], ends: Ints) -> Iterator[tuple[_Layer, NDArray[Any]]]:
    """Yield every layer, last first, with the choices of the plans that end in some buckets.

    Args:
        layers: of the table.
        ends: buckets where the loss falls. Their plans fill them exactly, so that no step back ends
            beyond what a narrower table reaches.
    """
    at = ends.copy()
    for layer in reversed(layers):
        choice = layer.choices[at]
        yield layer, choice
        at -= layer.buckets[choice]


def _non_dominated(costs: Ints, losses: Floats) -> Ints:
    """Return the positions of points that no other beats in both, cheapest first."""
    order = np.lexsort((losses, costs))
    lowest = np.minimum.accumulate(losses[order])
    kept: Ints = order[np.concatenate([[True], np.diff(lowest) < 0])]
    return kept
