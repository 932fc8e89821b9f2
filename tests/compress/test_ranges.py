from __future__ import annotations

import numpy as np
import pytest
import torch

from tightfit.compress.ranges import Groups, Ranges, codes_of, fit_ranges
from tightfit.spaces import ZEROS, WeightOption, Zero


def problem(zero: Zero, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, WeightOption]:
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(3, 2, 32, generator=generator)
    h = torch.randn(1, 2, 32, generator=generator).exp()
    return w, h / h.sum(-1, keepdim=True), WeightOption(3, 32, zero)


@pytest.mark.parametrize("zero", ZEROS)
def test_a_trial_is_the_error_of_its_range_and_the_regression_on_its_codes(zero: Zero) -> None:
    w, h, option = problem(zero)
    groups = Groups(w, h, option)
    trial = groups.measure(groups.min_max())
    scale, offset = trial.ranges.scale.double().numpy(), trial.ranges.offset.double().numpy()
    codes = codes_of(w, trial.ranges, 3).double().numpy()
    for row, group in np.ndindex(3, 2):
        x, y, root = codes[row, group], w[row, group].double().numpy(), h[0, group].double().sqrt().numpy()
        error = ((root * (offset[row, group] + scale[row, group] * x - y)) ** 2).sum()
        assert trial.error[row, group] == pytest.approx(error, rel=1e-5)
        if zero == "float":
            columns = np.stack([x, np.ones_like(x)], axis=1)
        else:  # the offset is a fixed number of steps
            columns = (x + offset[row, group] / scale[row, group])[:, None]
        solution, residual, *_ = np.linalg.lstsq(columns * root[:, None], y * root, rcond=None)
        assert trial.fit.scale[row, group] == pytest.approx(solution[0], rel=1e-5)
        assert trial.fit_error[row, group] == pytest.approx(residual[0], rel=1e-4)
        if zero == "float":
            assert trial.fit.offset[row, group] == pytest.approx(solution[1], rel=1e-4)


@pytest.mark.parametrize("zero", ZEROS)
def test_ranges_are_what_storage_holds(zero: Zero) -> None:
    w, h, option = problem(zero)
    ranges = fit_ranges(w, h, option)
    assert torch.equal(ranges.scale.half().float(), ranges.scale)
    steps = ranges.offset / -ranges.scale
    if zero == "float":
        assert torch.equal(ranges.offset.half().float(), ranges.offset)
    elif zero == "integer":
        assert torch.equal(steps.round().clamp(0, 7) * -ranges.scale, ranges.offset)
    else:
        assert torch.equal(steps, torch.full_like(steps, 4.0))


@pytest.mark.parametrize("zero", ["integer", "float"])
def test_moving_keeps_the_middle_unless_told_to_shift_it(zero: Zero) -> None:
    w, h, option = problem(zero)
    groups = Groups(w, h, option)
    ranges = Ranges(torch.full((3, 2), 0.25), torch.full((3, 2), -1.0))
    wider = groups.moved(ranges, 8.0, 0.0)  # 3 bits: twice as wide
    assert torch.equal(wider.scale, torch.full((3, 2), 0.5))
    middle = -1.0 + 0.25 * 3.5
    expected = middle - 0.5 * 3.5  # −1.875, which an integer zero rounds to a whole step
    expected = round(expected / 0.5) * 0.5 if zero == "integer" else expected
    assert torch.equal(wider.offset, torch.full((3, 2), expected))
    assert torch.equal(groups.moved(ranges, 0.0, 2.0).offset, torch.full((3, 2), -0.5))


def test_a_symmetric_range_is_turned_over_by_any_shift() -> None:
    w, h, option = problem("none")
    groups = Groups(w, h, option)
    ranges = Ranges(torch.full((3, 2), 0.25), torch.full((3, 2), -1.0))
    turned = groups.moved(ranges, 0.0, -0.5)
    assert torch.equal(turned.scale, -ranges.scale)
    assert torch.equal(turned.offset, -ranges.offset)


@pytest.mark.parametrize("zero", ZEROS)
def test_the_scale_of_importances_does_not_matter(zero: Zero) -> None:
    w, h, option = problem(zero)
    first, second = fit_ranges(w, h, option), fit_ranges(w, h * 2.0**20, option)
    assert torch.equal(first.scale, second.scale)
    assert torch.equal(first.offset, second.offset)


@pytest.mark.parametrize("zero", ZEROS)
def test_groups_that_no_input_reaches_get_their_min_max_range(zero: Zero) -> None:
    w, _, option = problem(zero)
    nothing = torch.zeros(1, 2, 32)
    expected = Groups(w, nothing, option).min_max()
    assert torch.equal(fit_ranges(w, nothing, option).scale, expected.scale)
    assert torch.equal(fit_ranges(w, nothing, option).offset, expected.offset)
