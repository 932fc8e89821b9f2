"""What an exporter is given, and how it writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.spaces import InputError, Option, Plan, Space

if TYPE_CHECKING:
    from torch import Tensor

    from tightfit.compress import PackedTensor


@dataclass(frozen=True)
class Source:
    """Where an exporter finds the model's files, and its matrices as they were measured.

    Attributes:
        folder: model folder of Transformers: ``config.json``, tokenizer, ``*.safetensors``.
        packed: (site, option) → the packed matrix, rows in Transformers' order.
        importance: per site the mean square of its input features, float32 of shape (cols,).
    """

    folder: Path
    packed: Callable[[str, Option], PackedTensor]
    importance: Mapping[str, Tensor]


@dataclass(frozen=True)
class Shipment:
    """A plan on its way to another tool.

    Attributes:
        model: name, digest and family of the model that the plan was found for.
        source: the weights; None where only the plan is known.
        facts: what the run found out about the plan, for people.
    """

    space: Space
    plan: Plan
    model: Mapping[str, Any]
    source: Source | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def put_in_place(out: Path) -> Iterator[Path]:
    """Give a path beside ``out`` to write to, which replaces it once everything went well, or vanishes.

    Raises:
        InputError: there cannot be such a file.
    """
    if out.is_dir():
        raise InputError(f"{out} is a folder: name the file to write.")
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        yield partial
        os.replace(partial, out)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror or error}).") from error
    finally:
        partial.unlink(missing_ok=True)


def write_whole(out: Path, text: str) -> Path:
    """Write a text file whole or not at all, replacing an earlier one.

    Returns:
        The path written.

    Raises:
        InputError: there cannot be such a file.
    """
    with put_in_place(out) as partial:
        partial.write_text(text, encoding="utf-8")
    return out
