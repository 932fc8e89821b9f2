"""Budgets: upper bounds that a plan must keep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from tightfit.spaces.errors import InfeasibleError, InputError
from tightfit.spaces.memory import PLAIN, Load, kv_bytes, longest_context
from tightfit.spaces.space import Space
from tightfit.spaces.units import format_size


@dataclass(frozen=True)
class Part:
    """A bound on one part of a plan's bytes.

    Attributes:
        name: key of the settings.
        limit: most bytes of the decisions about this part.
        kv: whether the part is the KV caches rather than the matrices.
    """

    name: str
    limit: int
    kv: bool


@dataclass(frozen=True)
class Budget:
    """Bounds on memory and speed; any of them together, at least one.

    Bounds on speed say nothing about bytes: with them alone, the limit is the space's ceiling. What a
    plan's speed is, only measuring tells.

    Attributes:
        weights: bytes of all weights.
        total: bytes of weights and KV cache together, at ``context`` and ``batch``.
        kv: bytes of the KV cache.
        effective_bits: stored bits per governed weight.
        context: tokens in the cache; needed by ``total`` and ``kv``.
        batch: sequences in the cache.
        shared_prefix: first tokens that all sequences have in common.
        tokens_per_second: least tokens generated per second, for one sequence.
        latency: most seconds to the first token of an answer.
    """

    weights: int | None = None
    total: int | None = None
    kv: int | None = None
    effective_bits: float | None = None
    context: int | None = None
    batch: int = 1
    shared_prefix: int = 0
    tokens_per_second: float | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        bounds = (self.weights, self.total, self.kv, self.effective_bits)
        if all(bound is None for bound in (*bounds, self.tokens_per_second, self.latency)):
            raise InputError(
                "budget: give at least one of weights, total, kv, effective_bits, tokens_per_second or "
                "latency."
            )
        for key, value in (
            ("weights", self.weights),
            ("total", self.total),
            ("kv", self.kv),
            ("effective_bits", self.effective_bits),
            ("context", self.context),
            ("batch", self.batch),
            ("tokens_per_second", self.tokens_per_second),
            ("latency", self.latency),
        ):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"budget.{key} must be greater than 0, but is {value}.")
        for key, value in (("total", self.total), ("kv", self.kv)):
            if value is not None and self.context is None:
                raise InputError(f"budget.{key}: also give budget.context, since the KV cache grows with it.")
        if self.shared_prefix and self.context is None:
            raise InputError("budget.shared_prefix: also give budget.context, of which it is a part.")
        if self.context is not None and not 0 <= self.shared_prefix <= self.context:
            raise InputError(
                f"budget.shared_prefix ({self.shared_prefix}) must be from 0 to budget.context "
                f"({self.context})."
            )

    @property
    def bounds_speed(self) -> bool:
        """Whether there is a bound that only measuring can tell."""
        return self.tokens_per_second is not None or self.latency is not None

    @property
    def load(self) -> Load | None:
        """What the KV cache has to hold, if a context is given."""
        return None if self.context is None else Load(self.context, self.batch, self.shared_prefix)

    def limit(self, space: Space) -> int:
        """Return the bound on the bytes of a plan that all bounds together leave for this space.

        Where the space decides about KV caches, those count among a plan's bytes, and bounds on weights or
        caches alone are also :meth:`parts`. Without a bound on bytes it is the ceiling of the space.
        """
        return min(self._bounds(space))[0]

    def parts(self, space: Space) -> tuple[Part, ...]:
        """Return the bounds on weights alone and on caches alone, where both are in a plan."""
        if not space.has_kv:
            return ()
        found = []
        if self.weights is not None:
            found.append(Part("budget.weights", self.weights - space.fixed_bytes, kv=False))
        if self.effective_bits is not None:
            found.append(Part("budget.effective_bits", self._governed(space), kv=False))
        if self.kv is not None:
            found.append(Part("budget.kv", self.kv, kv=True))
        return tuple(found)

    def _governed(self, space: Space) -> int:
        # Exact and rounded down: a fraction of a byte more would already exceed the bound.
        return int(Fraction(self.effective_bits or 0.0) * space.weights / 8)

    def _bounds(self, space: Space) -> list[tuple[int, str]]:
        """Return each bound in bytes of a plan, with the words that explain it."""
        if space.has_kv:
            parts, most = self.parts(space), space.fixed_bytes
            for decisions in (space.matrix_decisions, space.kv_decisions):
                largest = sum(decision.costs[-1] for decision in decisions)
                limits = [part.limit for part in parts if part.kv == decisions[0].is_kv]
                most += min([largest, *limits])
            total = [] if self.total is None else [(self.total, "budget.total allows")]
            return total + [(most, "the budget allows")] * (bool(parts) or not total)
        bounds = []
        if self.weights is not None:
            bounds.append((self.weights, "budget.weights allows"))
        if self.total is not None and self.load is not None:
            kv = kv_bytes(space.geometry, self.load)
            bounds.append((self.total - kv, f"budget.total, less {format_size(kv)} of KV cache, leaves"))
        if self.effective_bits is not None:
            bounds.append((space.fixed_bytes + self._governed(space), "budget.effective_bits allows"))
        return bounds or [(space.ceiling, "the space allows")]

    def check(self, space: Space) -> int:
        """Return :meth:`limit` if some plan keeps it, and every one of :meth:`parts`.

        Raises:
            InfeasibleError: even the smallest plan is larger; names floor, ceiling and the
                decisions without a choice that raise the floor most, and where the KV cache is what does not
                fit, the context at which it would.
        """
        limit, words = min(self._bounds(space))
        if self.kv is not None and self.load is not None and not space.has_kv:
            plain = kv_bytes(space.geometry, self.load)
            if plain > self.kv:
                raise InfeasibleError(
                    f"budget.kv allows {format_size(self.kv)} ({self.kv} B), but the uncompressed KV cache "
                    f"takes {format_size(plain)} ({plain} B); give space.kv so that it may be compressed."
                    f"{self._fitting(space, self.kv)}"
                )
        for part in self.parts(space):
            least = sum(d.costs[0] for d in space.decisions if d.is_kv == part.kv)
            if least > part.limit:
                raise InfeasibleError(
                    f"{part.name} allows {format_size(part.limit)} ({part.limit} B), which is below the "
                    f"least that {'KV caches' if part.kv else 'the matrices'} of this space take, "
                    f"{format_size(least)} ({least} B).{self._fitting(space, part.limit) if part.kv else ''}"
                )
        if limit >= space.floor:
            return limit
        forced = sorted((d for d in space.decisions if len(d.options) == 1), key=lambda d: -d.costs[0])
        named = ", ".join(f"{d.name} at {d.options[0].name} ({format_size(d.costs[0])})" for d in forced[:3])
        pins = f"; without a choice: {named}" if named else ""
        what = "weights and KV cache" if space.has_kv else "weights"
        hint = ""
        if self.total is not None:
            weights = space.fixed_bytes + sum(d.costs[0] for d in space.matrix_decisions)
            hint = self._fitting(space, self.total - weights)
        raise InfeasibleError(
            f"{words} {format_size(limit)} of {what} ({limit} B), which is below the floor of this space, "
            f"{format_size(space.floor)} ({space.floor} B); its ceiling is {format_size(space.ceiling)} "
            f"({space.ceiling} B){pins}; the least-violating plan takes the smallest option everywhere and "
            f"is {format_size(space.floor - limit)} over the budget.{hint}"
        )

    def _fitting(self, space: Space, left: int) -> str:
        """Say at which context the smallest caches would fit into what is left for them."""
        options = [PLAIN] * space.geometry.layers
        for decision in space.kv_decisions:
            for layer in decision.kv_layers:
                options[layer] = decision.kv_options[0]
        fits = longest_context(space.geometry, left, self.batch, self.shared_prefix, options)
        smallest = "smallest" if space.has_kv else "uncompressed"
        if fits < 1:
            return f" With batch {self.batch}, the {smallest} KV cache does not fit at any context."
        return f" With batch {self.batch}, the {smallest} KV cache fits up to a context of {fits} tokens."
