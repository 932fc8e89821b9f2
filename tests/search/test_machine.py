from __future__ import annotations

import os

from tightfit.search.machine import peak_memory, physical_cores


def test_no_more_cores_than_the_process_may_use() -> None:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert 1 <= physical_cores() <= allowed


def test_the_peak_never_falls_and_holds_what_was_taken() -> None:
    before = peak_memory()
    taken = bytearray(os.urandom(1 << 20) * 64)
    after = peak_memory()
    assert before is not None
    assert after is not None
    assert after >= max(before, len(taken))
