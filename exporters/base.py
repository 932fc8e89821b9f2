"""What an exporter is given, and how it writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.spaces import InputError, Plan, Space


@dataclass(frozen=True)
class Shipment:
    """A plan on its way to another tool.

    Attributes:
        model: name, digest and family of the model that the plan was found for.
    """

    space: Space
    plan: Plan
    model: Mapping[str, Any]


def write_whole(out: Path, text: str) -> Path:
    """Write a text file whole or not at all, replacing an earlier one.

    Returns:
        The path written.

    Raises:
        InputError: there cannot be such a file.
    """
    if out.is_dir():
        raise InputError(f"{out} is a folder: name the file to write.")
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, out)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}).") from error
    finally:
        partial.unlink(missing_ok=True)
    return out
