from __future__ import annotations

import pytest
import torch

from tightfit.search.stages.prepare import pick_device
from tightfit.spaces import InputError


def test_auto_takes_what_is_there() -> None:
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    assert there[pick_device("auto")]
    assert pick_device("cpu") == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_device_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(InputError, match=r"cuda is not available here \(available: .*cpu"):
        pick_device("cuda")
