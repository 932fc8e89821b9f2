"""The knapsack with side constraints as a 0/1 program for HiGHS, relaxed or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, linprog, milp
from scipy.sparse import csr_array

from tightfit.search.sides import Side, keeps_all
from tightfit.search.solvers._quiet import quiet
from tightfit.search.solvers._table import Floats, Ints, Table

_NODES = 200  # a time limit would let a busy machine change the plan
_CUTS = 32  # plans within HiGHS' own tolerance of a limit that are looked past
_ERROR = 1e-6  # HiGHS' feasibility and optimality tolerances, in units of the largest loss
_ROOM = 1e3  # limits in their rows: large ones make HiGHS' tolerance a billionth of them
_TINY = float(np.finfo(np.float64).tiny)
_INFEASIBLE = 2  # status of SciPy's answers


class Program:
    """One variable per option that is part of some plan within the byte limit.

    Args:
        table: costs and losses.
        limit: most bytes of the plan, at least the floor.
        sides: further bounds on the plan.
    """

    def __init__(self, table: Table, limit: int, sides: Sequence[Side]) -> None:
        self.table, self.limit, self.sides = table, limit, tuple(sides)
        above = table.costs - table.costs.min(axis=1, keepdims=True)
        self.rows, self.options = np.nonzero(table.real & (above <= limit - table.floor))
        pairs = list(zip(self.rows.tolist(), self.options.tolist(), strict=True))
        within = [above[self.rows, self.options].astype(np.float64)]
        within += [np.array([side.values[row][option] for row, option in pairs]) for side in sides]
        most = np.array([float(limit - table.floor), *(side.limit - side.fixed for side in sides)])
        largest = np.maximum(np.abs(most), [np.abs(row).max(initial=0.0) for row in within])
        self.scales = _ROOM / np.where(largest > 0, largest, 1.0)
        self.within, self.most = np.stack(within) * self.scales[:, None], most * self.scales
        self.choose = self._indicators(np.arange(len(pairs)), self.rows, len(table.counts))
        losses = table.losses[self.rows, self.options]
        self.scale = max(float(np.abs(losses).max()), _TINY)
        self.losses = losses / self.scale

    def prices(self) -> Floats | None:
        """Return the price of every side in the relaxation, loss per unit; None where nothing keeps them."""
        decisions = np.ones(len(self.table.counts))
        answer = linprog(
            self.losses, self.within, self.most, self.choose, decisions, bounds=(0, 1), method="highs"
        )
        if answer.x is None:
            return None
        prices: Floats = -answer.ineqlin.marginals[1:] * self.scales[1:] * self.scale
        return np.maximum(prices, 0.0)

    def best(self, tolerance: float) -> tuple[Ints | None, float]:
        """Return the best plan found and a bound on the loss of every plan, infinite where there is none.

        Args:
            tolerance: relative gap at which to stop.
        """
        cuts: list[LinearConstraint] = []
        options = {"mip_rel_gap": tolerance / 2, "node_limit": _NODES}
        while True:
            answer = self._solve(
                self.losses, [LinearConstraint(self.within, -np.inf, self.most), *cuts], options
            )
            if answer.status == _INFEASIBLE:
                return None, np.inf
            bound = (
                -np.inf if answer.mip_dual_bound is None else (answer.mip_dual_bound - _ERROR) * self.scale
            )
            if answer.x is None:
                return None, bound
            levels = self._levels(answer.x)
            if self.table.cost(levels) <= self.limit and keeps_all(self.sides, levels.tolist()):
                return levels, bound
            if len(cuts) == _CUTS:
                return None, bound
            cuts.append(self._other_than(levels))

    def nearest(self) -> Ints | None:
        """Return the plan whose largest relative excess over a side is least; None where none was found."""
        relative = self.scales[1:] * np.maximum([abs(side.limit) for side in self.sides], _TINY)
        excess = np.concatenate([[0.0], relative])[:, None]
        within = np.hstack([self.within, -excess])
        goal = np.concatenate([np.zeros(len(self.losses)), [1.0]])
        limits = LinearConstraint(within, -np.inf, self.most)
        answer = self._solve(goal, [limits], {"node_limit": _NODES}, free=1)
        if answer.x is None:
            return None
        levels = self._levels(answer.x[:-1])
        return levels if self.table.cost(levels) <= self.limit else None

    def _solve(
        self, goal: Floats, limits: list[LinearConstraint], options: dict[str, Any], free: int = 0
    ) -> OptimizeResult:
        """Minimize over whole options and ``free`` further variables of any size."""
        count = len(self.losses)
        choose = csr_array(
            (self.choose.data, self.choose.indices, self.choose.indptr), (self.choose.shape[0], count + free)
        )
        low, high = np.zeros(count + free), np.ones(count + free)
        low[count:], high[count:] = -np.inf, np.inf
        with quiet():
            return milp(
                goal,
                constraints=[LinearConstraint(choose, 1, 1), *limits],
                integrality=np.arange(count + free) < count,
                bounds=Bounds(low, high),
                options=options,
            )

    def _levels(self, x: Floats) -> Ints:
        chosen = np.full(self.table.costs.shape, -1.0)
        chosen[self.rows, self.options] = x
        return np.asarray(chosen.argmax(axis=1))

    def _other_than(self, levels: Ints) -> LinearConstraint:
        """At least one decision differs from a plan."""
        own = (self.options == levels[self.rows]).astype(np.float64)
        return LinearConstraint(own, -np.inf, own.sum() - 1)

    @staticmethod
    def _indicators(columns: Ints, rows: Ints, height: int) -> csr_array:
        return csr_array((np.ones(len(columns)), (rows, columns)), shape=(height, len(columns)))
