"""A space: the decisions of one model for one target, and the arithmetic of its plans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.spaces.decisions import Decision, build_decisions
from tightfit.spaces.errors import InputError
from tightfit.spaces.geometry import DTYPE_BYTES, Geometry
from tightfit.spaces.ggml import GgmlOption
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
        decisions: in depth order.
        fixed_bytes: bytes that no decision changes: norms, biases and learned positions at the
            base dtype, or in that of the target.
    """

    geometry: Geometry
    target: Target
    decisions: tuple[Decision, ...]
    fixed_bytes: int

    @property
    def weights(self) -> int:
        """Number of original weights that the decisions govern, tied ones once."""
        return sum(decision.weights for decision in self.decisions)

    @property
    def floor(self) -> int:
        """Fewest weight bytes of any plan."""
        return self.fixed_bytes + sum(decision.costs[0] for decision in self.decisions)

    @property
    def ceiling(self) -> int:
        """Most weight bytes of any plan."""
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

    def weight_bytes(self, plan: Plan) -> int:
        """Exact weight bytes of a plan, everything unquantized included."""
        return self.bytes_of(self.levels(plan))

    def bytes_of(self, levels: Sequence[int]) -> int:
        """Exact weight bytes of the plan with these levels."""
        pairs = zip(self.decisions, levels, strict=True)
        return self.fixed_bytes + sum(decision.costs[level] for decision, level in pairs)

    def uniform_levels(self, option: Option) -> tuple[int, ...]:
        """Return the levels of the plan that uses one option wherever it is offered.

        Where a type of llama.cpp does not divide a width, what llama.cpp itself falls back to is used, and
        where that is not offered, the option least unlike it.
        """
        levels = []
        for decision in self.decisions:
            wanted = option
            if isinstance(option, GgmlOption):
                wanted = option.fitting(self.geometry.linear(decision.sites[0]).cols)
            levels.append(decision.nearest(wanted))
        return tuple(levels)

    def effective_bits(self, weight_bytes: int) -> float:
        """Stored bits per governed weight, scales, zero points and padding included."""
        return 8 * (weight_bytes - self.fixed_bytes) / self.weights

    def site_options(self, plan: Plan) -> dict[str, Option]:
        """Return the option of every site that owns its bytes (a tied head follows the embedding).

        The plan may be partial: sites of decisions it does not mention are left out.

        Raises:
            InputError: the plan uses an option that is not offered.
        """
        choices, result = dict(plan.choices), {}
        for decision in self.decisions:
            if decision.name not in choices:
                continue
            option = decision.options[decision.index(choices[decision.name])]
            for site in decision.sites:
                if self.geometry.linear(site).tied_to is None:
                    result[site] = option
        return result

    def digest(self) -> str:
        """SHA-256 over geometry, target and the options of every decision."""
        parts = [self.geometry.digest(), self.target.name]
        parts += [
            f"{d.name}={','.join(d.sites)}:{','.join(o.name for o in d.options)}" for d in self.decisions
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def build_space(geometry: Geometry, rules: WeightRules, target: Target) -> Space:
    """Build the space of a model.

    Raises:
        InputError: the rules do not fit the model or the target (see :func:`build_decisions`).
    """
    decisions = build_decisions(geometry, rules, target)
    biases = sum(linear.bias for linear in geometry.linears)
    value_bytes = DTYPE_BYTES[target.fixed_dtype or geometry.dtype]
    return Space(geometry, target, decisions, (geometry.other + biases) * value_bytes)
