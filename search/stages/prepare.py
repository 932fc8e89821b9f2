"""Prepare: load the model, split the text, take calibration statistics, quantize every option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from tightfit.compress import QUANTIZER_VERSION, Replica, input_energy
from tightfit.exporters.gguf import check
from tightfit.search.archive import Archive
from tightfit.search.contexts import prefix_of
from tightfit.search.cost import runs_files
from tightfit.search.identity import identify
from tightfit.search.machine import physical_cores
from tightfit.search.probes import COPY, HALF
from tightfit.search.progress import Progress
from tightfit.search.settings import Settings
from tightfit.search.store import Store
from tightfit.spaces import InputError, Space
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.llamacpp.library import load_library
from tightfit.workers.models import LoadedModel, load_model
from tightfit.workers.option_cache import OptionCache
from tightfit.workers.probes import planted, shorter
from tightfit.workers.recipe import Recipe, digest_importance, write_importance
from tightfit.workers.text import Splits, Text, Window, load_text, split_documents

SPLITS = ("calibration", "selection", "validation", "holdout")


@dataclass(frozen=True)
class Bench:
    """What the stages work with.

    Attributes:
        limit: most bytes of a plan.
        archive: measures plans.
        recipe: what another process needs to measure them alike.
        before: what earlier processes of this run spent: seconds by stage, and their work.
    """

    settings: Settings
    store: Store
    space: Space
    limit: int
    archive: Archive
    progress: Progress
    recipe: Recipe
    before: Mapping[str, Any]

    @property
    def evaluator(self) -> Evaluator:
        """The evaluator behind the archive."""
        return self.archive.evaluator

    @property
    def spent(self) -> float:
        """Seconds that this run has worked, in earlier processes and in this one; pauses do not count."""
        return float(sum(self.before["timing"].values()) + sum(self.progress.seconds.values()))

    def book(self) -> None:
        """Write into the store what this run has spent so far."""
        timing, archive = dict(self.before["timing"]), self.archive
        for name, seconds in self.progress.seconds.items():
            timing[name] = round(timing.get(name, 0.0) + seconds, 2)
        self.store.put("timing", timing)
        spent = {"measured": archive.made, "reused": archive.reused, "tokens": archive.tokens}
        work = self.before["work"]
        self.store.put("work", {key: work.get(key, 0) + count for key, count in spent.items()})


def prepare(
    settings: Settings,
    store: Store,
    space: Space,
    limit: int,
    folder: Path,
    progress: Progress,
    take_over: Callable[[], None] = lambda: None,
) -> Bench:
    """Load everything that measuring needs.

    Args:
        settings: of the run.
        store: of the run.
        space: what may be chosen.
        limit: most bytes of a plan.
        folder: of the run.
        progress: where progress lines go.
        take_over: called once it is sure that the store's measurements rest on what was loaded.

    Raises:
        InputError: the model or the text cannot be used, or the store holds a run of another model.
    """
    threads = settings.threads or physical_cores()
    torch.set_num_threads(threads)
    device = pick_device(settings.device)
    with progress.stage("prepare", "loading model and text"):
        text = load_text(settings.text.source, settings.text.dataset)
        loaded = load_model(settings.model, device=device)
        if settings.target == "llama.cpp":
            _check_tool(settings, loaded)
        splits = split_text(settings, loaded, text, prefix_of(settings, space))
    replica = Replica(loaded.model, loaded.geometry)
    before = {key: store.get(key, {}) for key in ("timing", "work")}
    calibration = [
        torch.from_numpy(window.after(0).tokens).to(replica.device)
        for window in splits["calibration"].windows
    ]
    with progress.stage("prepare", "calibration statistics"):
        importance = input_energy(loaded.model, loaded.geometry, calibration)
    facts = facts_of(loaded, text, splits, threads, device)
    identify(store, facts)
    # Names the importances whose matrices an export ships; measurements are known by it anyway.
    store.put("identity", {**facts, "importance digest": digest_importance(importance)})
    take_over()
    _record(store, settings, loaded, text, splits)
    # The importances stand for all that they come from: weights, calibration text, device, threads.
    identity = {"model": loaded.digest, "importance": digest_importance(importance)}
    key = f"{loaded.digest[:16]}-{identity['importance'][:16]}-v{QUANTIZER_VERSION}"
    options = folder / "options" / key
    cache = OptionCache(options, settings.limits.option_cache)
    windows: dict[str, tuple[Window, ...]] = {name: splits[name].windows for name in SPLITS}
    if space.has_kv:
        windows[HALF] = tuple(shorter(windows["holdout"]))
        windows[COPY] = tuple(planted(windows["holdout"], settings.seed))
    kept = options.with_suffix(".safetensors")
    write_importance(kept, importance)
    recipe = Recipe(
        model=settings.model,
        folder=loaded.folder,
        digest=loaded.digest,
        device=device,
        importance=kept,
        options=options,
        cap=settings.limits.option_cache,
        reference=folder / "reference",
        identity=identity,
        texts=windows,
    )
    evaluator = Evaluator(replica, importance, cache, recipe.reference, identity, threads)
    archive = Archive(store, space, evaluator, windows)
    bench = Bench(settings, store, space, limit, archive, progress, recipe, before)
    _quantize(bench)
    return bench


def _check_tool(settings: Settings, loaded: LoadedModel) -> None:
    """Refuse now what would otherwise come out when the first file is written or run.

    Raises:
        InputError: llama.cpp cannot take the model or its tokenizer, or is not installed.
        LlamaError: the llama.cpp that is installed cannot be used.
    """
    check(loaded.folder, loaded.geometry)
    if runs_files(settings) and settings.workers.address is None:
        load_library()


def facts_of(
    loaded: LoadedModel, text: Text, splits: Splits, threads: int, device: str
) -> dict[str, str | int]:
    """Return by name whatever measurements rest on."""
    return {
        "model digest": loaded.digest,
        "text": text.digest,
        **{f"{name} text": splits[name].digest for name in SPLITS},
        "number of threads": threads,
        "device": device,
        "torch version": torch.__version__,
        "transformers version": transformers.__version__,
    }


def split_text(settings: Settings, loaded: LoadedModel, text: Text, prefix: int) -> Splits:
    """Split a text into the parts that the settings ask for, its windows after so many tokens of context."""
    asked = settings.text
    needs = {name: getattr(asked, name) for name in SPLITS}
    return split_documents(
        text, loaded.tokenizer, needs, asked.sequence, settings.seed, asked.allow_shortfall, prefix
    )


def _record(store: Store, settings: Settings, loaded: LoadedModel, text: Text, splits: Splits) -> None:
    """Write what was loaded into the store."""
    geometry, asked = loaded.geometry, settings.text
    store.put(
        "model",
        {
            "name": settings.model,
            "folder": str(loaded.folder),
            "digest": loaded.digest,
            "family": geometry.family,
            "parameters": geometry.parameters,
            "layers": geometry.layers,
        },
    )
    used = {
        name: {"asked": splits[name].asked, "used": splits[name].used, "documents": splits[name].documents}
        for name in SPLITS
    }
    source = asked.source or (asked.dataset.id if asked.dataset else "")
    store.put("text", {"source": source, "removed_share": text.removed_share, "splits": used})


def _quantize(bench: Bench) -> None:
    """Fill the option cache, so that later stages only read."""
    pairs = [(site, option) for d in bench.space.decisions for site in d.sites for option in d.matrix_options]
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
