"""Exact solvers of the multiple-choice knapsack: one option per decision, least loss, bytes within a limit.

``costs`` and ``losses`` are lists with one array per decision, indexed by option: bytes as integers, and
additive losses of any sign. Decisions may have a single option (pins), options may be dominated or tied.

- :func:`solve`: the best plan of one limit, with a proven lower bound.
- :func:`solve_k_best`: the best few plans of one limit.
- :func:`solve_front`: plans for every limit at once, from a coarse table.
- :func:`greedy`: marginal gain per byte, the classic to compare with.
- :func:`least_violating`: what comes nearest to bounds that no plan keeps.

:func:`solve` and :func:`solve_k_best` also take *sides*: more bounds that add up over decisions, such as
the seconds of a token (:class:`Side`). All but :func:`greedy` take *couplings*: what decisions of one block
lose together beyond the sum of their losses; :mod:`_coupled <tightfit.search.solvers._coupled>` merges them.

Where the loss is a sum over pools that each have a link, :func:`solve_pools` and :func:`pool_front` solve
for one limit and for all.

Behind them: :mod:`_table <tightfit.search.solvers._table>` checks and pads the input,
:mod:`_relaxation <tightfit.search.solvers._relaxation>` gives bounds and prices, and
:mod:`_core <tightfit.search.solvers._core>` enumerates the few decisions that the prices leave open.
"""

from tightfit.search.sides import Side, keeps_all
from tightfit.search.solvers._coupled import MOST_COMBINATIONS
from tightfit.search.solvers._exact import solve
from tightfit.search.solvers._front import Front, solve_front
from tightfit.search.solvers._greedy import greedy
from tightfit.search.solvers._k_best import solve_k_best
from tightfit.search.solvers._pools import PoolFront, pool_front, solve_pools
from tightfit.search.solvers._relaxation import Curve, Relaxation
from tightfit.search.solvers._sided import least_violating
from tightfit.search.solvers._solution import Solution
from tightfit.search.solvers._table import Table

__all__ = [
    "MOST_COMBINATIONS", "Curve", "Front", "PoolFront", "Relaxation", "Side", "Solution", "Table",
    "greedy", "keeps_all", "least_violating", "pool_front", "solve", "solve_front", "solve_k_best",
    "solve_pools",
]  # fmt: skip
