"""Prepare: load the model, split the text, take calibration statistics, quantize every option."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tightfit.compress import QUANTIZER_VERSION, Replica, input_energy
from tightfit.search.archive import Archive
from tightfit.search.machine import physical_cores
from tightfit.search.progress import Progress
from tightfit.search.settings import Settings
from tightfit.search.store import Store
from tightfit.spaces import InputError, Space
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.models import LoadedModel, load_model
from tightfit.workers.option_cache import OptionCache
from tightfit.workers.text import Splits, load_text, split_documents

SPLITS = ("calibration", "selection", "validation", "holdout")


@dataclass(frozen=True)
class Bench:
    """What the stages work with.

    Attributes:
        limit: most weight bytes of a plan.
        archive: measures plans.
    """

    settings: Settings
    store: Store
    space: Space
    limit: int
    archive: Archive
    progress: Progress

    @property
    def evaluator(self) -> Evaluator:
        """The evaluator behind the archive."""
        return self.archive.evaluator


def prepare(
    settings: Settings, store: Store, space: Space, limit: int, folder: Path, progress: Progress
) -> Bench:
    """Load everything that measuring needs.

    Raises:
        InputError: the model or the text cannot be used, or the store holds a run of another model.
    """
    torch.set_num_threads(settings.threads or physical_cores())
    with progress.stage("prepare", "loading model and text"):
        loaded = load_model(settings.model, device=pick_device(settings.device))
        _same_model(store, loaded, settings)
        splits = _split(settings, loaded, store)
    replica = Replica(loaded.model, loaded.geometry)
    calibration = [
        torch.from_numpy(window.tokens).to(replica.device) for window in splits["calibration"].windows
    ]
    with progress.stage("prepare", "calibration statistics"):
        importance = input_energy(loaded.model, loaded.geometry, calibration)
    identity = {"model": loaded.digest, "calibration": splits["calibration"].digest}
    key = f"{loaded.digest[:16]}-{splits['calibration'].digest[:16]}-v{QUANTIZER_VERSION}"
    cache = OptionCache(folder / "options" / key, settings.limits.option_cache)
    evaluator = Evaluator(replica, importance, cache, folder / "reference", identity)
    windows = {name: splits[name].windows for name in SPLITS}
    bench = Bench(settings, store, space, limit, Archive(store, space, evaluator, windows), progress)
    _quantize(bench)
    return bench


def _same_model(store: Store, loaded: LoadedModel, settings: Settings) -> None:
    """Record the model, or refuse a run folder whose measurements are of another one."""
    known = store.get("model")
    if known and known.get("digest") not in (None, loaded.digest):
        raise InputError(
            f"{store.path.parent} holds a run of other model weights (model digest {known['digest'][:12]}, "
            f"now {loaded.digest[:12]} for {settings.model}): give this run another name."
        )
    store.put(
        "model",
        {
            "name": settings.model,
            "folder": str(loaded.folder),
            "digest": loaded.digest,
            "family": loaded.geometry.family,
            "parameters": loaded.geometry.parameters,
            "layers": loaded.geometry.layers,
        },
    )


def _split(settings: Settings, loaded: LoadedModel, store: Store) -> Splits:
    text = settings.text
    needs = {name: getattr(text, name) for name in SPLITS}
    loaded_text = load_text(text.source, text.dataset)
    splits = split_documents(
        loaded_text, loaded.tokenizer, needs, text.sequence, settings.seed, text.allow_shortfall
    )
    store.put(
        "text",
        {
            "source": text.source or (text.dataset.id if text.dataset else ""),
            "removed_share": loaded_text.removed_share,
            "splits": {
                name: {
                    "asked": splits[name].asked,
                    "used": splits[name].used,
                    "documents": splits[name].documents,
                }
                for name in SPLITS
            },
        },
    )
    return splits


def _quantize(bench: Bench) -> None:
    """Fill the option cache, so that later stages only read."""
    pairs = [(site, option) for d in bench.space.decisions for site in d.sites for option in d.options]
    owned = [(site, o) for site, o in pairs if bench.space.geometry.linear(site).tied_to is None]
    with bench.progress.stage("prepare", "quantizing every option") as tick:
        for done, (site, option) in enumerate(owned, 1):
            bench.evaluator.packed(site, option)
            tick(done, len(owned))


def pick_device(name: str) -> str:
    """Return the device to use; ``auto`` takes an accelerator where there is one.

    Raises:
        InputError: the device asked for is not there.
    """
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if present[device])
    if not present[name]:
        have = ", ".join(device for device, there in present.items() if there)
        raise InputError(f"device: {name} is not available here (available: {have}).")
    return name
