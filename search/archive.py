"""The archive: every measurement goes through here, and none is ever made twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightfit.search.store import Store
from tightfit.spaces import Plan, Space
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.measurement import Measurement
from tightfit.workers.text import Window

SENSING = "sensing"
"""Split name of measurements that serve proxies; their windows are the first of ``selection``."""


@dataclass
class Archive:
    """Measures plans, or finds that they were measured before under the same content key.

    Attributes:
        splits: windows by split.
        made: measurements made by this process, and ``reused``: those found in the store.
        tokens: tokens run forward by this process.
    """

    store: Store
    space: Space
    evaluator: Evaluator
    splits: Mapping[str, Sequence[Window]]
    made: int = 0
    reused: int = 0
    tokens: int = 0

    def measure(self, plan: Plan, split: str, source: str, tokens: int | None = None) -> Measurement:
        """Return the measurement of a plan on a split.

        Args:
            plan: may be partial: sites without a choice stay uncompressed.
            split: name of the split.
            source: who proposed the plan, kept where it is new.
            tokens: use only the first windows that together score this number of tokens.
        """
        windows = self.windows(split, tokens)
        protocol = self.evaluator.protocol(split, windows)
        self.store.add_plan(plan, self._bytes(plan), source)
        known = self.store.find_measurement(plan.digest, split, protocol)
        if known is not None:
            self.reused += 1
            return known
        measured = self.evaluator.measure(plan.digest, self.space.site_options(plan), split, windows)
        self.made += 1
        self.tokens += measured.tokens
        return self.store.add_measurement(measured)

    def windows(self, split: str, tokens: int | None = None) -> Sequence[Window]:
        """Return the windows of a split, or its first ones that together score a number of tokens."""
        windows = self.splits["selection" if split == SENSING else split]
        if tokens is None:
            return windows
        taken: list[Window] = []
        for window in windows:
            if sum(w.scored for w in taken) >= tokens:
                break
            taken.append(window)
        return taken

    def _bytes(self, plan: Plan) -> int:
        """Weight bytes of a plan, sites without a choice at the base dtype."""
        chosen = dict(plan.choices)
        total = self.space.fixed_bytes
        for decision in self.space.decisions:
            if decision.name in chosen:
                total += decision.costs[decision.index(chosen[decision.name])]
            else:
                total += decision.weights * self.space.geometry.dtype_bytes
        return total
