"""Who measures in which stage: this process, or workers that Ray runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tightfit.search.machine import physical_cores
from tightfit.search.stages.prepare import Bench
from tightfit.workers.cluster import WorkerError
from tightfit.workers.crew import Alone


@contextmanager
def whole_run_crew(bench: Bench) -> Iterator[None]:
    """Measure with the workers that the settings give to the whole run, if any."""
    workers = bench.settings.workers
    # With a cluster, no number means all of it.
    count = 0 if workers.count is None and workers.address is None else workers.count
    with _crew(bench, count):
        yield


@contextmanager
def validation_crew(bench: Bench) -> Iterator[None]:
    """Measure with the workers of the last stage, where the whole run has none."""
    if not isinstance(bench.archive.crew, Alone):
        yield
        return
    count = bench.settings.workers.validation
    if count is not None:
        with _crew(bench, count):
            yield
        return
    # Nobody asked for workers here, so going on without them is better than to end.
    on_cpu = bench.evaluator.replica.device.type == "cpu"
    with ExitStack() as stack:
        try:
            stack.enter_context(_crew(bench, physical_cores() if on_cpu else 0))
        except WorkerError as error:
            bench.progress.note(f"measuring in this process, since {error}")
        yield


@contextmanager
def _crew(bench: Bench, count: int | None) -> Iterator[None]:
    if count == 0:
        yield
        return
    from tightfit.workers.pool import RayPool

    archive, before = bench.archive, bench.archive.crew
    with bench.progress.stage("workers", "starting workers"):
        pool = RayPool(bench.recipe, count, archive.evaluator, bench.settings.workers.address)
    archive.crew = pool
    try:
        yield
    finally:
        archive.crew = before
        pool.close()
