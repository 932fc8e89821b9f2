"""What measured plans say about the loss table: a strongly shrunk ridge regression of its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightfit.search.agents.base import Levels, Task, Trial

Floats = NDArray[np.float64]

_FEWEST = 8  # plans; fewer say nothing about hundreds of options
_MOST = 1000  # plans, the latest: the regression takes cubic time
_RIDGES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)  # strongest shrinkage first


@dataclass(frozen=True, eq=False)
class Correction:
    """Predicts loss as the trusted table plus a correction learned from what was measured.

    Relative errors of the table, (measured − predicted) / predicted, are regressed on three groups of
    features, all in terms of the table's own losses l of the chosen options: a factor per decision
    (feature l), a deviation per option (feature l, 0 where it is not chosen), and an interaction per pair
    of decisions (feature √(l·l′), as for errors that add up before they are squared). Features that
    cost little can so correct little. There are far more features than plans, so the ridge regression
    is solved in its dual form (Saunders, Gammerman & Vovk, *Ridge regression learning algorithm in
    dual variables*, ICML 1998). The strongest shrinkage whose leave-one-out error is
    within one standard error of the least is used (Breiman et al., *Classification and Regression
    Trees*, 1984, §3.4.3); where no shrinkage beats the table itself, nothing is corrected.
    """

    task: Task
    _features: _Features | None = None
    _weights: Floats | None = None
    _offset: float = 0.0

    @classmethod
    def fit(cls, task: Task, trials: Sequence[Trial]) -> Correction:
        """Learn from measured trials."""
        pairs = [(t.proposal.levels, t.loss) for t in trials if t.loss is not None][-_MOST:]
        if len(pairs) < _FEWEST:
            return cls(task)
        features = _Features.of(task, [levels for levels, _ in pairs])
        measured = np.array([loss for _, loss in pairs])
        errors = (measured - features.predicted) / features.scale
        # Losses far off the table, such as those of broken plans, tell nothing about good ones.
        spread = 3 * float(np.median(np.abs(errors - np.median(errors)))) / 0.6745
        errors = np.clip(errors, np.median(errors) - spread, np.median(errors) + spread)
        kernel = features.kernel(features)
        weights = _shrunk(kernel, errors - errors.mean())
        # The regression is about differences between plans; where they are on average is left alone.
        offset = errors.mean() - (0.0 if weights is None else (kernel @ weights).mean())
        return cls(task, features, weights, float(offset))

    def predict(self, plans: Sequence[Levels]) -> Floats:
        """Return predicted losses in nats per token, shape ``(len(plans),)``."""
        own = _Features.of(self.task, plans)
        if self._features is None or self._weights is None:
            return own.predicted
        errors = own.kernel(self._features) @ self._weights + self._offset
        return np.asarray(own.predicted + own.scale * errors)


@dataclass(frozen=True, eq=False)
class _Features:
    """Plans as seen by the regression.

    Attributes:
        levels: shape ``(P, D)``.
        losses: magnitudes of the chosen options' table losses, over ``scale``; shape ``(P, D)``.
        predicted: loss of the table, shape ``(P,)``.
        scale: its magnitude, never 0.
    """

    levels: NDArray[np.int64]
    losses: Floats
    predicted: Floats
    scale: Floats

    @classmethod
    def of(cls, task: Task, plans: Sequence[Levels]) -> _Features:
        levels = np.array(plans, dtype=np.int64).reshape(len(plans), len(task.costs))
        rows = zip(task.trusted, levels.T, strict=True)
        losses = np.column_stack([np.asarray(row, dtype=np.float64)[column] for row, column in rows])
        predicted = losses.sum(axis=1)
        scale = np.maximum(np.abs(losses).sum(axis=1), np.finfo(np.float64).tiny)
        return cls(levels, np.abs(losses) / scale[:, None], predicted, scale)

    def kernel(self, other: _Features) -> Floats:
        """Inner products of the features of all plans with those of others, shape ``(P, P′)``."""
        factor = self.losses @ other.losses.T
        option = np.zeros_like(factor)
        for mine, his, own, theirs in zip(
            self.levels.T, other.levels.T, self.losses.T, other.losses.T, strict=True
        ):
            option += (mine[:, None] == his) * np.outer(own, theirs)
        roots = np.sqrt(self.losses) @ np.sqrt(other.losses).T
        # There are as many pairs per decision as decisions; as a whole they count no more than factors do.
        return np.asarray(factor + option + (roots**2 - factor) / len(self.levels.T))


def _shrunk(kernel: Floats, errors: Floats) -> Floats | None:
    """Dual weights of the ridge regression, or None where it predicts no better than nothing."""
    count = len(errors)
    centre = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(centre @ kernel @ centre)
    values = np.maximum(values, 0.0)
    turned = vectors.T @ errors
    unit = max(float(values.mean()), np.finfo(np.float64).tiny)
    weights: list[Floats] = []
    missed: list[Floats] = []
    for ridge in _RIDGES:
        inverse = 1 / (values + ridge * unit)
        weights.append(vectors @ (inverse * turned))
        # The leave-one-out residual of a linear smoother is its weight over the inverse's diagonal.
        missed.append((weights[-1] / (vectors**2 @ inverse)) ** 2)
    best = min(range(len(_RIDGES)), key=lambda k: float(missed[k].mean()))
    if missed[best].mean() >= (errors**2).mean():
        return None
    worse = [float((loo - missed[best]).mean()) for loo in missed]
    doubt = [float((loo - missed[best]).std(ddof=1)) / np.sqrt(count) for loo in missed]
    return weights[next(k for k in range(best + 1) if worse[k] <= doubt[k])]
