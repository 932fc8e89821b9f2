"""Pairs: what few bits in a block's keys and values lose together with a small cache of them.

A cache stores what the key and value projections compute, so their errors meet before attention squares
them, and losses of the two need not add. For errors that add up before they are squared the excess over the
sum is 2ρ·√(a·b), with a and b the losses alone and ρ the correlation of the errors; ρ is measured, block by
block, where both are aggressive. Elsewhere losses are taken to add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightfit.proxies.coupling import Coupling, measured_excess
from tightfit.search.archive import SENSING
from tightfit.search.solvers import MOST_COMBINATIONS
from tightfit.search.stages.prepare import Bench
from tightfit.spaces import Decision, KvOption, Plan, Space
from tightfit.workers.measurement import Failure

Table = Sequence[NDArray[np.float64]]

_PROJECTIONS = ("k_proj", "v_proj", "qkv_proj", "c_attn")
_SHARE = 0.5  # of a decision's options that count as aggressive: those with the largest losses


@dataclass(frozen=True)
class _Block:
    """Positions of the decisions of one block that meet in its cache."""

    projections: tuple[int, ...]
    cache: int


def measure_pairs(bench: Bench, losses: Table, count: int) -> tuple[Coupling, ...]:
    """Measure the most aggressive joint choice of some blocks, spread over depth; return their couplings.

    Args:
        bench: of the run.
        losses: single-site losses by decision and option, in nats.
        count: most blocks; the others take the mean correlation. None are coupled with 0.
    """
    blocks = _blocks(bench.space)
    if not blocks or not count:
        bench.store.forget((), ("pairs",))  # of earlier settings
        return ()
    large = [block for block in blocks if _combinations(bench.space, block) > MOST_COMBINATIONS]
    if large:
        names = [bench.space.decisions[i].name for i in (*large[0].projections, large[0].cache)]
        bench.store.forget((), ("pairs",))
        bench.progress.note(
            f"pairs: left out, since {', '.join(names)} have more than {MOST_COMBINATIONS} joint choices; "
            "offer fewer options to have them"
        )
        return ()
    at = np.unique(np.linspace(0, len(blocks) - 1, min(count, len(blocks))).round().astype(int))
    chosen = [blocks[i] for i in at]
    found = dict(zip(chosen, _correlations(bench, chosen, losses), strict=True))
    known = [rho for rho in found.values() if rho is not None]
    bench.store.add_fit(
        "pairs",
        {
            "blocks": [bench.space.decisions[block.cache].name for block in chosen],
            "correlations": list(found.values()),
        },
    )
    if not known:
        return ()
    mean = float(np.mean(known))
    return tuple(
        _coupling(bench.space, block, losses, mean if (rho := found.get(block)) is None else rho)
        for block in blocks
    )


def _blocks(space: Space) -> list[_Block]:
    """Blocks whose cache and projections are decided apart, layer by layer."""
    at = {decision.name: i for i, decision in enumerate(space.decisions)}
    blocks = []
    for layer in range(space.geometry.layers):
        cache = at.get(f"layers.{layer}.kv")
        names = [f"layers.{layer}.attn.{name}" for name in _PROJECTIONS]
        projections = tuple(at[name] for name in names if name in at)
        decided = [i for i in (*projections, cache) if i is not None and len(space.decisions[i].options) > 1]
        if cache is not None and cache in decided and len(decided) > 1:
            blocks.append(_Block(tuple(i for i in decided if i != cache), cache))
    return blocks


def _correlations(bench: Bench, blocks: Sequence[_Block], losses: Table) -> list[float | None]:
    """Measure ρ of every block: its projections alone, its cache alone, and both together."""
    decisions = bench.space.decisions
    worst = {
        i: int(np.argmax(np.where(_stored(decisions[i]), losses[i], -np.inf)))
        for b in blocks
        for i in (*b.projections, b.cache)
    }
    named = {i: (decisions[i].name, decisions[i].options[level].name) for i, level in worst.items()}
    plans: list[Plan] = []
    for block in blocks:
        plans.append(Plan((named[block.cache],)))
    for block in blocks:
        together = tuple(named[i] for i in block.projections)
        plans += [Plan(together), Plan((*together, named[block.cache]))]
    tokens = bench.settings.sense.marginal_tokens
    with bench.progress.stage("sense", "measuring pairs") as tick:
        outcomes = bench.archive.measure_all([(plan, "pair") for plan in plans], SENSING, tokens, tick)
    measured = [None if isinstance(outcome, Failure) else outcome.kl for outcome in outcomes]
    caches, rest = measured[: len(blocks)], measured[len(blocks) :]
    return [_rho(a, b, joint) for a, b, joint in zip(caches, rest[::2], rest[1::2], strict=True)]


def _rho(cache: float | None, weights: float | None, joint: float | None) -> float | None:
    """Correlation of two errors by their losses alone and together; None where one is unknown or nothing."""
    if cache is None or weights is None or joint is None or min(cache, weights) <= 0:
        return None
    return float(np.clip(measured_excess(joint, [cache, weights]) / (2 * np.sqrt(cache * weights)), -1, 1))


def _combinations(space: Space, block: _Block) -> int:
    return math.prod(len(space.decisions[i].options) for i in (*block.projections, block.cache))


def _stored(decision: Decision) -> NDArray[np.bool_]:
    """Which options store numbers of the layer itself with an error, rather than forget or borrow them."""
    own = [not isinstance(o, KvOption) or (o.quantized and not o.cutoff) for o in decision.options]
    return np.array(own) if any(own) else np.ones(len(own), dtype=bool)


def _coupling(space: Space, block: _Block, losses: Table, rho: float) -> Coupling:
    """Excess of all joint choices of a block where projections and cache are both aggressive."""
    weights = np.zeros(())
    aggressive = np.zeros((), dtype=bool)
    for i in block.projections:
        weights = weights[..., None] + losses[i]
        aggressive = aggressive[..., None] | _aggressive(losses[i])
    cached = _aggressive(losses[block.cache]) & _stored(space.decisions[block.cache])
    joint = aggressive[..., None] & cached
    product = np.maximum(weights[..., None], 0.0) * np.maximum(losses[block.cache], 0.0)
    excess = np.where(joint, 2 * rho * np.sqrt(product), 0.0)
    return Coupling((*block.projections, block.cache), excess)


def _aggressive(losses: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The options that lose most, as many as a share of them."""
    order = np.argsort(-losses, kind="stable")[: max(1, int(_SHARE * len(losses)))]
    return np.isin(np.arange(len(losses)), order)
