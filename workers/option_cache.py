"""The option cache: every (site, option) is quantized once per run and kept packed on disk."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tightfit.compress import PackedTensor
from tightfit.spaces import Option
from tightfit.workers.tensor_files import read_tensors, sweep, write_tensors


class OptionCache:
    """Packed matrices by site and option, memory-mapped when read.

    Files stay between runs of the same folder; the least recently used ones are deleted when all
    together would pass the cap, and are quantized again when asked for. A matrix that alone would
    pass it is never kept.

    One process writes; any number of others may read beside it, with ``writable=False``. A file that
    was deleted behind a cache's back is made again.

    Args:
        folder: where the files live. Its name should carry the content key of what they hold.
        cap: most bytes that the files may take together.
        writable: whether matrices that are missing are written. A cache that is not writable touches
            nothing: it reads whatever file is there when asked, and builds the rest in memory.
    """

    def __init__(self, folder: Path, cap: int, writable: bool = True) -> None:
        self._folder = folder
        self._cap = cap
        self._writable = writable
        self._sizes: OrderedDict[str, int] = OrderedDict()
        if writable:
            self._take_over()

    def _take_over(self) -> None:
        """Find what earlier runs left, and delete what their writers did not finish."""
        folder = self._folder
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        found = []
        for file in folder.glob("*.safetensors"):
            with suppress(FileNotFoundError):  # deleted by somebody else
                stat = file.stat()
                found.append((stat.st_mtime, file.name, stat.st_size))
        self._sizes = OrderedDict((name, size) for _, name, size in sorted(found))

    @property
    def nbytes(self) -> int:
        """Bytes of all files that this cache answers for: none where it only reads."""
        return sum(self._sizes.values())

    def get(
        self, site: str, option: Option, shape: tuple[int, int], build: Callable[[], PackedTensor]
    ) -> PackedTensor:
        """Return a packed matrix, calling ``build`` only if it is not on disk.

        Args:
            site: which matrix.
            option: how it is stored.
            shape: its (rows, cols).
            build: quantizes it.
        """
        name = f"{site}.{option.name}.safetensors"
        if name in self._sizes or not self._writable:
            tensors: dict[str, Any] | None = read_tensors(self._folder / name)
            if tensors is not None:
                self._touch(name)
                return PackedTensor(option, *shape, **tensors)
            self._sizes.pop(name, None)  # deleted by somebody else, or damaged
        packed = build()
        if self._writable:
            self._write(name, packed)
        return packed

    def _touch(self, name: str) -> None:
        """Note that a file was used, so that the order of use outlives this process."""
        if self._writable:
            with suppress(FileNotFoundError):  # deleted by somebody else; what was read stays
                os.utime(self._folder / name)
            self._sizes.move_to_end(name)

    def _write(self, name: str, packed: PackedTensor) -> None:
        size = write_tensors(self._folder / name, packed.tensors())
        if size > self._cap:
            (self._folder / name).unlink(missing_ok=True)
            return
        while self.nbytes + size > self._cap:
            oldest, _ = self._sizes.popitem(last=False)
            (self._folder / oldest).unlink(missing_ok=True)
        self._sizes[name] = size
