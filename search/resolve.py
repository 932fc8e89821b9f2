"""Solving again for another budget, from the scores of a finished run: nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tightfit.proxies.pools import read_model
from tightfit.search.hardware import TIMES
from tightfit.search.loss_models import solve_model
from tightfit.search.memory_sides import memory_sides
from tightfit.search.settings import Settings
from tightfit.search.sides import Side
from tightfit.search.solvers import Solution
from tightfit.search.store import Store
from tightfit.search.summary import SPLITS
from tightfit.search.tables import loss_text, nats_text, split_text
from tightfit.spaces import Budget, InputError, Plan, Space, build_space, format_size, read_geometry
from tightfit.workers.measurement import Measurement


@dataclass(frozen=True)
class Resolved:
    """The best plan of a run's loss model under another budget.

    Attributes:
        size: bytes of its weights, and of its KV caches where it decides about them; those are ``cache``.
        loss: predicted loss in nats per token.
        measured: this very plan on the most trustworthy text that the run measured it on, if on any.
        note: where no plan keeps the run's bounds on speed, what comes nearest.
    """

    plan: Plan
    size: int
    cache: int
    effective_bits: float
    loss: float
    solution: Solution
    measured: Measurement | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return {
            **self.plan.to_dict(),
            "digest": self.plan.digest,
            "bytes": self.size,
            "weight_bytes": self.size - self.cache,
            "kv_bytes": self.cache,
            "effective_bits": self.effective_bits,
            "predicted_loss": self.loss,
            "gap": self.solution.gap,
            "measured": self._measured(),
            "note": self.note or None,
        }

    def _measured(self) -> dict[str, Any] | None:
        if self.measured is None:
            return None
        found, known = self.measured, len(self.measured.documents) > 1
        se = found.kl_se if known else None
        return {"split": found.split, "tokens": found.tokens, "kl": found.kl, "kl_se": se}

    def render(self) -> str:
        """Return the answer as text."""
        found, known = self._measured(), "not measured"
        if found:
            loss = loss_text(found["kl"], found["kl_se"])
            known = f"measured {loss} on {found['split']}, {found['tokens']:,} tokens"
        widths: dict[str, int] = {}
        for _, option in self.plan.choices:
            widths[option] = widths.get(option, 0) + 1
        listed = ", ".join(f"{count} × {name}" for name, count in sorted(widths.items()))
        return (
            f"plan {self.plan.short}: {format_size(self.size)} ({self.size} B)"
            f"{split_text(self.size, self.cache)}, "
            f"{self.effective_bits:.3f} effective bits\n"
            f"predicted loss {nats_text(self.loss)} nats/token ({known}), proven within "
            f"{self.solution.gap:.1e} of the loss model's optimum\n{listed}"
            + (f"\n{self.note}" if self.note else "")
        )


def stored_plan(store: Store, digest: str | None) -> Plan:
    """Return a plan of a run: the one it settled on, or one named by the start of its digest.

    Raises:
        InputError: no whole plan, or more than one, has such a digest; or the run has not come to a plan yet.
    """
    if digest is None:
        result, so_far = store.get("result"), store.get("best") or store.get("solution")
        if result is None and so_far is None:
            raise InputError(f"{store.path} has no plan yet: let the search get past its solve stage.")
        # Before the end it is the best measured so far, and before anything is measured the solver's.
        digest = str(result["offered"] if result else so_far["digest"])
    # Single options that were measured alone are stored as plans too, but nobody can carry them out.
    decisions = len(store.decisions())
    whole = [stored.plan for stored in store.plans().values() if len(stored.plan.choices) == decisions]
    found = [plan for plan in whole if plan.digest.startswith(digest)]
    if len(found) != 1:
        raise InputError(
            f"{len(found)} of the {len(whole)} plans in {store.path} have a digest that starts with "
            f"{digest!r}: name one by its digest (tightfit front RUN --all lists what was measured)."
        )
    return found[0]


def stored_space(store: Store) -> Space:
    """Rebuild the space of a run from its store.

    Raises:
        InputError: the run stopped before it wrote its settings or its space.
    """
    settings, facts = store.get("settings"), store.get("space")
    if settings is None or facts is None:
        raise InputError(f"{store.path} holds no space yet: run the search first.")
    typed = Settings.from_dict(settings)
    geometry, load = read_geometry(facts["config"]), typed.budget.to_budget().load
    return build_space(geometry, typed.weight_rules(), typed.target_rules(), typed.kv_rules(), load)


def stored_sides(store: Store, space: Space) -> tuple[Side, ...]:
    """Return the bounds on speed that a run was given, as far as it has timed plans for them."""
    from tightfit.proxies.latency import LatencyTable
    from tightfit.search.speed import sides_of

    asked = Settings.from_dict(store.get("settings")).budget.to_budget()
    if not asked.bounds_speed:
        return ()
    found = {phase: store.get_fit(f"latency_{phase}") for phase in TIMES}
    tables = {phase: LatencyTable.from_dict(data) for phase, data in found.items() if data}
    return sides_of(asked, space, tables)


def size_budget(store: Store, size: int) -> Budget:
    """Return a bound on all bytes that a run decides about.

    Where these are weights and KV caches, its bounds on one of the two alone stay.
    """
    if not stored_space(store).has_kv:
        return Budget(weights=size)
    return replace(Settings.from_dict(store.get("settings")).budget.to_budget(), total=size)


def resolve(store: Store, budget: Budget) -> Resolved:
    """Solve for a budget. Bounds on speed are those that the run was given.

    Raises:
        InputError: the run has not fitted its loss model yet.
        InfeasibleError: the budget is below the floor of the space.
    """
    space = stored_space(store)
    limit = budget.check(space)
    fit = store.get_fit("link")
    if fit is None:
        raise InputError(f"{store.path} holds no loss model yet: let the search get past its fit stage.")
    model = read_model(fit["model"])
    costs = [np.array(decision.costs, dtype=np.int64) for decision in space.decisions]
    free = min(limit, space.ceiling) - space.fixed_bytes
    sides, note = stored_sides(store, space), ""
    if sides:
        from tightfit.search.speed import loosened, reach

        reached = reach(space, limit, list(model.weights), sides)
        if not reached.kept:  # then the plan that misses them least, and a word about it
            sides, note = loosened(sides, reached.nearest.levels), reached.text
    solution = solve_model(costs, model, free, (*sides, *memory_sides(budget, space)))
    plan, size = space.plan(solution.levels), space.bytes_of(solution.levels)
    known = [m for m in store.measurements() if m.plan == plan.digest and m.split in SPLITS]
    measured = min(known, key=lambda m: (SPLITS.index(m.split), -m.tokens), default=None)
    loss = float(model.predict(np.array([solution.levels]))[0])
    cache = space.cache_bytes(plan)
    bits = space.effective_bits(size - cache)
    return Resolved(plan, size, cache, bits, loss, solution, measured, note)
