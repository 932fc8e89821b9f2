"""Where llama.cpp comes from: the shared object in the ``xllamacpp`` wheel.

The wheel's Python module is not imported: its shared object also exports the C interface.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path

from tightfit.spaces import InputError, TightfitError
from tightfit.workers.llamacpp.engine import Library, UnusableError
from tightfit.workers.llamacpp.structs import TESTED

_PACKAGE = "xllamacpp"
INSTALL = f"pip install {_PACKAGE}=={TESTED}"
"""The command that installs the tested version."""


class LlamaError(TightfitError):
    """The llama.cpp that is installed cannot be used, or stopped working."""


def find_library() -> Path:
    """Return the path of llama.cpp's shared object, loading nothing.

    Raises:
        InputError: the wheel is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is not None and spec.origin is not None:
        for path in sorted(Path(spec.origin).parent.glob(f"{_PACKAGE}*")):
            if path.suffix in (".so", ".pyd"):
                return path
    raise InputError(f"llama.cpp is not installed: the package {_PACKAGE} is missing; {INSTALL}.")


def library_version() -> str:
    """Return the version of the installed wheel.

    Raises:
        InputError: the wheel is not installed.
    """
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(
            f"llama.cpp is not installed: the package {_PACKAGE} is missing; {INSTALL}."
        ) from error


@cache
def load_library() -> Library:
    """Return llama.cpp, loaded once per process.

    Raises:
        InputError: the wheel is not installed.
        LlamaError: the installed version is not one that can be called.
    """
    path = find_library()
    try:
        return Library(str(path))
    except UnusableError as error:
        raise unusable(str(error)) from error


def unusable(reason: str) -> LlamaError:
    """Return the error for a library that cannot be called."""
    return LlamaError(
        f"llama.cpp from {_PACKAGE} {library_version()} cannot be used: {reason}; the tested version is "
        f"{TESTED}: {INSTALL}."
    )
