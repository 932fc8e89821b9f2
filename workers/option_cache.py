"""The option cache: every (site, option) is quantized once per run and kept packed on disk."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from tightfit.compress import PackedTensor
from tightfit.spaces import WeightOption


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
        for partial in folder.glob(".*.safetensors.*"):
            writer = partial.name.rpartition(".")[2]
            if writer.isdigit() and not _is_running(int(writer)):
                partial.unlink(missing_ok=True)
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
        self, site: str, option: WeightOption, shape: tuple[int, int], build: Callable[[], PackedTensor]
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
            try:
                return self._read(name, option, shape)
            except FileNotFoundError:  # deleted by somebody else, maybe a moment ago
                self._sizes.pop(name, None)
        packed = build()
        if self._writable:
            self._write(name, packed)
        return packed

    def _read(self, name: str, option: WeightOption, shape: tuple[int, int]) -> PackedTensor:
        with safe_open(self._folder / name, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if self._writable:
            os.utime(self._folder / name)  # the order of use outlives this process
            self._sizes.move_to_end(name)
        return PackedTensor(option, *shape, **tensors)

    def _write(self, name: str, packed: PackedTensor) -> None:
        # Written aside and renamed, so that a killed run never leaves half a file behind.
        partial = self._folder / f".{name}.{os.getpid()}"
        save_file({key: tensor.cpu().contiguous() for key, tensor in packed.tensors().items()}, partial)
        size = partial.stat().st_size
        if size > self._cap:
            partial.unlink()
            return
        while self.nbytes + size > self._cap:
            oldest, _ = self._sizes.popitem(last=False)
            (self._folder / oldest).unlink(missing_ok=True)
        os.replace(partial, self._folder / name)
        self._sizes[name] = size


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return True
