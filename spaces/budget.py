"""Budgets: upper bounds that a plan must keep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from tightfit.spaces.errors import InfeasibleError, InputError
from tightfit.spaces.memory import kv_bytes
from tightfit.spaces.space import Space
from tightfit.spaces.units import format_size


@dataclass(frozen=True)
class Budget:
    """Bounds on memory and speed; any of them together, at least one.

    Bounds on speed say nothing about bytes: with them alone, the limit is the space's ceiling. What a
    plan's speed is, only measuring tells.

    Attributes:
        weights: bytes of all weights.
        total: bytes of weights and KV cache together, at ``context`` and ``batch``.
        effective_bits: stored bits per governed weight.
        context: tokens in the cache; needed by ``total``.
        batch: sequences in the cache.
        tokens_per_second: least tokens generated per second, for one sequence.
        latency: most seconds to the first token of an answer.
    """

    weights: int | None = None
    total: int | None = None
    effective_bits: float | None = None
    context: int | None = None
    batch: int = 1
    tokens_per_second: float | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        bounds = (self.weights, self.total, self.effective_bits, self.tokens_per_second, self.latency)
        if all(bound is None for bound in bounds):
            raise InputError(
                "budget: give at least one of weights, total, effective_bits, tokens_per_second or latency."
            )
        for key, value in (
            ("weights", self.weights),
            ("total", self.total),
            ("effective_bits", self.effective_bits),
            ("context", self.context),
            ("batch", self.batch),
            ("tokens_per_second", self.tokens_per_second),
            ("latency", self.latency),
        ):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"budget.{key} must be greater than 0, but is {value}.")
        if self.total is not None and self.context is None:
            raise InputError("budget.total: also give budget.context, since the KV cache grows with it.")

    @property
    def bounds_speed(self) -> bool:
        """Whether there is a bound that only measuring can tell."""
        return self.tokens_per_second is not None or self.latency is not None

    def limit(self, space: Space) -> int:
        """Return the bound on weight bytes that all bounds together leave for this space.

        Without a bound on bytes it is the ceiling of the space.
        """
        return min(self._bounds(space))[0]

    def _bounds(self, space: Space) -> list[tuple[int, str]]:
        """Return each bound in weight bytes, with the words that explain it."""
        bounds = []
        if self.weights is not None:
            bounds.append((self.weights, "budget.weights allows"))
        if self.total is not None and self.context is not None:
            kv = kv_bytes(space.geometry, self.context, self.batch)
            bounds.append((self.total - kv, f"budget.total, less {format_size(kv)} of KV cache, leaves"))
        if self.effective_bits is not None:
            # Exact and rounded down: a fraction of a byte more would already exceed the bound.
            governed = int(Fraction(self.effective_bits) * space.weights / 8)
            bounds.append((space.fixed_bytes + governed, "budget.effective_bits allows"))
        return bounds or [(space.ceiling, "the space allows")]

    def check(self, space: Space) -> int:
        """Return :meth:`limit` if some plan keeps it.

        Raises:
            InfeasibleError: even the smallest plan is larger; names floor, ceiling and the
                decisions without a choice that raise the floor most.
        """
        limit, words = min(self._bounds(space))
        if limit >= space.floor:
            return limit
        forced = sorted((d for d in space.decisions if len(d.options) == 1), key=lambda d: -d.costs[0])
        named = ", ".join(f"{d.name} at {d.options[0].name} ({format_size(d.costs[0])})" for d in forced[:3])
        pins = f"; without a choice: {named}" if named else ""
        raise InfeasibleError(
            f"{words} {format_size(limit)} of weights ({limit} B), which is below the floor of this space, "
            f"{format_size(space.floor)} ({space.floor} B); its ceiling is {format_size(space.ceiling)} "
            f"({space.ceiling} B){pins}; the least-violating plan takes the smallest option everywhere and "
            f"is {format_size(space.floor - limit)} over the budget."
        )
