"""Torch on one thread for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[int]:
    """Keep torch from splitting operations over threads, so that results depend on no number of cores.

    Yields:
        The number of threads that it had before, for work that is split otherwise.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)
