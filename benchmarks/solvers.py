"""The knapsack solvers beside a textbook table and beside HiGHS: seconds, gaps, ratios.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/solvers.py
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/solvers.py --decisions 60 --buckets 4096 --limits 2

Three spaces of 560 decisions with twelve options (2, 3, 4, 5, 6, 8 bits with groups of 64 and 128):
``convex`` has random matrices of 0.3–30 MB and losses a·4^−bits with lognormal a, ``noisy`` jitters every
loss by another 30 %, ``70b`` has the matrices of an 80-layer Llama. The textbook table goes over all
buckets for every option and keeps the argmin; HiGHS gets each limit as a 0/1 programme, gap 1e-4.

``coupled`` has 30 blocks whose key projection, value projection (8 options each) and cache (12) interact
where all are aggressive, and 150 decisions of their own: super-decisions are timed beside the same decisions
taken as additive, and pools (matrices, caches) with a link each beside one link.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tightfit.proxies import Amplifying, Coupling, Coverage, PooledModel
from tightfit.search.solvers import (
    Solution,
    Table,
    greedy,
    pool_front,
    solve,
    solve_front,
    solve_k_best,
    solve_pools,
)
from tightfit.search.solvers._milp import solve_milp
from tightfit.spaces import WeightOption

Result = TypeVar("Result")
OPTIONS = [WeightOption(bits, group, "float") for bits in (2, 3, 4, 5, 6, 8) for group in (64, 128)]
BLOCK = [(8192, 8192), (1024, 8192), (1024, 8192), (8192, 8192), (28672, 8192), (28672, 8192), (8192, 28672)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--decisions", type=int, default=560)
    parser.add_argument("--buckets", type=int, default=65536)
    parser.add_argument("--limits", type=int, default=5, help="limits to solve for, spread over the range")
    parser.add_argument("--blocks", type=int, default=30, help="blocks of three coupled decisions")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in ("convex", "noisy", "70b"):
        costs, losses = make_space(name, arguments.decisions, arguments.seed)
        print(f"{name}: {len(costs)} decisions × {len(costs[0])} options")
        compare_fronts(costs, losses, arguments.buckets)
        floor, ceiling = (sum(int(pick(row)) for row in costs) for pick in (np.min, np.max))
        limits = floor + (ceiling - floor) * np.linspace(0.1, 0.8, arguments.limits)
        compare_limits(costs, losses, limits.astype(np.int64).tolist())
    compare_coupled(arguments.blocks, arguments.buckets, arguments.limits, arguments.seed)


def make_space(name: str, decisions: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng([seed, 97])
    costs, losses = [], []
    while len(costs) < decisions:
        rows, cols = (64 * int(n) for n in (rng.integers(4, 200), 2 * rng.integers(1, 200)))
        if name == "70b":
            rows, cols = BLOCK[len(costs) % len(BLOCK)]
        elif not 3e5 <= rows * cols <= 3e7:
            continue
        jitter = 1.0 if name == "convex" else rng.lognormal(0, 0.3, len(OPTIONS))
        growth = [4.0**-option.bits * (1.15 if option.group == 128 else 1.0) for option in OPTIONS]
        costs.append(np.array([option.tensor_bytes(rows, cols) for option in OPTIONS]))
        losses.append(rng.lognormal(-2, 1) * np.array(growth) * jitter)
    return costs, losses


def compare_fronts(costs: list[np.ndarray], losses: list[np.ndarray], buckets: int) -> None:
    front, ours = timed(lambda: solve_front(costs, losses, buckets))
    _, naive = timed(lambda: textbook_table(costs, losses, buckets))
    median, high, most = np.quantile(front.gaps, [0.5, 0.9, 1])
    print(
        f"  all limits   ours {ours:.2f} s, {len(front.costs)} points, gaps: median {median:.1e}, "
        f"p90 {high:.1e}, max {most:.1e}; textbook {naive:.2f} s ({naive / ours:.1f}×)"
    )


def textbook_table(costs: list[np.ndarray], losses: list[np.ndarray], buckets: int) -> np.ndarray:
    """Least loss within each bucket, the whole table for every option."""
    above = [row - row.min() for row in costs]
    unit = -(-sum(int(row.max()) for row in above) // buckets)
    best = np.zeros(buckets)
    choices = np.empty((len(costs), buckets), dtype=np.int64)
    for decision, (row, loss) in enumerate(zip(above, losses, strict=True)):
        candidates = np.full((len(row), buckets), np.inf)
        for option, shift in enumerate((-(-row // unit)).tolist()):
            candidates[option, shift:] = best[: buckets - shift] + loss[option]
        choices[decision] = candidates.argmin(axis=0)
        best = candidates.min(axis=0)
    return choices


def compare_limits(costs: list[np.ndarray], losses: list[np.ndarray], limits: list[int]) -> None:
    table = Table.of(costs, losses)
    for limit in limits:
        best, ours = timed(lambda limit=limit: solve(costs, losses, limit))
        several, many = timed(lambda limit=limit: solve_k_best(costs, losses, limit, 16))
        plain, quick = timed(lambda limit=limit: greedy(costs, losses, limit))
        start = Solution.of(table, np.array(plain), -np.inf)
        other, highs = timed(lambda limit=limit, start=start: solve_milp(table, limit, start, 1e-4, 1000))
        print(
            f"  {limit / 1e9:7.2f} GB   ours {1e3 * ours:4.0f} ms, gap {best.gap:.0e}; 16 best "
            f"{1e3 * many:4.0f} ms, gap {max(s.gap for s in several):.0e}; greedy {1e3 * quick:3.0f} ms, "
            f"loss ×{start.loss / best.loss:.5f}; HiGHS {1e3 * highs:5.0f} ms ({highs / ours:.0f}×), "
            f"gap {other.gap:.0e}, loss ×{other.loss / best.loss:.5f}"
        )


def compare_coupled(blocks: int, buckets: int, count: int, seed: int) -> None:
    costs, losses, couplings = make_blocks(blocks, seed)
    print(f"coupled: {blocks} blocks × (8 × 8 × 12) and {len(costs) - 3 * blocks} decisions × 12")
    _, plain = timed(lambda: solve_front(costs, losses, buckets))
    front, ours = timed(lambda: solve_front(costs, losses, buckets, couplings))
    pools = (
        tuple(i for i in range(len(costs)) if i % 3 != 2 or i >= 3 * blocks),
        tuple(range(2, 3 * blocks, 3)),
    )
    named = tuple(zip(("matrices", "caches"), pools, strict=True))
    model = PooledModel(tuple(losses), named, (Amplifying(1.2), Coverage(0.5)))
    pooled, apart = timed(lambda: pool_front(costs, model, buckets))
    median, other = (np.median(found.gaps) for found in (front, pooled))
    print(
        f"  all limits   {ours:.2f} s ({ours / plain:.1f}× additive), median gap {median:.0e}; "
        f"pools {apart:.2f} s ({apart / plain:.1f}×), median gap {other:.0e}"
    )
    floor, ceiling = (sum(int(pick(row)) for row in costs) for pick in (np.min, np.max))
    for limit in (floor + (ceiling - floor) * np.linspace(0.1, 0.8, count)).astype(np.int64).tolist():
        alone, plain = timed(lambda limit=limit: solve(costs, losses, limit))
        best, ours = timed(lambda limit=limit: solve(costs, losses, limit, couplings=couplings))
        _, few = timed(lambda limit=limit: solve_k_best(costs, losses, limit, 16))
        several, many = timed(lambda limit=limit: solve_k_best(costs, losses, limit, 16, couplings=couplings))
        split, shared = timed(lambda limit=limit: solve_pools(costs, model, limit, front=pooled))
        true = alone.loss + sum(coupling.value(alone.levels) for coupling in couplings)
        print(
            f"  {limit / 1e9:7.2f} GB   {1e3 * ours:4.0f} ms ({ours / plain:.1f}× additive), "
            f"gap {best.gap:.0e}; 16 best {1e3 * many:4.0f} ms ({many / few:.1f}×), "
            f"gap {max(s.gap for s in several):.0e}; "
            f"additive plan loses ×{true / best.loss:.5f}; pools {1e3 * shared:4.0f} ms, gap {split.gap:.0e}"
        )


def make_blocks(blocks: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray], list[Coupling]]:
    """Key and value projections of 4 M weights and caches of 0.1–30 MB, and five larger matrices a block."""
    rng = np.random.default_rng([seed, 89])
    costs, losses, couplings = [], [], []

    def add(weights: int, bits: np.ndarray, scale: float) -> None:
        costs.append((weights * bits / 8).astype(np.int64) + weights // 32)
        losses.append(scale * rng.lognormal(-6, 1) * 4.0 ** (3 - bits) * rng.lognormal(0, 0.2, len(bits)))

    for _ in range(blocks):
        add(1 << 22, np.linspace(2, 8, 8), 1.0)
        add(1 << 22, np.linspace(2, 8, 8), 1.0)
        costs.append(np.sort(rng.integers(10**5, 3 * 10**7, 12))[::-1].copy())
        losses.append(0.05 * rng.lognormal(-6, 1) * 2.0 ** np.linspace(0, 8, 12) * rng.lognormal(0, 0.2, 12))
        excess = np.zeros((8, 8, 12))
        keys, values, caches = np.ix_(*losses[-3:])
        excess[:3, :3, 6:] = ((keys + values + caches) * rng.uniform(-0.3, 1.0, (8, 8, 12)))[:3, :3, 6:]
        couplings.append(Coupling((len(costs) - 3, len(costs) - 2, len(costs) - 1), excess))
    for _ in range(5 * blocks):
        add(4096 * int(rng.integers(1024, 14336)), np.linspace(2, 8, 12), 1.0)
    return costs, losses, couplings


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    main()
