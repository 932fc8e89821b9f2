"""Optuna's samplers as agents (Akiba et al., Optuna, KDD 2019, https://arxiv.org/abs/1907.10902).

Every round rebuilds the sampler from the history and a seed derived from (task seed, sampler, round), so
that a search that was interrupted goes on as if it had not been. What a sampler asks for is projected onto
the budget; plans that are known already are asked for again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from tightfit.search.agents.base import History, Levels, Mode, Proposal, Task
from tightfit.search.agents.optuna_cmaes import Evolution
from tightfit.search.agents.optuna_study import LiveStudy, Note, quiet
from tightfit.search.agents.projection import project
from tightfit.search.solvers import solve
from tightfit.spaces import InputError

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

PURPOSE = 50
"""Of draws of these agents."""

POPULATION = 24
"""Parents of a genetic sampler. Until so many plans are measured, by whomever, it draws at random."""

MOST = {"gp": 80, "tpe": 500}
"""Most measured plans that a sampler sees: half the best, half the newest. Fitting a Gaussian process grows
with their cube, and every answer of TPE with their number."""

PATIENCE = {"tpe": 5, "nsga2": 20, "nsga3": 20, "gp": 1, "cmaes": 20, "qmc": 20}
"""How many known plans in a row a sampler may ask for, before single steps lead away from the last one."""

STEPS = 100
"""Most of these steps before an agent finds nothing new."""

# Sizes that a search for the whole front starts from, as shares of the feasible range.
_SHARES = (1.0, 0.75, 0.5, 0.25)


def _tpe(seed: int) -> BaseSampler:
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed, multivariate=True)


def _nsga2(seed: int) -> BaseSampler:
    from optuna.samplers import NSGAIISampler

    return NSGAIISampler(seed=seed, population_size=POPULATION)


def _nsga3(seed: int) -> BaseSampler:
    from optuna.samplers import NSGAIIISampler

    return NSGAIIISampler(seed=seed, population_size=POPULATION)


def _gp(seed: int) -> BaseSampler:
    from optuna.samplers import GPSampler

    return GPSampler(seed=seed)


def _qmc(seed: int) -> BaseSampler:
    from optuna.samplers import QMCSampler

    return QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False)


SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "tpe": _tpe,
    "nsga2": _nsga2,
    "nsga3": _nsga3,
    "gp": _gp,
    "qmc": _qmc,
}
"""Makes a sampler of a seed; ``cmaes`` is not among them, see :mod:`tightfit.search.agents.optuna_cmaes`."""


class Asker(Protocol):
    """Whoever is asked for plans during one round."""

    def ask(self) -> tuple[Levels, Note]:
        """Return the levels of a plan, possibly above the budget, and what to note with it."""
        ...

    def expect(self, levels: Levels) -> None:
        """Take note of a plan that was proposed; its loss is not known in this round."""
        ...


@dataclass(frozen=True)
class OptunaAgent:
    """One of Optuna's samplers.

    Its first proposals are the optima of the task's loss tables, as far as they are not known.

    Attributes:
        sampler: ``tpe``, ``nsga2``, ``nsga3``, ``gp``, ``cmaes`` or ``qmc``.
    """

    sampler: str
    iterative: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Name in the catalogue, under which it finds its own trials."""
        return f"optuna:{self.sampler}"

    def propose(self, task: Task, history: History, count: int) -> list[Proposal]:
        """Return new plans: in the first round the optima of the tables, then what the sampler asks for.

        Raises:
            InputError: the sampler cannot seek what the task seeks.
        """
        check_mode(self.name, task.mode)
        turn = history.rounds(self.name)
        found = self._optima(task, history) if turn == 0 else {}
        room = task.limit - task.floor
        if any(cost - d.costs[0] <= room for d in task.space.decisions for cost in d.costs[1:2]):
            with quiet(), _steady(self.sampler):
                self._ask_until(task, history, turn, found, count)
        return list(found.values())[:count]

    def _ask_until(
        self, task: Task, history: History, turn: int, found: dict[str, Proposal], count: int
    ) -> None:
        """Add plans that are not known until there are enough, or the sampler has run out of them."""
        rng = np.random.default_rng([task.seed, PURPOSE, *self.sampler.encode(), turn])
        asker = self._asker(task, history, int(rng.integers(2**31)))
        for proposal in found.values():
            asker.expect(proposal.levels)
        patience, misses = PATIENCE[self.sampler], 0
        while len(found) < count and misses < patience + STEPS:
            if misses < patience:
                levels, note = asker.ask()
            else:
                levels = _step(task, levels, rng)
            levels = project(task, levels)
            proposal = task.proposal(levels, self.name, note=note)
            if proposal.plan.digest in history.seen or proposal.plan.digest in found:
                misses += 1
                continue
            misses = 0
            found[proposal.plan.digest] = proposal
            asker.expect(levels)

    def _asker(self, task: Task, history: History, seed: int) -> Asker:
        if self.sampler == "cmaes":
            return Evolution(task, history.of(self.name), seed)
        sampler = SAMPLERS[self.sampler](seed)
        return LiveStudy(task, history, sampler, self.sampler == "gp", MOST.get(self.sampler))

    def _optima(self, task: Task, history: History) -> dict[str, Proposal]:
        """Return the optimum of every loss table; for a front, those of several sizes."""
        found: dict[str, Proposal] = {}
        room = task.limit - task.floor
        for share in _SHARES if task.mode == "front" else _SHARES[:1]:
            most = task.floor - task.space.fixed_bytes + math.floor(room * share)
            for table, losses in task.losses.items():
                levels = solve(task.costs, losses, most, task.tolerance, task.sides).levels
                proposal = task.proposal(levels, f"{self.name}, started from exact ({table})")
                if proposal.plan.digest not in history.seen:
                    found.setdefault(proposal.plan.digest, proposal)
        return found


def _steady(sampler: str) -> AbstractContextManager[object]:
    """A Gaussian process is fitted with torch, and must not depend on the number of cores."""
    if sampler != "gp":
        return nullcontext()
    from tightfit.compress.threads import one_thread  # brings torch with it

    return one_thread()


def check_mode(name: str, mode: Mode) -> None:
    """Refuse an agent that cannot seek what a search seeks.

    Raises:
        InputError: CMA-ES minimizes one number, and weighing bytes against loss in one number would
            only find a single size of plan.
    """
    if name == "optuna:cmaes" and mode == "front":
        raise InputError(
            "agent 'optuna:cmaes' minimizes the loss at one budget and cannot search a whole front "
            "(optuna:nsga2, optuna:nsga3, optuna:tpe, optuna:gp and optuna:qmc can)."
        )


def tpe() -> OptunaAgent:
    """Tree-structured Parzen estimator."""
    return OptunaAgent("tpe")


def nsga2() -> OptunaAgent:
    """Genetic algorithm with non-dominated sorting and crowding distance."""
    return OptunaAgent("nsga2")


def nsga3() -> OptunaAgent:
    """Genetic algorithm with non-dominated sorting and reference points."""
    return OptunaAgent("nsga3")


def gp() -> OptunaAgent:
    """Gaussian process with expected improvement."""
    return OptunaAgent("gp")


def cmaes() -> OptunaAgent:
    """CMA-ES with margin."""
    return OptunaAgent("cmaes")


def qmc() -> OptunaAgent:
    """Scrambled Sobol points, another scrambling in every round."""
    return OptunaAgent("qmc")


def _step(task: Task, levels: Levels, rng: np.random.Generator) -> Levels:
    """Return the plan after one random step: one decision takes the next larger or smaller option."""
    free = [i for i, decision in enumerate(task.space.decisions) if len(decision.options) > 1]
    at = int(rng.choice(free))
    top = len(task.space.decisions[at].options) - 1
    up = levels[at] == 0 or (levels[at] < top and rng.random() < 0.5)
    return (*levels[:at], levels[at] + (1 if up else -1), *levels[at + 1 :])
