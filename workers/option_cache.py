"""The option cache: every (site, option) is quantized once per run and kept packed on disk."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
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

    Args:
        folder: where the files live. Its name should carry the content key of what they hold.
        cap: most bytes that the files may take together.
    """

    def __init__(self, folder: Path, cap: int) -> None:
        self._folder = folder
        self._cap = cap
        folder.mkdir(parents=True, exist_ok=True)
        for partial in folder.glob(".*.safetensors.*"):
            writer = partial.name.rpartition(".")[2]
            if writer.isdigit() and not _is_running(int(writer)):
                partial.unlink(missing_ok=True)
        files = sorted(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
        self._sizes = OrderedDict((file.name, file.stat().st_size) for file in files)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
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
        if name in self._sizes:
            self._sizes.move_to_end(name)
            os.utime(self._folder / name)  # the order of use outlives this process
            with safe_open(self._folder / name, framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return PackedTensor(option, *shape, **tensors)
        packed = build()
        self._write(name, packed)
        return packed

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
