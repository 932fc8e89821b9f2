"""Fitting a table of times to measured plans: a non-negative hierarchical ridge regression.

A plan is timed against one baseline plan, round by round in turn, so that the machine's own ups and downs
cancel in the ratio. The ratios are

    r = f + Σ κ(type, shape) · work,    κ(type, shape) = ρ(type) + o(shape) + d(type, shape),

with f at least 0 and every rate κ and ρ greater than 0. There are far more classes than plans, so each is
drawn towards its parent: d and o towards 0, ρ towards one rate for all formats. That is ridge regression
(Hoerl & Kennard, *Technometrics* 12, 1970) with the parents as further unknowns, and a bounded
least-squares problem in all (Stark & Parker, *Computational Statistics* 10, 1995). How far a class may
stray is chosen by the leave-one-out errors of the regression without bounds, which are exact without
fitting again (Allen's PRESS, *Technometrics* 16, 1974). A class that no plan contained so has its
format's rate, and a format that none contained the rate of all.

Every plan multiplies every matrix, so time per product and fixed time are told apart by shrinkage alone.
No prediction suffers from it but that of formats that were never seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

from tightfit.proxies.latency import Class, Floats, LatencyTable, Phase, Products
from tightfit.spaces import Geometry, InputError, Option

_FEWEST = 3  # plans beside the baseline
_FEW_MIXED = 3  # plans of several formats, for errors that are theirs alone
_FLOOR = 0.003  # least standard error of a ratio: how well the sum over classes holds at best
_POLISHING = 10  # rounds of median polish; few are needed
_UNKNOWN = 0.03  # noise of a ratio that was measured once
# How far formats stray from one rate, and how far shapes, and classes from their format, may; relative.
_TYPE = 0.5
_LEAST = 0.05  # of a rate, relative to the common one: time per product is hardly told from fixed time
_STRAYS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class LatencySample:
    """A plan that was timed.

    Attributes:
        options: format of every site that owns its bytes (:meth:`Space.site_options`).
        ratio: its time over the baseline's in the same rounds; the baseline itself has 1.
        ratio_se: standard error of the ratio.
    """

    options: Mapping[str, Option]
    ratio: float
    ratio_se: float

    def __post_init__(self) -> None:
        if not (
            np.isfinite(self.ratio) and self.ratio > 0 and np.isfinite(self.ratio_se) and self.ratio_se >= 0
        ):
            raise InputError(
                f"a time of {self.ratio} ± {self.ratio_se} times the baseline's is none: "
                "ratios are greater than 0 and their errors at least 0."
            )


def paired_samples(options: Sequence[Mapping[str, Option]], seconds: Floats) -> list[LatencySample]:
    """Turn times into ratios to the baseline, which is the first plan.

    What slows a whole round down is taken out of it by Tukey's median polish (*Exploratory Data Analysis*,
    1977, ch. 11) of the logarithms: all plans of a round say how slow it was, which is less noisy than the
    baseline alone. The rest of the noise is alike for all plans, so its size is pooled over them.

    Args:
        options: formats of every plan, the baseline's first.
        seconds: of every plan in every round, shape ``(P, R)``.

    Raises:
        InputError: the shapes do not agree, or a time is not greater than 0.
    """
    times = np.asarray(seconds, dtype=np.float64)
    if times.ndim != 2 or len(times) != len(options) or not times.size:
        raise InputError(f"times of shape {times.shape} are not those of {len(options)} plans in rounds.")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise InputError("a time is a number of seconds greater than 0.")
    logs = np.log(times)
    middle, noise, rounds = np.median(logs, axis=1), _UNKNOWN, times.shape[1]
    if rounds > 1 and len(times) > 1:
        for _ in range(_POLISHING):
            moods = np.median(logs - middle[:, None], axis=0)
            middle = np.median(logs - moods, axis=1)
        strays = np.abs(logs - middle[:, None] - moods)
        noise = float(np.median(strays)) / 0.6745 * np.sqrt(rounds / (rounds - 1))
    error = noise * np.sqrt((np.pi / 2 if rounds > 2 else 1.0) / rounds)  # of a median, of a mean of two
    return [
        LatencySample(each, float(ratio), float(ratio * error))
        for each, ratio in zip(options, np.exp(middle - middle[0]), strict=True)
    ]


def fit_latency(
    geometry: Geometry,
    samples: Sequence[LatencySample],
    baseline_seconds: float,
    phase: Phase = "generate",
    tokens: int = 1,
) -> LatencyTable:
    """Fit a table of times.

    Args:
        geometry: the model's shape.
        samples: timed plans, the baseline among them.
        baseline_seconds: what the baseline takes, as a median over all rounds: per token or per prompt.
        phase: what was timed.
        tokens: of the prompt; 1 for generating.

    Raises:
        InputError: fewer than four plans, or no positive time.
    """
    if len(samples) <= _FEWEST:
        raise InputError(f"{len(samples)} timed plans are too few for a table: time at least {_FEWEST + 1}.")
    if not (np.isfinite(baseline_seconds) and baseline_seconds > 0):
        raise InputError(f"the baseline takes {baseline_seconds} s; a time is greater than 0.")
    problem = _Problem.of(Products(geometry, phase, tokens), samples)
    everything = np.ones(len(samples), dtype=np.bool_)
    mixed = [i for i, sample in enumerate(samples) if len({o.name for o in sample.options.values()}) > 1]
    error = _left_out(problem, mixed)
    return problem.table(problem.fit(everything), baseline_seconds, error)


@dataclass(frozen=True, eq=False)
class _Problem:
    """The regression: P plans, C classes; the unknowns are f, one rate, T types, S shapes, C classes.

    Attributes:
        work: of every class in every plan, in units of the first plan's whole work, shape ``(P, C)``.
        ratios, errors: what was measured, shape ``(P,)``.
        scale: work of the first plan.
        rate: all plans' common rate, to which strays are relative.
    """

    products: Products
    classes: list[Class]
    types: list[str]
    shapes: list[tuple[int, int]]
    work: Floats
    ratios: Floats
    errors: Floats
    scale: float
    rate: float

    @classmethod
    def of(cls, products: Products, samples: Sequence[LatencySample]) -> _Problem:
        plans = [products.classes(sample.options) for sample in samples]
        classes = sorted({each for plan in plans for each in plan})
        work = np.array([[plan.count(each) * products.work(each) for each in classes] for plan in plans])
        scale = float(work[0].sum())
        ratios = np.array([sample.ratio for sample in samples])
        errors = np.hypot([sample.ratio_se for sample in samples], _FLOOR * ratios)
        total = work.sum(axis=1) / scale
        # A line through fixed time and work, for the order of magnitude of a rate.
        line = np.stack([np.ones(len(plans)), total], axis=1) / errors[:, None]
        rate = float(lsq_linear(line, ratios / errors, bounds=(0, np.inf)).x[1])
        rate = max(rate, 0.1 * float(np.median(ratios / total)))
        types, shapes = sorted({c[0] for c in classes}), sorted({c[1:] for c in classes})
        return cls(products, classes, types, shapes, work / scale, ratios, errors, scale, rate)

    def fit(self, plans: np.ndarray) -> Floats:
        """Fit to some of the plans (a mask), shrunk as their own left-out errors ask for."""
        rows, values = self._rows(plans)
        stray = min(_STRAYS, key=lambda stray: self._press(rows, values, stray))
        penalties = self._penalties(stray)
        low = np.full(rows.shape[1], _LEAST * self.rate)
        low[0], low[self._shape_columns] = 0.0, -np.inf
        whole = np.concatenate([rows, penalties])
        goal = np.concatenate([values, np.zeros(len(penalties))])
        answer: Floats = lsq_linear(whole, goal, bounds=(low, np.inf), method="bvls").x
        return answer

    def predict(self, unknowns: Floats, plans: np.ndarray) -> Floats:
        """Return the ratios of some of the plans."""
        return np.asarray(unknowns[0] + self.work[plans] @ unknowns[self._class_columns])

    def table(self, unknowns: Floats, seconds: float, error: float) -> LatencyTable:
        """Turn ratios into seconds, and rates per whole work of the first plan into rates per unit."""
        rates = unknowns * seconds / self.scale
        by_type = rates[2 : 2 + len(self.types)]
        return LatencyTable(
            phase=self.products.phase,
            tokens=self.products.tokens,
            fixed=float(unknowns[0] * seconds),
            rate=float(rates[1]),
            types=dict(zip(self.types, by_type.tolist(), strict=True)),
            shapes=dict(zip(self.shapes, rates[self._shape_columns].tolist(), strict=True)),
            classes=dict(zip(self.classes, rates[self._class_columns].tolist(), strict=True)),
            plans=len(self.ratios),
            error=error,
        )

    @property
    def _shape_columns(self) -> slice:
        return slice(2 + len(self.types), 2 + len(self.types) + len(self.shapes))

    @property
    def _class_columns(self) -> slice:
        return slice(2 + len(self.types) + len(self.shapes), None)

    def _rows(self, plans: np.ndarray) -> tuple[Floats, Floats]:
        """One row per plan, in units of its error."""
        rows = np.zeros((int(plans.sum()), 2 + len(self.types) + len(self.shapes) + len(self.classes)))
        rows[:, 0] = 1.0
        rows[:, self._class_columns] = self.work[plans]
        return rows / self.errors[plans][:, None], self.ratios[plans] / self.errors[plans]

    def _penalties(self, stray: float) -> Floats:
        """One row per parent and child, in units of how far the child may stray."""
        width = 2 + len(self.types) + len(self.shapes) + len(self.classes)
        rows = np.zeros((width - 2, width))
        shapes, classes = self._shape_columns.start, self._class_columns.start
        for at, each in enumerate(self.classes, classes):
            rows[at - 2, at] = 1.0
            rows[at - 2, 2 + self.types.index(each[0])] = -1.0
            rows[at - 2, shapes + self.shapes.index(each[1:])] = -1.0
        for at in range(2, classes):
            rows[at - 2, at] = 1.0
            rows[at - 2, 1] = -1.0 if at < shapes else 0.0
        rows[: shapes - 2] /= _TYPE * self.rate
        rows[shapes - 2 :] /= stray * self.rate
        return rows

    def _press(self, rows: Floats, values: Floats, stray: float) -> float:
        """Sum of squared errors of plans left out one by one, in units of their own errors."""
        penalties = self._penalties(stray)
        inverse = np.linalg.pinv(rows.T @ rows + penalties.T @ penalties, hermitian=True)
        hat = rows @ inverse @ rows.T
        missed = (values - hat @ values) / np.maximum(1 - np.diag(hat), 1e-6)
        return float((missed**2).sum())


def _left_out(problem: _Problem, mixed: Sequence[int]) -> float:
    """Root mean square of relative errors of plans left out one by one, shrinkage chosen without them.

    Plans of several formats are what is searched. A uniform plan may be the only one with much of its
    format, so that leaving it out says little about the table; it counts only where few plans are mixed.
    """
    errors = []
    for index in mixed if len(mixed) >= _FEW_MIXED else range(len(problem.ratios)):
        kept = np.arange(len(problem.ratios)) != index
        predicted = problem.predict(problem.fit(kept), ~kept)[0]
        errors.append(predicted / problem.ratios[index] - 1)
    return float(np.sqrt(np.mean(np.square(errors))))
