"""What this machine has and what a run has used of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def physical_cores() -> int:
    """Number of cores this process may use, hardware threads of one core counted once."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    siblings = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    if siblings.is_file() and len(siblings.read_text().replace("-", ",").split(",")) > 1:
        return max(1, available // 2)
    return available


def peak_memory() -> int | None:
    """Most resident memory of this process so far, in bytes; None where the system cannot tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
