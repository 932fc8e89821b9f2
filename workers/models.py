"""Load a model, its tokenizer and its geometry, and prove that they belong together.

Models are loaded in float32 with gradients off. No code from a model folder is ever run, and only
safetensors weights are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.spaces import Geometry, InputError, read_geometry
from tightfit.workers import sources

_HEADER_SIZE = 8
_UNHASHED_KEYS = ("_name_or_path", "transformers_version")
_PREPARED = "v1"  # raise it whenever what is written for an alias changes


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be measured.

    Attributes:
        model: the Transformers causal language model: evaluation mode, float32, no gradients.
        tokenizer: its Transformers tokenizer.
        geometry: its shape; every linear's path exists in ``model`` with these rows and columns.
        digest: SHA-256 of weights and config, see :func:`digest_folder`.
        folder: where it was loaded from.
    """

    model: Any
    tokenizer: Any
    geometry: Geometry
    digest: str
    folder: Path


def load_model(model: str, *, device: str = "cpu") -> LoadedModel:
    """Load an alias, a local folder or a Hugging Face id.

    Args:
        model: see :func:`tightfit.workers.sources.resolve_folder`.
        device: torch device that the weights are put on, in float32.

    Raises:
        InputError: there is no such model, its family is not supported, or its files do not fit
            together.
    """
    from tightfit.compress import check_geometry

    folder = sources.resolve_folder(model)
    geometry = read_geometry(sources.read_config(str(folder)))
    network, tokenizer = _read_folder(folder, model)
    check_geometry(network, geometry)
    network.to(device).eval().requires_grad_(False)
    return LoadedModel(network, tokenizer, geometry, digest_folder(folder), folder)


def _read_folder(folder: Path, model: str) -> tuple[Any, Any]:
    """Return the float32 model and the tokenizer of a folder; ``model`` is its name in messages."""
    import torch
    import transformers
    from safetensors import SafetensorError

    load_network: Any = transformers.AutoModelForCausalLM.from_pretrained
    try:
        with _no_progress_bars():
            network, loading = load_network(
                folder,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"model {model!r} could not be loaded: {reason}") from error
    if missing := sorted(loading["missing_keys"]):
        # Transformers only warns, and fills them with random numbers.
        raise InputError(f"model {model!r}: {len(missing)} tensors are not in its files, {missing[0]} first.")
    return network, tokenizer


def prepare_alias(name: str) -> Path:
    """Return the model folder of an alias, made in the cache the first time it is asked for.

    Raises:
        InputError: the name is no alias, or its source cannot be downloaded.
    """
    if name == sources.LAB_MODEL:
        from tightfit.workers.lab import LAB, train

        return train(LAB)
    if name not in sources.ALIASES:
        raise InputError(f"{name!r} is no alias (one of {', '.join(sources.ALIASES)}).")
    from tightfit.workers.smollm2 import write_model, write_offgrid_model

    final = sources.cache_folder() / "models" / f"{name}-{_PREPARED}"
    if name == sources.SMOLLM2:
        return sources.build_once(final, write_model)
    return sources.build_once(
        final, lambda folder: write_offgrid_model(folder, prepare_alias(sources.SMOLLM2))
    )


def digest_folder(folder: Path) -> str:
    """SHA-256 over the config and the sorted tensors (name, dtype, shape, bytes) of a model folder.

    The same weights give the same digest however they are spread over files; library versions and
    paths written into the config do not count.
    """
    config = sources.read_config(str(folder))
    config = {key: value for key, value in config.items() if key not in _UNHASHED_KEYS}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name, entry, path, start in sorted(_tensors(folder), key=lambda tensor: tensor[0]):
        digest.update(json.dumps([name, entry["dtype"], entry["shape"]]).encode())
        begin, end = entry["data_offsets"]
        with path.open("rb") as file:
            file.seek(start + begin)
            digest.update(file.read(end - begin))
    return digest.hexdigest()


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep Transformers from drawing bars for what takes a second."""
    import transformers

    logging: Any = transformers.utils.logging  # its functions have no types
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _tensors(folder: Path) -> list[tuple[str, dict[str, Any], Path, int]]:
    """Name, header entry, file, and where the data begins, of every tensor of a folder.

    A safetensors file is an 8-byte little-endian header length, the JSON header, and the data.
    """
    found = []
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_HEADER_SIZE), "little")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found += [(name, entry, path, _HEADER_SIZE + length) for name, entry in header.items()]
    return found
