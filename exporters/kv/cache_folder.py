"""The caches of a plan as they were measured, in a folder that needs torch and transformers alone.

It holds ``cache.json`` (the format and the bytes of every layer), the code that made the measured caches,
copied to the letter as ``kvcache``, and ``load_cache.py``, which puts both together.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tightfit import __version__
from tightfit.exporters.base import Shipment
from tightfit.exporters.kv.layers import LayerCache, is_plain, layer_caches, load_of
from tightfit.spaces import InputError

CACHE_VERSION = 1
"""Version of ``cache.json``."""

FACTS, CODE, LOADER = "cache.json", "kvcache", "load_cache.py"
_COMPILED = "__pycache__"
_CODE_HERE = Path(__file__).parents[2] / "compress" / CODE  # found without importing it, which loads torch


def export(shipment: Shipment, out: Path) -> Path:
    """Write the folder and return its path.

    Raises:
        InputError: it cannot be written, or is there with other things in it; the plan is not one of the
            space, or has no caches.
    """
    content = describe(shipment)
    with _put_folder_in_place(out) as partial:
        (partial / FACTS).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(Path(__file__).with_name(LOADER), partial / LOADER)
        compiled = shutil.ignore_patterns(_COMPILED)
        shutil.copytree(_CODE_HERE, partial / CODE, ignore=compiled, copy_function=shutil.copyfile)
    return out


def describe(shipment: Shipment) -> dict[str, Any]:
    """Return the content of ``cache.json``.

    Bytes are those at context and batch; those of the layers add up to ``bytes``. ``plain`` is true where
    Transformers' own cache classes hold as much, in the model's dtype.
    """
    load, caches = load_of(shipment.space), layer_caches(shipment)
    return {
        "tightfit_cache": CACHE_VERSION,
        "kind": "artefact",
        "made_by": f"Tightfit {__version__} (Apache-2.0)",
        "model": dict(shipment.model),
        "plan": shipment.plan.digest,
        "context": load.context,
        "batch": load.batch,
        "shared_prefix": load.shared_prefix,
        "bytes": sum(cache.bytes for cache in caches),
        "plain": all(is_plain(cache.option) for cache in caches),
        "cannot_carry": _cannot_carry(shipment),
        "layers": [_layer(cache) for cache in caches],
    }


def summary(shipment: Shipment, out: Path) -> list[str]:
    """Return lines for people: how to generate with it."""
    return [shlex.join(["python", str(out / LOADER), "MODEL_FOLDER", "Once upon a time"])]


def _layer(cache: LayerCache) -> dict[str, Any]:
    facts: dict[str, Any] = {"option": cache.option.name, "bytes": cache.bytes}
    if is_plain(cache.option):
        facts["class"] = "DynamicLayer" if cache.shape.window is None else "DynamicSlidingWindowLayer"
    return {**facts, "format": cache.option.to_dict()}


def _cannot_carry(shipment: Shipment) -> list[str]:
    words = ["the weights of the plan: they come with the model", "padding: prompts have one length"]
    load = load_of(shipment.space)
    if load.shared_prefix and load.batch > 1:
        whole = load.batch * sum(
            cache.option.cache_bytes(cache.shape, load.context) for cache in layer_caches(shipment)
        )
        words.append(
            "a common prefix that is stored once: every sequence has its own copy, which takes "
            f"{whole:,} B in all"
        )
    return words


@contextmanager
def _put_folder_in_place(out: Path) -> Iterator[Path]:
    """Give a folder beside ``out`` to fill, which replaces it once everything went well, or vanishes.

    Raises:
        InputError: there cannot be such a folder, or what is there holds more than an earlier export.
    """
    if out.is_dir() and not {path.name for path in out.iterdir()} <= {FACTS, CODE, LOADER, _COMPILED}:
        raise InputError(f"{out} is a folder with other things in it: name a new one.")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: name a folder to write.")
    place = out.absolute()
    partial, earlier = (place.with_name(f".{place.name}.{os.getpid()}{end}") for end in ("", ".old"))
    try:
        partial.mkdir()
        yield partial
        if place.is_dir():
            os.replace(place, earlier)
        os.replace(partial, place)
    except OSError as error:
        # Copying many files gathers their failures, each with its reason.
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
        raise InputError(f"{out} cannot be written ({reason}).") from error
    finally:
        if earlier.is_dir() and not place.exists():
            os.replace(earlier, place)
        for folder in (partial, earlier):
            shutil.rmtree(folder, ignore_errors=True)
