"""How another process builds an evaluator equal to this one."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.spaces import InputError
from tightfit.workers.tensor_files import write_tensors
from tightfit.workers.text import Window

if TYPE_CHECKING:
    from torch import Tensor

    from tightfit.workers.evaluator import Evaluator


@dataclass(frozen=True)
class Recipe:
    """All that an evaluator is built from: the heavy parts by path, so that processes share them.

    Another machine may lack these paths. There the model is found again by its name, and what would
    be kept in the run's folders is kept in a temporary one.

    Attributes:
        model: alias, local folder or Hugging Face id that the model came from.
        folder: where its files were.
        digest: SHA-256 of its weights and config.
        device: torch device.
        importance: safetensors file with one tensor per site, see :func:`write_importance`.
        options: folder of the option cache; it is only read.
        cap: most bytes of an option cache that has to be made.
        reference: folder of the uncompressed model's predictions.
        identity: as of the evaluator: digests of what else losses depend on.
        texts: windows by part of the text.
    """

    model: str
    folder: Path
    digest: str
    device: str
    importance: Path
    options: Path
    cap: int
    reference: Path
    identity: Mapping[str, str]
    texts: Mapping[str, tuple[Window, ...]]

    def build(self, threads: int, importance: bytes | None = None) -> Evaluator:
        """Build the evaluator.

        Args:
            threads: windows that run side by side.
            importance: content of the file of that name, for machines that do not have it.

        Raises:
            InputError: the model or the importances are not there, or are not the ones meant.
        """
        from tightfit.compress import Replica
        from tightfit.workers.evaluator import Evaluator
        from tightfit.workers.models import load_model
        from tightfit.workers.option_cache import OptionCache
        from tightfit.workers.scratch import make_scratch

        named = str(self.folder) if self.folder.is_dir() else self.model
        loaded = load_model(named, device=self.device)
        if loaded.digest != self.digest:
            raise InputError(
                f"model {named!r} on {platform.node()} has the digest {loaded.digest}, but the plans are for "
                f"{self.digest}; put the same model there."
            )
        energies = self._importances(importance)
        shared = self.options.is_dir()
        options = self.options if shared else make_scratch() / "options"
        reference = self.reference if _may_write(self.reference) else make_scratch() / "reference"
        return Evaluator(
            Replica(loaded.model, loaded.geometry),
            {site: energy.to(self.device) for site, energy in energies.items()},
            OptionCache(options, self.cap, writable=not shared),
            reference,
            self.identity,
            threads,
        )

    def _importances(self, content: bytes | None) -> dict[str, Tensor]:
        from safetensors.torch import load

        if self.importance.is_file():
            content = self.importance.read_bytes()
        if content is None:
            raise InputError(f"{self.importance}: is not on {platform.node()}, and plans need it.")
        energies = load(content)
        expected = self.identity.get("importance")
        if expected is not None and digest_importance(energies) != expected:
            found = digest_importance(energies)
            raise InputError(
                f"{self.importance}: holds importances of digest {found}, but the plans are for {expected}."
            )
        return energies


def write_importance(path: Path, importance: Mapping[str, Tensor]) -> None:
    """Write the importances of all sites into a safetensors file, whole or not at all.

    Raises:
        DiskError: it cannot be written.
    """
    # The sites of a tied matrix share one tensor, which safetensors refuses to write twice.
    write_tensors(path, {site: values.cpu().clone() for site, values in importance.items()})


def digest_importance(importance: Mapping[str, Tensor]) -> str:
    """SHA-256 of the importances of all sites."""
    content = hashlib.sha256()
    for site, values in sorted(importance.items()):
        content.update(site.encode() + b"\0" + values.cpu().numpy().tobytes())
    return content.hexdigest()


def describe_setup(evaluator: Evaluator) -> dict[str, str]:
    """Say what losses depend on besides plan, model and text, in words for messages.

    Processors that differ in their vector instructions round differently, so these count too.
    """
    import torch
    import transformers

    from tightfit.compress import QUANTIZER_VERSION
    from tightfit.workers.evaluator import PROTOCOL_VERSION
    from tightfit.workers.prompts import CACHE_VERSION

    replica = evaluator.replica
    on_cpu = replica.device.type == "cpu"
    return {
        "torch version": torch.__version__,
        "Transformers version": transformers.__version__,
        "quantizer version": str(QUANTIZER_VERSION),
        "protocol version": str(PROTOCOL_VERSION),
        "cache version": str(CACHE_VERSION),
        "device": str(replica.device),
        "number format": str(replica.dtype),
        "machine type": platform.machine(),
        "vector instructions": torch.backends.cpu.get_cpu_capability() if on_cpu else "any",
        "content key": evaluator.key({}),
    }


def _may_write(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK)
