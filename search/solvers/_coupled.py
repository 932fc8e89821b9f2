"""Decisions that interact, merged into super-decisions that any knapsack solver can take.

The options of a super-decision are all combinations of its decisions' options: bytes add up, losses add
up with the excess of the joint choice. Couplings that share a decision merge into one.

A combination that k others match or beat in bytes, loss and every side is never needed by the k best plans:
exchanging it gives k plans that are as good. Only those are left out, so what is solved is
exact for every k. Of 8 × 8 × 12 combinations the best plan needs some eighty (150 with a side), the 16 best
nearly all; that is fast enough: ``benchmarks/solvers.py`` compares 30 such blocks with none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.coupling import Coupling, check_couplings
from tightfit.search.sides import Side
from tightfit.search.solvers._solution import Solution
from tightfit.search.solvers._states import undominated
from tightfit.search.solvers._table import Floats, Ints, Ragged, Table, check_sides
from tightfit.spaces import InputError

MOST_COMBINATIONS = 1 << 14
"""Joint choices that one super-decision may have: 3 decisions of 25 options."""


@dataclass(frozen=True, eq=False)
class _Block:
    """A super-decision.

    Attributes:
        members: positions of its decisions.
        options: their levels in each of its options, shape ``(n, members)``.
    """

    members: list[int]
    options: Ints


@dataclass(frozen=True, eq=False)
class Coupled:
    """The knapsack of independent decisions that stands for one whose decisions interact.

    Attributes:
        costs: per super-decision the bytes of its options.
        losses: their losses, excess included.
        sides: the sides, about super-decisions.
    """

    costs: Ragged
    losses: Ragged
    sides: tuple[Side, ...]
    _blocks: tuple[_Block, ...] = ()

    @classmethod
    def of(
        cls,
        costs: Ragged,
        losses: Ragged,
        couplings: Sequence[Coupling],
        sides: Sequence[Side] = (),
        best: int = 1,
    ) -> Coupled:
        """Merge what is coupled; without couplings everything stays as it is.

        Args:
            costs: per decision the bytes of its options.
            losses: per decision the losses of its options.
            couplings: decisions that interact.
            sides: further bounds on a plan.
            best: how many of the best plans must be kept.

        Raises:
            InputError: see :meth:`Table.of`; a coupling or a side is about other decisions or options; or a
                super-decision has more than 16384 combinations.
        """
        if not couplings:
            return cls(costs, losses, tuple(sides))
        table = Table.of(costs, losses)
        check_sides(table, sides)
        check_couplings(couplings, table.counts.tolist())
        blocks, rows = [], []
        for members in _components(len(table.counts), couplings):
            block = _combine(members, table.counts)
            merged = [_summed(block, values) for values in (costs, losses, *(side.values for side in sides))]
            if len(members) > 1:
                merged[1] = merged[1] + _excess(block, couplings)
                kept = _needed(merged[0], merged[1], merged[2:], best)
                block, merged = _Block(members, block.options[kept]), [row[kept] for row in merged]
            blocks.append(block)
            rows.append(merged)
        columns = [tuple(column) for column in zip(*rows, strict=True)]
        about = [replace(side, values=values) for side, values in zip(sides, columns[2:], strict=True)]
        return cls(columns[0], columns[1], tuple(about), tuple(blocks))

    def levels(self, merged: Sequence[int]) -> tuple[int, ...]:
        """Return the levels of the decisions for levels of the super-decisions."""
        if not self._blocks:
            return tuple(merged)
        levels = [0] * sum(len(block.members) for block in self._blocks)
        for block, option in zip(self._blocks, merged, strict=True):
            for member, level in zip(block.members, block.options[option].tolist(), strict=True):
                levels[member] = level
        return tuple(levels)

    def solution(self, solution: Solution) -> Solution:
        """Return a solution of the super-decisions as one of the decisions; cost and loss are the same."""
        return replace(solution, levels=self.levels(solution.levels))


def _components(decisions: int, couplings: Sequence[Coupling]) -> list[list[int]]:
    """Return the positions that belong together, in the order of their first ones."""
    leader = np.arange(decisions)
    for coupling in couplings:
        joined = leader[list(coupling.decisions)]
        leader[np.isin(leader, joined)] = joined.min()
    return [np.flatnonzero(leader == first).tolist() for first in np.unique(leader)]


def _combine(members: list[int], counts: Ints) -> _Block:
    sizes = [int(counts[member]) for member in members]
    if len(members) > 1 and np.prod(sizes, dtype=np.float64) > MOST_COMBINATIONS:
        raise InputError(
            f"the coupled decisions {members} have {' × '.join(map(str, sizes))} combinations; "
            f"at most {MOST_COMBINATIONS} can be solved exactly: offer fewer options, or couple fewer."
        )
    return _Block(members, np.indices(sizes).reshape(len(sizes), -1).T)


def _summed(block: _Block, values: Ragged) -> NDArray[Any]:
    """Add the members' values up in every combination."""
    pairs = zip(block.members, block.options.T, strict=True)
    total: NDArray[Any] = np.sum([np.asarray(values[member])[level] for member, level in pairs], axis=0)
    return total


def _excess(block: _Block, couplings: Sequence[Coupling]) -> Floats:
    """Add the excess of all couplings inside a block up in every combination."""
    total = np.zeros(len(block.options))
    for coupling in couplings:
        if coupling.decisions[0] in block.members:
            columns = [block.members.index(decision) for decision in coupling.decisions]
            total += coupling.excess[tuple(block.options[:, columns].T)]
    return total


def _needed(costs: Ints, losses: Floats, sides: list[Floats], best: int) -> Ints:
    """Return the combinations that the ``best`` best plans may need, in the order of their bytes."""
    order = np.lexsort((losses, costs))
    if not sides:
        kept: Ints = order[undominated(costs[order], losses[order], best)]
        return kept
    values = np.column_stack([costs, losses, *sides])
    # In this order whatever beats a combination precedes it, and enough of what precedes it is kept.
    order = np.lexsort(values.T[::-1])
    values, keeps = values[order], np.zeros(len(order), dtype=np.bool_)
    for at, point in enumerate(values):
        keeps[at] = _count_below(values[:at][keeps[:at]], point) < best
    return np.asarray(order[keeps])


def _count_below(values: Floats, point: Floats) -> int:
    """Count the rows that are nowhere above a point."""
    return int((values <= point).all(axis=1).sum())
