"""What runs inside a worker's process: one replica of the model on one thread."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tightfit.spaces import TightfitError
from tightfit.workers.cluster import WorkerError
from tightfit.workers.crew import Job, Outcome, measure
from tightfit.workers.recipe import Recipe, describe_setup

if TYPE_CHECKING:
    from tightfit.workers.evaluator import Evaluator


@dataclass(frozen=True)
class Ready:
    """A worker that has loaded everything.

    Attributes:
        pid: its process.
        host: its machine.
        setup: what its losses depend on, see :func:`tightfit.workers.recipe.describe_setup`.
    """

    pid: int
    host: str
    setup: Mapping[str, str]


@dataclass(frozen=True)
class Fault:
    """Something that went wrong while a job was measured: its own fault, or that of the moment.

    Memory may have run out, which another try elsewhere survives; it counts like a death.
    """

    reason: str


class Worker:
    """Measures jobs one by one. What goes wrong is returned, so that only a death is a death.

    Args:
        recipe: how to build the evaluator.
        importance: content of the recipe's importance file, for a machine that does not have it.
    """

    def __init__(self, recipe: Recipe, importance: bytes | None) -> None:
        self._recipe = recipe
        self._importance = importance
        self._evaluator: Evaluator | None = None

    def here(self) -> None:
        """Do nothing: who gets an answer knows that the process runs."""

    def prepare(self) -> Ready | TightfitError:
        """Load the model."""
        import torch

        torch.set_num_threads(1)
        try:
            return Ready(os.getpid(), platform.node(), describe_setup(self._built()))
        except TightfitError as error:
            return error
        except Exception as error:
            return WorkerError(f"workers: one on {platform.node()} could not get ready: {_sentence(error)}")

    def measure(self, job: Job) -> Outcome | Fault | TightfitError:
        """Measure a job.

        Returns:
            What came of it, what went wrong on the way, or the error that says that no worker can go on.
        """
        evaluator = self._built()
        try:
            return measure(evaluator, self._recipe.texts, job)
        except Exception as error:
            self._evaluator = None  # it may have stopped half way between two plans
            return error if isinstance(error, TightfitError) else Fault(_sentence(error))

    def _built(self) -> Evaluator:
        if self._evaluator is None:
            self._evaluator = self._recipe.build(1, self._importance)
        return self._evaluator


def _sentence(error: Exception) -> str:
    """Type and first line of an error, ended by a full stop."""
    first = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
    return f"{type(error).__name__}: {first}."
