"""Budgets: upper bounds that a plan must keep."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.spaces.errors import InfeasibleError, InputError
from tightfit.spaces.memory import kv_bytes
from tightfit.spaces.space import Space
from tightfit.spaces.units import format_size


@dataclass(frozen=True)
class Budget:
    """Upper bounds on memory; any of them together, at least one.

    Attributes:
        weights: bytes of all weights.
        total: bytes of weights and KV cache together, at ``context`` and ``batch``.
        effective_bits: stored bits per governed weight.
        context: tokens in the cache; needed by ``total``.
        batch: sequences in the cache.
    """

    weights: int | None = None
    total: int | None = None
    effective_bits: float | None = None
    context: int | None = None
    batch: int = 1

    def __post_init__(self) -> None:
        if self.weights is None and self.total is None and self.effective_bits is None:
            raise InputError("budget: give at least one of weights, total or effective_bits.")
        if self.total is not None and self.context is None:
            raise InputError("budget.total: also give budget.context, since the KV cache grows with it.")

    def limit(self, space: Space) -> int:
        """Return the bound on weight bytes that all bounds together leave for this space."""
        bounds = []
        if self.weights is not None:
            bounds.append(self.weights)
        if self.total is not None and self.context is not None:
            bounds.append(self.total - kv_bytes(space.geometry, self.context, self.batch))
        if self.effective_bits is not None:
            # Rounded down: a fraction of a byte more would already exceed the bound.
            bounds.append(space.fixed_bytes + int(self.effective_bits * space.weights / 8))
        return min(bounds)

    def check(self, space: Space) -> int:
        """Return :meth:`limit` if some plan keeps it.

        Raises:
            InfeasibleError: even the smallest plan is larger; names floor, ceiling and the
                decisions without a choice that raise the floor most.
        """
        limit = self.limit(space)
        if limit >= space.floor:
            return limit
        forced = sorted((d for d in space.decisions if len(d.options) == 1), key=lambda d: -d.costs[0])
        named = ", ".join(f"{d.name} at {d.options[0].name} ({format_size(d.costs[0])})" for d in forced[:3])
        pins = f"; without a choice: {named}" if named else ""
        raise InfeasibleError(
            f"budget: {format_size(max(limit, 0))} of weights ({limit} B) is below the floor of this space, "
            f"{format_size(space.floor)} ({space.floor} B); its ceiling is {format_size(space.ceiling)}{pins}."
        )
