"""Scores by decision that cost a backward pass, kept in the run's folder by content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from tightfit.search.stages.prepare import Bench
from tightfit.workers.tensor_files import read_tensors, write_tensors


def kept_scores(
    bench: Bench,
    kind: str,
    what: Mapping[str, str],
    make: Callable[[], Sequence[Tensor]],
    cost: int,
    count: int,
) -> list[Tensor]:
    """Return scores, making them only if they were not made before.

    Args:
        bench: of the run.
        kind: name of the folder that they are kept in.
        what: all that they depend on beside space, seed and what every measurement depends on.
        make: computes one tensor per decision.
        cost: tokens that are charged where they are made.
        count: number of decisions that are scored.
    """
    inputs = {**what, "space": bench.space.digest(), "seed": str(bench.settings.seed)}
    path = bench.store.path.parent / kind / f"{bench.evaluator.key(inputs)}.safetensors"
    scores = read_tensors(path)
    if scores is None:
        scores = {str(d): row for d, row in enumerate(make())}
        write_tensors(path, scores)
        bench.archive.tokens += cost
    return [scores[str(d)] for d in range(count)]
