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

# Steps by which the range is stretched and its middle shifted before every round. Chosen greedily,
# each as what lowered the error most after those before it, over layers, 2 to 6 bits and the three
# kinds of zero point. The last one is a plain regression, so that the best codes get their best range.
MOVES = (
    (-1.0, 0.0),
    (-2.0, -0.5),
    (1.0, 0.5),
    (-1.0, 0.5),
    (-0.2, 0.0),
    (-0.5, -0.75),
    (1.4, 0.75),
    (-3.0, 0.25),
    (0.4, 0.0),
    (3.0, -0.25),
    (-0.7, 0.75),
    (0.0, 0.0),
)
# Smallest positive 16-bit float. It stands in for a scale of 0, by which nothing can be divided.
_TINY = 2.0**-24
# Mean square error, in squared steps, that float32 cannot tell from none.
_EXACT = 1e-9
# Sums over more elements than this may be split among threads, and then depend on their number.
_SPAN = 1 << 14


@dataclass(frozen=True)
class Ranges:
    """Ranges of groups, as they are stored: value = scale · code + offset.

    Attributes:
        scale: float32 (rows, groups), each value a 16-bit float and not 0.
        offset: float32 (rows, groups).
    """

    scale: Tensor
    offset: Tensor


@dataclass(frozen=True)
class _Trial:
    """Ranges that were tried, and what the regression makes of them; all of shape (rows, groups)."""

    error: Tensor
    ranges: Ranges
    fit_error: Tensor
    fit: Ranges

    def or_better(self, other: _Trial) -> _Trial:
        """Take from another trial, per group, the ranges and the fits that have less error."""
        error, ranges = _less(self.error, self.ranges, other.error, other.ranges)
        fit_error, fit = _less(self.fit_error, self.fit, other.fit_error, other.fit)
        return _Trial(error, ranges, fit_error, fit)


def _less(error: Tensor, old: Ranges, other_error: Tensor, new: Ranges) -> tuple[Tensor, Ranges]:
    # Not a minimum: an error that overflowed into NaN must never win.
    better = other_error < error
    scale, offset = (
        torch.where(better, new.scale, old.scale),
        torch.where(better, new.offset, old.offset),
    )
    return torch.where(better, other_error, error), Ranges(scale, offset)


def fit_ranges(w: Tensor, h: Tensor, option: WeightOption) -> Ranges:
    """Find the ranges of all groups.

    No group's error is above that of its min–max range, and a group whose min–max range reproduces
    it exactly keeps that range.

    Args:
        w: float32 weights of shape (rows, groups, group).
        h: importances of shape (1, groups, group), about 1 on average.
        option: bits and kind of zero point.

    Raises:
        InputError: the weights are too large for 16-bit scales.
    """
    groups = _Groups(w, h, option)
    best = groups.measure(groups.min_max())
    for stretch, shift in MOVES:
        best = best.or_better(groups.measure(groups.moved(best.fit, stretch, shift)))
    return best.ranges


def codes_of(w: Tensor, ranges: Ranges, bits: int) -> Tensor:
    """Return the nearest code of every weight as uint8, in the shape of w."""
    return _positions(w, ranges).round_().clamp_(0, 2**bits - 1).to(torch.uint8)


def _positions(w: Tensor, ranges: Ranges) -> Tensor:
    """Return where every weight lies in its range, in steps."""
    return (w - ranges.offset.unsqueeze(-1)).mul_(ranges.scale.reciprocal().unsqueeze(-1))


class _Groups:
    """Groups of weights with the sums that every trial needs.

    Args:
        w: weights (rows, groups, group).
        h: importances (1, groups, group).
        option: bits and kind of zero point.
    """

    def __init__(self, w: Tensor, h: Tensor, option: WeightOption) -> None:
        self._w, self._h, self._option = w, h, option
        self._levels = 2**option.bits - 1
        self._mass = _total(h).clamp(min=torch.finfo(torch.float32).tiny)
        # Without a free offset the regression runs through 0 instead of the means.
        self._mean = _total(h * w) / self._mass if option.zero == "float" else w.new_zeros(w.shape[:2])
        centred = w - self._mean.unsqueeze(-1)
        self._weighted = h * centred
        self._variance = _total(centred.mul_(self._weighted))

    def min_max(self) -> Ranges:
        """Return the ranges from the least to the largest weight; they must hold 0 without offset."""
        low, high = torch.aminmax(self._w, dim=-1)
        if self._option.zero == "none":
            largest = torch.where(high > -low, high, low)
            ranges = self._stored(largest / -(2 ** (self._option.bits - 1)), low)
        else:
            if self._option.zero == "integer":
                low, high = low.clamp(max=0), high.clamp(min=0)
            ranges = self._stored((high - low) / self._levels, low)
        if not bool(torch.isfinite(ranges.scale).all()) or not bool(torch.isfinite(ranges.offset).all()):
            raise InputError("the weights are too large for 16-bit group scales.")
        return ranges

    def moved(self, ranges: Ranges, stretch: float, shift: float) -> Ranges:
        """Return ranges wider by ``stretch`` steps, their middle shifted by ``shift`` steps.

        A symmetric range can only be shifted by turning it over: its extra code changes ends.
        """
        factor = 1 + stretch / 2**self._option.bits
        if self._option.zero == "none":
            return self._stored(ranges.scale * (-factor if shift else factor), ranges.offset)
        middle = self._levels / 2
        offset = ranges.offset + ranges.scale * (shift + middle - factor * middle)
        return self._stored(ranges.scale * factor, offset)

    def measure(self, ranges: Ranges) -> _Trial:
        """Round to ranges and regress on the result (symbols as at the top of this module)."""
        exact = _positions(self._w, ranges)
        residual = exact.round().clamp_(0, self._levels).sub_(exact)
        weighted = residual * self._h
        scale = ranges.scale
        drift = torch.zeros_like(scale)  # ε̄
        if self._option.zero == "float":
            drift = _total(weighted).mul_(scale).div_(self._mass)
        squares = _total(weighted.mul_(residual))
        error = torch.where(squares < _EXACT * self._mass, 0.0, squares).mul_(scale).mul_(scale)
        product = _total(residual.mul_(self._weighted)).mul_(scale)
        spread = error - drift.square().mul_(self._mass)
        covariance = product + spread
        variance = self._variance + product + covariance
        gain = torch.where(variance > 0, covariance / variance, 0.0)
        slope = 1 - gain
        offset = self._mean - slope * (self._mean + drift - ranges.offset)
        return _Trial(error, ranges, spread - covariance * gain, Ranges(scale * slope, offset))

    def _stored(self, scale: Tensor, offset: Tensor) -> Ranges:
        """Return the nearest ranges that can be stored."""
        scale = scale.half().float()
        scale = torch.where(scale == 0, _TINY, scale)
        if self._option.zero == "none":
            return Ranges(scale, scale * -(2 ** (self._option.bits - 1)))
        scale = scale.abs_()
        if self._option.zero == "float":
            return Ranges(scale, offset.half().float())
        zero = (offset / -scale).round_().clamp_(0, self._levels)
        return Ranges(scale, -scale * zero)


def _total(x: Tensor) -> Tensor:
    """Sum over the last dimension, to the same bits on any number of threads."""
    return torch.stack([part.sum(-1) for part in x.split(_SPAN, dim=-1)]).sum(0)
