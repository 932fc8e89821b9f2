"""The weights of a model folder: out of the very files that Transformers loads, one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.spaces import InputError

if TYPE_CHECKING:
    from torch import Tensor

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
# Transformers' base model has no such prefix, and files of some old checkpoints neither.
_PREFIXES = ("model.", "transformer.")


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a model folder, whatever else lies in it.

    Attributes:
        folder: with ``model.safetensors``, or an index and its parts.
    """

    folder: Path

    @cached_property
    def files(self) -> dict[str, Path]:
        """Tensor name → file.

        Raises:
            InputError: a file cannot be read.
        """
        found: dict[str, Path] = {}
        for path in loaded_files(self.folder):
            with _opened(path) as file:
                found |= dict.fromkeys(file.keys(), path)
        return found

    def stored_name(self, *names: str) -> str:
        """Return the first name under which a file has the tensor.

        Args:
            names: the ones that it may have, the likeliest first.

        Raises:
            InputError: no file has it.
        """
        if (name := self._find(names)) is None:
            raise InputError(f"{self.folder} has no tensor {names[0]}.")
        return name

    def has(self, *names: str) -> bool:
        """Whether a file has the tensor."""
        return self._find(names) is not None

    def shape(self, *names: str) -> tuple[int, ...]:
        """Return a tensor's shape, without reading its values."""
        stored = self.stored_name(*names)
        with _opened(self.files[stored]) as file:
            return tuple(file.get_slice(stored).get_shape())

    def read(self, *names: str) -> Tensor:
        """Return a tensor as float32."""
        stored = self.stored_name(*names)
        with _opened(self.files[stored]) as file:
            values: Tensor = file.get_tensor(stored).float()
        return values

    def _find(self, names: Sequence[str]) -> str | None:
        spellings = (spelling for name in names for spelling in _spellings(name))
        return next((spelling for spelling in spellings if spelling in self.files), None)


def loaded_files(folder: Path) -> list[Path]:
    """Return the files that Transformers loads a folder's weights from, in its order.

    Others may lie beside them: copies, older versions, the same weights under other names. See
    ``_get_resolved_checkpoint_files`` in Transformers' ``modeling_utils.py``.

    Raises:
        InputError: there are none, or the index cannot be read.
    """
    named = _named_by_config(folder)
    if named is None and (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    index = folder / (named or _INDEX)
    if named is not None and not named.endswith(".index.json"):
        return [index]
    if named is None and not index.is_file():
        raise InputError(f"{folder} has neither {_WHOLE} nor {_INDEX}.")
    try:
        parts = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{index} cannot be read ({error}).") from error
    return [folder / part for part in sorted(parts)]


def _named_by_config(folder: Path) -> str | None:
    """Return the file that a model's configuration names itself, which hardly any does."""
    try:
        named = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("transformers_weights")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{folder / 'config.json'} cannot be read ({error}).") from error
    return str(named) if named else None


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error


def _spellings(name: str) -> list[str]:
    return [name, *(name.removeprefix(prefix) for prefix in _PREFIXES)]
