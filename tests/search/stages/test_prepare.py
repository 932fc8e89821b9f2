from __future__ import annotations

import os

import pytest
import torch

from tightfit.search.stages.prepare import physical_cores, pick_device
from tightfit.spaces import InputError


def test_auto_takes_what_is_there() -> None:
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    assert there[pick_device("auto")]
    assert pick_device("cpu") == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_device_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(InputError, match=r"cuda is not available here \(available: .*cpu"):
        pick_device("cuda")


def test_no_more_cores_than_the_process_may_use() -> None:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert 1 <= physical_cores() <= allowed
