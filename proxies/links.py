"""Links: how the additive scores of a plan's choices become its loss.

A link is a monotone function g with g(0) = 0. For given scores it never changes which of two plans
is better, so an exact solver works on the scores alone; it changes what loss is predicted, and so
how scores are fitted to measured plans.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from tightfit.spaces import InputError, suggest

Floats = NDArray[np.float64]

SCALE_SD = 0.1
"""How far the overall scale of additive scores is trusted, as the standard deviation of its logarithm."""

_TANGENT = 0.05
_SMALLEST = 1e-9  # nats; losses closer than this are equal
_LARGEST_EXPONENT = 100.0  # e^100 nats is no loss any more, and its square is still finite


class Link(ABC):
    """A monotone function from additive score to loss, both in nats per token, with g(0) = 0."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def fit(cls, s: Floats, y: Floats, weight: Floats) -> Self:
        """Fit the link to plans.

        Args:
            s: additive scores, shape ``(P,)``.
            y: measured losses, shape ``(P,)``.
            weight: inverse variances of the losses, shape ``(P,)``.
        """

    @abstractmethod
    def __call__(self, s: Floats) -> Floats:
        """Return the loss at each additive score, same shape."""

    @abstractmethod
    def slope(self, s: Floats) -> Floats:
        """Return the derivative at each additive score, same shape, always positive."""

    @abstractmethod
    def inverse(self, y: Floats) -> Floats:
        """Return the additive score of each loss, same shape."""

    @abstractmethod
    def offset(self, slope: float, low: float, high: float) -> float:
        """Return the largest c with g(s) ≥ slope·s + c for all scores from ``low`` to ``high``."""

    def to_dict(self) -> dict[str, Any]:
        """Return the link as plain data."""
        return {"link": self.name, **asdict(self)}  # type: ignore[call-overload]

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Link:
        """Read a link from plain data."""
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k != "link"}
        return get_link(data["link"])(**values)


@dataclass(frozen=True)
class Identity(Link):
    """g(s) = s: the choices do not interact."""

    name: ClassVar[str] = "identity"

    @classmethod
    def fit(cls, s: Floats, y: Floats, weight: Floats) -> Self:
        """Nothing to fit."""
        return cls()

    def __call__(self, s: Floats) -> Floats:
        """Return the score itself."""
        return np.asarray(s, dtype=np.float64)

    def slope(self, s: Floats) -> Floats:
        """Return ones."""
        return np.ones_like(s, dtype=np.float64)

    def inverse(self, y: Floats) -> Floats:
        """Return the loss itself."""
        return np.asarray(y, dtype=np.float64)

    def offset(self, slope: float, low: float, high: float) -> float:
        """Return the least s − slope·s, which one end has."""
        return _least_above(self, slope, np.array([low, high]))


class _Exponential(Link):
    """g(s) = (e^(κs) − 1)/κ: concave for κ < 0, convex for κ > 0, and slope 1 at 0."""

    @property
    @abstractmethod
    def curvature(self) -> float:
        """κ, in 1/nats."""

    def __call__(self, s: Floats) -> Floats:
        """Return (e^(κs) − 1)/κ."""
        return _exponential(s, self.curvature)

    def slope(self, s: Floats) -> Floats:
        """Return e^(κs)."""
        exponent = np.minimum(self.curvature * np.asarray(s, dtype=np.float64), _LARGEST_EXPONENT)
        return np.asarray(np.exp(exponent))

    def inverse(self, y: Floats) -> Floats:
        """Return log(1 + κy)/κ.

        Where 1 + κy falls below 0.05, close to a loss that g never reaches, the inverse goes on along
        its tangent, so that a single choice worse than any fitted plan still has a finite score.
        """
        argument = 1.0 + self.curvature * np.asarray(y, dtype=np.float64)
        kept = np.maximum(argument, _TANGENT)
        return np.asarray((np.log(kept) + (argument - kept) / _TANGENT) / self.curvature)

    def offset(self, slope: float, low: float, high: float) -> float:
        """Return the least g(s) − slope·s: at an end, or where g has this slope."""
        level = float(np.clip(math.log(slope) / self.curvature, low, high))
        return _least_above(self, slope, np.array([low, high, level]))


@dataclass(frozen=True)
class Coverage(_Exponential):
    """g(s) = c·(1 − e^(−s/c)): sub-additive, as where errors overlap.

    With s = Σ −c·log(1 − aᵢ) this is c·(1 − Π(1 − aᵢ)), the *coverage* or *noisy-or* form: every
    choice independently destroys a share aᵢ of what can be lost at all.

    Attributes:
        ceiling: c, the largest loss, in nats.
    """

    ceiling: float
    name: ClassVar[str] = "coverage"

    @property
    def curvature(self) -> float:
        """−1/c."""
        return -1.0 / self.ceiling

    @classmethod
    def fit(cls, s: Floats, y: Floats, weight: Floats) -> Self:
        """Fit c by least squares, at least 6 % above every loss that was seen."""
        largest = max(float(np.max(y)), _SMALLEST)
        # The logarithm of (c − largest)/largest; 1000 times the largest loss is a straight line.
        best = _fit_curve(
            s, y, weight, lambda t: -1.0 / (largest * (1.0 + np.exp(t))), (math.log(0.06), math.log(1e3))
        )
        return cls(float(largest * (1.0 + np.exp(best))))


@dataclass(frozen=True)
class Amplifying(_Exponential):
    """g(s) = (e^(κs) − 1)/κ: super-additive, as where errors feed on one another.

    With s = Σ log(1 + κℓᵢ)/κ this is (Π(1 + κℓᵢ) − 1)/κ: every choice amplifies the others' losses.

    Attributes:
        kappa: κ > 0, in 1/nats.
    """

    kappa: float
    name: ClassVar[str] = "amplifying"

    @property
    def curvature(self) -> float:
        """The fitted κ."""
        return self.kappa

    @classmethod
    def fit(cls, s: Floats, y: Floats, weight: Floats) -> Self:
        """Fit κ by least squares, between 1/1000 and 100 per largest loss that was seen."""
        largest = max(float(np.max(y)), _SMALLEST)
        best = _fit_curve(
            s, y, weight, lambda t: float(np.exp(t)) / largest, (math.log(1e-3), math.log(100.0))
        )
        return cls(float(np.exp(best)) / largest)


@dataclass(frozen=True)
class Isotonic(Link):
    """Any increasing g: straight lines between knots, and beyond them.

    Pool-adjacent-violators (Barlow et al., *Statistical Inference under Order Restrictions*, 1972)
    gives constant steps; a constant step would call different plans equal, so the knots are the
    centres of the steps, which increase strictly.

    Attributes:
        scores: additive scores of the knots, increasing, the first 0.
        losses: losses of the knots, increasing, the first 0.
        tail: slope beyond the last knot, the regression slope of all knots.
    """

    scores: tuple[float, ...]
    losses: tuple[float, ...]
    tail: float
    name: ClassVar[str] = "isotonic"

    @classmethod
    def fit(cls, s: Floats, y: Floats, weight: Floats) -> Self:
        """Fit the steps on plans with a positive score; without any, g is the identity."""
        from sklearn.isotonic import IsotonicRegression  # takes 2 s to import, and reading a fit needs it not

        s = np.round(s / _SMALLEST) * _SMALLEST
        s, y, weight = s[s > 0], y[s > 0], weight[s > 0]
        if not len(s):
            return cls((0.0, 1.0), (0.0, 1.0), 1.0)
        steps = IsotonicRegression().fit(s, y, sample_weight=weight).predict(s)
        levels, member = np.unique(np.round(steps / _SMALLEST) * _SMALLEST, return_inverse=True)
        centres = np.bincount(member, weight * s) / np.bincount(member, weight)
        knots = [
            (0.0, 0.0),
            *((c, v) for c, v in zip(centres.tolist(), levels.tolist(), strict=True) if v > 0),
        ]
        if len(knots) == 1:
            return cls((0.0, 1.0), (0.0, 1.0), 1.0)
        x, v = np.array(knots).T
        tail = float(np.polyfit(x, v, 1)[0])
        return cls(tuple(x.tolist()), tuple(v.tolist()), tail)

    def __call__(self, s: Floats) -> Floats:
        """Return the interpolated loss."""
        s = np.asarray(s, dtype=np.float64)
        beyond = np.maximum(s - self.scores[-1], 0.0) * self.tail + np.minimum(s, 0.0) * self._head
        return np.asarray(np.interp(s, self.scores, self.losses) + beyond)

    def slope(self, s: Floats) -> Floats:
        """Return the slope of the line that each score lies on."""
        slopes = np.array([self._head, *(np.diff(self.losses) / np.diff(self.scores)), self.tail])
        return np.asarray(slopes[np.searchsorted(self.scores, s, side="right")])

    def inverse(self, y: Floats) -> Floats:
        """Return the interpolated score."""
        y = np.asarray(y, dtype=np.float64)
        beyond = np.maximum(y - self.losses[-1], 0.0) / self.tail + np.minimum(y, 0.0) / self._head
        return np.asarray(np.interp(y, self.losses, self.scores) + beyond)

    def offset(self, slope: float, low: float, high: float) -> float:
        """Return the least g(s) − slope·s: at an end or a knot."""
        return _least_above(self, slope, np.array([low, high, *np.clip(self.scores, low, high)]))

    @property
    def _head(self) -> float:
        """Slope below 0, that of the first segment."""
        return self.losses[1] / self.scores[1]


def _least_above(link: Link, slope: float, s: Floats) -> float:
    return float(np.min(link(s) - slope * s))


def _exponential(s: Floats, curvature: float) -> Floats:
    exponent = np.minimum(curvature * np.asarray(s, dtype=np.float64), _LARGEST_EXPONENT)
    return np.asarray(np.expm1(exponent) / curvature)


def _fit_curve(
    s: Floats, y: Floats, weight: Floats, curvature: Callable[[float], float], bounds: tuple[float, float]
) -> float:
    """Return the t in ``bounds`` whose curvature fits best, leaving the scale of s free within its prior.

    Without that freedom, scores that are all 10 % too small would pass for interaction.
    """
    root = np.sqrt(weight)

    def residuals(x: Floats) -> Floats:
        fitted = _exponential(np.exp(x[0]) * s, curvature(x[1]))
        return np.append(root * (fitted - y), x[0] / SCALE_SD)

    # Scale and curvature trade off along a narrow valley, so a descent needs a start inside it.
    scales, ts = np.linspace(-1.0, 1.0, 21), np.linspace(*bounds, 21)
    stretched = np.exp(scales)[:, None] * s
    misfit = np.array([((_exponential(stretched, curvature(t)) - y) ** 2) @ weight for t in ts])
    row, column = np.unravel_index(np.argmin(misfit + (scales / SCALE_SD) ** 2), misfit.shape)
    start = [scales[column], ts[row]]
    limits = (np.array([-1.1, bounds[0] - 1e-9]), np.array([1.1, bounds[1] + 1e-9]))
    return float(scipy.optimize.least_squares(residuals, start, bounds=limits, x_scale="jac").x[1])


LINKS: dict[str, type[Link]] = {link.name: link for link in (Identity, Amplifying, Coverage, Isotonic)}
"""The known links, simplest first: cross-validation takes the first that is good enough.

A power law a·s^p would be redundant: over the losses of plans worth choosing, its bend is that of
``amplifying`` or ``coverage``, and unlike theirs its slope at 0 is not 1, so a choice alone would not
keep its measured loss.
"""


def get_link(name: str) -> type[Link]:
    """Return a link class by its name.

    Raises:
        InputError: there is no such link.
    """
    if name not in LINKS:
        raise InputError(f"no link is called {name!r} (links: {', '.join(LINKS)}).{suggest(name, LINKS)}")
    return LINKS[name]
