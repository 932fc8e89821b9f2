"""A space: the decisions of one model for one target, and the arithmetic of its plans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tightfit.spaces.decisions import Choice, Decision, build_decisions
from tightfit.spaces.errors import InputError
from tightfit.spaces.geometry import DTYPE_BYTES, Geometry
from tightfit.spaces.ggml import GgmlOption
from tightfit.spaces.kv import KvOption
from tightfit.spaces.kv_rules import KvRules, build_kv_decisions
from tightfit.spaces.memory import PLAIN, Load
from tightfit.spaces.options import Option
from tightfit.spaces.plan import Plan
from tightfit.spaces.rules import WeightRules
from tightfit.spaces.targets import Target


@dataclass(frozen=True)
class Space:
    """The decisions of one model for one target.

    A plan inside a space is also written as *levels*: the position of the chosen option in every
    decision's ``options``. Solvers and agents work on levels, files and the store on plans.

    Attributes:
        geometry: the model's shape.
        target: the tool that the plans are for.
        decisions: those about matrices in depth order, then those about KV caches.
        fixed_bytes: bytes that no decision changes: norms, biases and learned positions at the
            base dtype, or in that of the target.
        load: context and batch that KV caches are counted at; None where they are not decided about.
            With a load, the bytes of a plan are those of its weights and its caches together.
    """

    geometry: Geometry
    target: Target
    decisions: tuple[Decision, ...]
    fixed_bytes: int
    load: Load | None = None

    @property
    def matrix_decisions(self) -> tuple[Decision, ...]:
        """The decisions about matrices; they come first."""
        return tuple(decision for decision in self.decisions if not decision.is_kv)

    @property
    def kv_decisions(self) -> tuple[Decision, ...]:
        """The decisions about KV caches."""
        return tuple(decision for decision in self.decisions if decision.is_kv)

    @property
    def weights(self) -> int:
        """Number of original weights that the decisions govern, tied ones once."""
        return sum(decision.weights for decision in self.decisions)

    @property
    def floor(self) -> int:
        """Fewest bytes of any plan."""
        return self.fixed_bytes + sum(decision.costs[0] for decision in self.decisions)

    @property
    def ceiling(self) -> int:
        """Most bytes of any plan."""
        return self.fixed_bytes + sum(decision.costs[-1] for decision in self.decisions)

    @property
    def size(self) -> int:
        """Number of plans."""
        product = 1
        for decision in self.decisions:
            product *= len(decision.options)
        return product

    def plan(self, levels: Sequence[int]) -> Plan:
        """Return the plan with these levels."""
        pairs = zip(self.decisions, levels, strict=True)
        return Plan(tuple((decision.name, decision.options[level].name) for decision, level in pairs))

    def levels(self, plan: Plan) -> tuple[int, ...]:
        """Return the levels of a plan.

        Raises:
            InputError: the plan misses a decision, has one too many, or uses an option not offered.
        """
        choices = dict(plan.choices)
        missing = [decision.name for decision in self.decisions if decision.name not in choices]
        known = {decision.name for decision in self.decisions}
        extra = [name for name in choices if name not in known]
        if missing or extra:
            what = f"has no choice for {missing[0]}" if missing else f"chooses for the unknown {extra[0]}"
            raise InputError(f"the plan {what}; it belongs to another model or target.")
        return tuple(decision.index(choices[decision.name]) for decision in self.decisions)

    @property
    def has_kv(self) -> bool:
        """Whether plans decide about KV caches too."""
        return self.load is not None

    def weight_bytes(self, plan: Plan) -> int:
        """Exact bytes of a plan's weights, everything unquantized included."""
        return self.bytes_of(self.levels(plan)) - self.cache_bytes(plan)

    def cache_bytes(self, plan: Plan) -> int:
        """Exact bytes of a plan's KV caches; 0 where a space does not decide about them."""
        pairs = zip(self.decisions, self.levels(plan), strict=True)
        return sum(decision.costs[level] for decision, level in pairs if decision.is_kv)

    def charge(self, plan: Plan) -> tuple[int, int]:
        """Bytes of a plan that may be partial, and what of them are KV caches.

        Matrices without a choice are charged at the base dtype, caches without one as plain floats.

        Raises:
            InputError: the plan uses an option that is not offered.
        """
        chosen = dict(plan.choices)
        size, cache = self.fixed_bytes, 0
        for decision in self.decisions:
            if decision.name in chosen:
                cost = decision.costs[decision.index(chosen[decision.name])]
            else:
                cost = self._uncompressed(decision)
            size += cost
            cache += cost if decision.is_kv else 0
        return size, cache

    def _uncompressed(self, decision: Decision) -> int:
        if self.load is None or not decision.is_kv:
            return decision.weights * self.geometry.dtype_bytes
        layers = [self.geometry.attention[layer] for layer in decision.kv_layers]
        return sum(self.load.layer_bytes(layer, PLAIN) for layer in layers)

    def bytes_of(self, levels: Sequence[int]) -> int:
        """Exact bytes of the plan with these levels: of its weights, and of its caches with a load."""
        pairs = zip(self.decisions, levels, strict=True)
        return self.fixed_bytes + sum(decision.costs[level] for decision, level in pairs)

    def uniform_levels(self, option: Option, cache: KvOption | None = None) -> tuple[int, ...]:
        """Return the levels of the plan that uses one option for all matrices, and one for all caches.

        Caches stay as large as they may be where no option is given for them.

        Where a type of llama.cpp does not divide a width, what llama.cpp itself falls back to is used, and
        where that is not offered, the option least unlike it.
        """
        levels = []
        for decision in self.decisions:
            if decision.is_kv:
                levels.append(len(decision.options) - 1 if cache is None else decision.nearest(cache))
                continue
            wanted: Choice = option
            if isinstance(option, GgmlOption):
                wanted = option.fitting(self.geometry.linear(decision.sites[0]).cols)
            levels.append(decision.nearest(wanted))
        return tuple(levels)

    def effective_bits(self, weight_bytes: int) -> float:
        """Stored bits per governed weight, scales, zero points and padding included."""
        return 8 * (weight_bytes - self.fixed_bytes) / self.weights

    def site_options(self, plan: Plan) -> dict[str, Option]:
        """Return the option of every matrix that owns its bytes (a tied head follows the embedding).

        The plan may be partial: sites of decisions it does not mention are left out.

        Raises:
            InputError: the plan uses an option that is not offered.
        """
        result: dict[str, Option] = {}
        for decision, option in self._chosen(plan):
            if not isinstance(option, KvOption):
                owned = [site for site in decision.sites if self.geometry.linear(site).tied_to is None]
                result.update(dict.fromkeys(owned, option))
        return result

    def kv_options(self, plan: Plan) -> dict[int, KvOption]:
        """Return the option of every layer's KV cache, by layer; empty where none is decided.

        The plan may be partial, as for :meth:`site_options`.

        Raises:
            InputError: the plan uses an option that is not offered.
        """
        result = {}
        for decision, option in self._chosen(plan):
            if isinstance(option, KvOption):
                result.update(dict.fromkeys(decision.kv_layers, option))
        return result

    def _chosen(self, plan: Plan) -> Iterator[tuple[Decision, Choice]]:
        choices = dict(plan.choices)
        for decision in self.decisions:
            if decision.name in choices:
                yield decision, decision.options[decision.index(choices[decision.name])]

    def digest(self) -> str:
        """SHA-256 over geometry, target and the options of every decision."""
        parts = [self.geometry.digest(), self.target.name]
        parts += [repr(self.load)] if self.load else []
        parts += [
            f"{d.name}={','.join(d.sites)}:{','.join(o.name for o in d.options)}" for d in self.decisions
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def build_space(
    geometry: Geometry,
    rules: WeightRules,
    target: Target,
    kv: KvRules | None = None,
    load: Load | None = None,
) -> Space:
    """Build the space of a model.

    Args:
        geometry: of the model.
        rules: which options matrices have.
        target: what can be stored.
        kv: which options KV caches have; None leaves them out of the space.
        load: context and batch that caches are counted at; needed with ``kv``.

    Raises:
        InputError: the rules do not fit the model or the target (see :func:`build_decisions` and
            :func:`~tightfit.spaces.kv_rules.build_kv_decisions`), or caches come without a load.
    """
    decisions = build_decisions(geometry, rules, target)
    if kv is not None:
        if load is None:
            raise InputError("space.kv: also give budget.context, since the KV cache grows with it.")
        decisions += build_kv_decisions(geometry, kv, target, load)
    biases = sum(linear.bias for linear in geometry.linears)
    value_bytes = DTYPE_BYTES[target.fixed_dtype or geometry.dtype]
    fixed = (geometry.other + biases) * value_bytes
    return Space(geometry, target, decisions, fixed, load if kv is not None else None)
