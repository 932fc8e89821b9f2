"""A search without a model: an agent proposes, a function of the levels is its measured loss, and again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from tightfit.search.agents import Agent, History, Proposal, Task, Trial, get_agent
from tightfit.search.agents.base import Levels
from tightfit.workers.measurement import DocumentLoss, Measurement

LossOf = Callable[[Levels], float]
Fails = Callable[[Proposal], bool]


def simulate(
    agent: str | Agent,
    task: Task,
    loss_of: LossOf,
    rounds: int,
    batch: int,
    fail: Fails | None = None,
    start: History | None = None,
    noise: float = 0.0,
) -> History:
    """Let an agent propose and learn, until it has had its rounds or proposes nothing.

    Args:
        agent: name in the catalogue, or an agent (its class name in lower case is then its name).
        task: the problem.
        loss_of: true loss of levels, nats per token.
        rounds: most turns of the agent.
        batch: most proposals of a turn.
        fail: whether measuring a proposal fails.
        start: what others proposed before.
        noise: relative standard deviation of a measured loss, the same for a plan whenever measured.
    """
    name = agent if isinstance(agent, str) else type(agent).__name__.lower()
    acting = get_agent(agent) if isinstance(agent, str) else agent
    history = start or History()
    for _ in range(rounds):
        proposals = acting.propose(task, history, batch)
        if not proposals:
            break
        turn = history.rounds(name)
        history = history.with_trials(trial(name, turn, p, loss_of, fail, noise) for p in proposals)
    return history


def trial(
    name: str, turn: int, proposal: Proposal, loss_of: LossOf, fail: Fails | None = None, noise: float = 0.0
) -> Trial:
    """What the search would record of a proposal."""
    if fail is not None and fail(proposal):
        return Trial(name, turn, proposal, None)
    return Trial(name, turn, proposal, measure(proposal, loss_of(proposal.levels), noise))


def measure(proposal: Proposal, loss: float, noise: float = 0.0, documents: int = 6) -> Measurement:
    """A measurement of this loss; documents share their difficulty over all plans, as real ones do."""
    own = np.random.default_rng([97, _number(proposal)])
    hard = np.random.default_rng(98).lognormal(0, 0.3, documents)
    tokens = np.random.default_rng(99).integers(50, 200, documents)
    kl = tokens * hard * loss / (tokens @ hard / tokens.sum())
    kl = kl * (1 + noise * np.sqrt(documents) * own.standard_normal(documents))
    losses = tuple(
        DocumentLoss(f"d{i}", int(t), float(k), 3.0 * t + float(k), 3.0 * t, int(0.9 * t))
        for i, (t, k) in enumerate(zip(tokens, kl, strict=True))
    )
    return Measurement(proposal.plan.digest, "selection", "simulated", losses, 10 * abs(loss), 0.01)


def failing(share: float, seed: int = 0) -> Fails:
    """Fail for this share of all plans, always the same ones."""
    return lambda proposal: np.random.default_rng([96, seed, _number(proposal)]).random() < share


def additive(task: Task) -> LossOf:
    """The trusted loss table is the truth."""
    return lambda levels: float(sum(row[x] for row, x in zip(task.trusted, levels, strict=True)))


def interacting(task: Task, strength: float, seed: int = 0, misjudged: float = 0.0) -> LossOf:
    """The trusted table plus interactions of all pairs of decisions, as errors that add up have.

    Loss is the squared length of Σ √loss of an option · the direction of its decision's error. Directions
    at right angles would give the table itself.

    Args:
        task: the problem.
        strength: of the interactions; 0 is none, around 1 they are as large as the losses.
        seed: of the directions.
        misjudged: standard deviation of the logarithm of an option's true loss over that of the table.
    """
    rng = np.random.default_rng([95, seed])
    count = len(task.trusted)
    rows = [np.asarray(row) * np.exp(misjudged * rng.standard_normal(len(row))) for row in task.trusted]
    directions = np.eye(count) + strength * rng.standard_normal((count, count)) / np.sqrt(count)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)

    def loss(levels: Levels) -> float:
        lengths = np.sqrt([row[level] for row, level in zip(rows, levels, strict=True)])
        return float(np.sum((lengths @ directions) ** 2))

    return loss


def best_loss(history: History, agent: str | None = None) -> float:
    """Least measured loss of a history, or of one agent in it."""
    losses = [t.loss for t in history.measured if agent is None or t.agent == agent]
    return min(loss for loss in losses if loss is not None)


def hypervolume(history: History, corner: tuple[float, float]) -> float:
    """Area that the measured plans dominate below a corner of (bytes, loss)."""
    points = sorted((t.proposal.bytes, t.loss) for t in history.measured if t.loss is not None)
    area, lowest = 0.0, corner[1]
    for size, loss in points:
        if size < corner[0] and loss < lowest:
            area += (corner[0] - size) * (lowest - loss)
            lowest = loss
    return area


def _number(proposal: Proposal) -> int:
    return int(hashlib.sha256(proposal.plan.digest.encode()).hexdigest()[:8], 16)
