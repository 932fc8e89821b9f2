"""The range of every group: the scale and offset with the least activation-weighted error.

A range stands for the values scale · q + offset, q = 0 … 2^bits − 1. For weights w and importances
h of one group the best range minimizes Σⱼ hⱼ (wⱼ − ŵⱼ)², where ŵⱼ is the range's value nearest to wⱼ.
Which values are nearest jumps with the range, so the error has many local minima. The search
alternates between the two halves that are easy:

* given a range, every weight takes its nearest code;
* given the codes, the best scale and offset are a weighted linear regression of w on ŵ. With
  ε = ŵ − w, weighted means w̄ and ε̄, and C = Σ h (ŵ − w − ε̄)(ŵ − w̄ − ε̄), V = Σ h (ŵ − w̄ − ε̄)²,
  the slope is α = 1 − C / V and the error that remains is Σ h (ε − ε̄)² − C² / V. Written in ε
  rather than in w, nothing cancels when the error is small. Without a free offset (integer zero
  point, symmetric) the same holds with w̄ = ε̄ = 0.

This is the alternation of Lloyd (1982, *Least squares quantization in PCM*) on equidistant values;
llama.cpp fits its K-quants by the same regression. It stops in the nearest minimum, so between
regressions the range is stretched and shifted by a few steps (:data:`MOVES`), always from the
best regression so far.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tightfit.spaces import InputError, WeightOption

# Steps by which the range is stretched and its middle shifted before every rounding, the last one
# a plain regression. Chosen greedily, each as the one that lowered the error most after those before
# it, over layers of a small model, 2 to 5 bits and the three kinds of zero point.
MOVES = (
    (-1.5, 0.0),
    (-2.0, -0.5),
    (0.75, 0.0),
    (-0.75, 0.75),
    (-3.0, 0.0),
    (-0.25, 0.0),
    (2.0, -0.5),
    (-1.0, -0.75),
    (0.0, 0.0),
)
# Smallest and largest positive 16-bit float. The smallest stands in for a scale of 0.
_TINY, _HUGE = 2.0**-24, 65504.0


@dataclass(frozen=True)
class Ranges:
    """Ranges of groups: value = scale · code + offset, each tensor float32 of shape (rows, groups)."""

    scale: Tensor
    offset: Tensor


@dataclass(frozen=True)
class Trial:
    """Ranges that can be stored, the regression on what they round to, and the error of both."""

    error: Tensor
    ranges: Ranges
    fit_error: Tensor
    fit: Ranges

    def or_better(self, other: Trial) -> Trial:
        """Take from another trial, group by group, the ranges and the fit that have less error."""
        return Trial(
            torch.minimum(self.error, other.error),
            _choose(self.ranges, other.ranges, other.error < self.error),
            torch.minimum(self.fit_error, other.fit_error),
            _choose(self.fit, other.fit, other.fit_error < self.fit_error),
        )


def _choose(old: Ranges, new: Ranges, better: Tensor) -> Ranges:
    # With weights of exactly 0 and 1 lerp is torch.where, but much faster on random masks.
    weight = better.float()
    return Ranges(old.scale.lerp(new.scale, weight), old.offset.lerp(new.offset, weight))


def fit_ranges(w: Tensor, h: Tensor, option: WeightOption) -> Ranges:
    """Find the ranges of all groups, exactly as they can be stored.

    No group's error is above that of its min–max range, so that weights which came from such a format
    go back into it unchanged.

    Args:
        w: finite float32 weights of shape (rows, groups, group).
        h: importances of shape (1, groups, group), not negative.
        option: bits and kind of zero point.

    Raises:
        InputError: the weights are too large for 16-bit scales.
    """
    groups = Groups(w, h, option)
    best = groups.measure(groups.min_max())
    for stretch, shift in MOVES:
        best = best.or_better(groups.measure(groups.moved(best.fit, stretch, shift)))
    return best.ranges


def codes_of(w: Tensor, ranges: Ranges, bits: int) -> Tensor:
    """Return the nearest code of every weight of w as uint8."""
    steps = (w - ranges.offset.unsqueeze(-1)).mul_(ranges.scale.reciprocal().unsqueeze(-1))
    return steps.round_().clamp_(0, 2**bits - 1).to(torch.uint8)


class Groups:
    """Groups of weights, the sums that every trial needs, and room to work in.

    Args:
        w: weights (rows, groups, group).
        h: importances (1, groups, group); only their ratios within a group matter.
        option: bits and kind of zero point.
    """

    def __init__(self, w: Tensor, h: Tensor, option: WeightOption) -> None:
        self._w, self._option = w, option
        self._levels = 2**option.bits - 1
        self._h = h / h.sum(-1, keepdim=True).clamp(min=torch.finfo(h.dtype).tiny)
        # Without a free offset the regression runs through 0 instead of the means.
        self._mean = (self._h * w).sum(-1) if option.zero == "float" else w.new_zeros(w.shape[:2])
        centred = w - self._mean.unsqueeze(-1)
        self._weighted = self._h * centred
        self._variance = centred.mul_(self._weighted).sum(-1)
        self._buffers = torch.empty_like(w), torch.empty_like(w)

    def min_max(self) -> Ranges:
        """Return the ranges from least to largest weight; all but ``float`` ones must hold 0.

        Raises:
            InputError: one cannot be stored.
        """
        low, high = self._w.amin(-1), self._w.amax(-1)
        if self._option.zero == "none":
            scale = torch.where(high > -low, high, low) / -(2 ** (self._option.bits - 1))
        else:
            if self._option.zero == "integer":
                low, high = low.clamp(max=0), high.clamp(min=0)
            scale = (high - low) / self._levels
        for stored in (scale, low) if self._option.zero == "float" else (scale,):
            if not bool(torch.isfinite(stored.half()).all()):
                raise InputError("the weights are too large for 16-bit group scales.")
        return self._stored(scale, low)

    def moved(self, ranges: Ranges, stretch: float, shift: float) -> Ranges:
        """Return ranges wider by ``stretch`` steps, their middle shifted by ``shift`` steps.

        A symmetric range can only be shifted by turning it over: its extra code changes ends.
        """
        factor = 1 + stretch / 2**self._option.bits
        if self._option.zero == "none":
            return self._stored(ranges.scale * (-factor if shift else factor), ranges.offset)
        steps = shift + (1 - factor) * self._levels / 2
        return self._stored(ranges.scale * factor, torch.add(ranges.offset, ranges.scale, alpha=steps))

    def measure(self, ranges: Ranges) -> Trial:
        """Round to ranges, and regress w on the result (symbols as at the top of this module)."""
        drift, squares, product = self._residuals(ranges)
        error = squares * ranges.scale * ranges.scale
        drift = drift * ranges.scale
        product = product * ranges.scale
        spread = torch.addcmul(error, drift, drift, value=-1)
        covariance = product + spread
        variance = self._variance + product + covariance
        gain = (covariance / variance.clamp(min=torch.finfo(torch.float32).tiny)).clamp_(-1, 1)
        slope = 1 - gain
        offset = self._mean - slope * (self._mean + drift - ranges.offset)
        fit_error = torch.addcmul(spread, gain, covariance, value=-1)
        return Trial(error, ranges, fit_error, Ranges(ranges.scale * slope, offset))

    def _residuals(self, ranges: Ranges) -> tuple[Tensor, Tensor, Tensor]:
        """Return ε̄, Σ h ε² and Σ h ε (w − w̄), with ε in steps of the range."""
        steps, residual = self._buffers
        torch.sub(self._w, ranges.offset.unsqueeze(-1), out=steps)
        steps.mul_(ranges.scale.reciprocal().unsqueeze(-1))
        torch.round(steps, out=residual).clamp_(0, self._levels).sub_(steps)
        weighted = torch.mul(residual, self._h, out=steps)
        drift = weighted.sum(-1) if self._option.zero == "float" else torch.zeros_like(ranges.scale)
        squares = weighted.mul_(residual).sum(-1)
        return drift, squares, residual.mul_(self._weighted).sum(-1)

    def _stored(self, scale: Tensor, offset: Tensor) -> Ranges:
        """Return the nearest ranges that can be stored."""
        if self._option.zero == "none":
            size = scale.abs().clamp_(_TINY, _HUGE).half().float().copysign_(scale)
            return Ranges(size, size * -(2 ** (self._option.bits - 1)))
        size = scale.clamp(_TINY, _HUGE).half().float()
        if self._option.zero == "float":
            return Ranges(size, offset.clamp(-_HUGE, _HUGE).half().float())
        zero = (offset / -size).round_().clamp_(0, self._levels)
        return Ranges(size, -size * zero)
