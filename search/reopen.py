"""Opening a run once more: its text, its model and its evaluator, as when it was measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightfit.search.contexts import prefix_of
from tightfit.search.resolve import stored_space
from tightfit.search.settings import Settings
from tightfit.search.shipping import find_importance, find_model
from tightfit.search.store import Store
from tightfit.spaces import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from tightfit.workers.evaluator import Evaluator
    from tightfit.workers.text import Window

# Measurements mean nothing on other inputs; other versions only make the last digits differ.
_INPUTS = ("model digest", "text", "calibration text", "selection text", "validation text", "holdout text")


@dataclass(frozen=True)
class Reopened:
    """A run that can measure again.

    Attributes:
        windows: by part of the text.
        changed: what losses depend on besides the inputs and has changed since, in words.
        threads: CPU threads, as of the run.
    """

    evaluator: Evaluator
    windows: Mapping[str, tuple[Window, ...]]
    changed: tuple[str, ...]
    threads: int

    def references(self, split: str) -> list[Tensor]:
        """Return the base model's log-probabilities of every next token of a part of the text, by window."""
        return self.evaluator.references(self.windows[split])


def reopen(store: Store) -> Reopened:
    """Rebuild what a run measured with, from its stored settings; its store is only read.

    Raises:
        InputError: the run has not got so far, or its model, text or importances are gone or are others.
    """
    import torch
    from safetensors.torch import load_file

    from tightfit.compress import Replica
    from tightfit.search.stages.prepare import SPLITS, facts_of, pick_device, split_text
    from tightfit.workers.evaluator import Evaluator
    from tightfit.workers.models import load_model
    from tightfit.workers.option_cache import OptionCache
    from tightfit.workers.recipe import digest_importance
    from tightfit.workers.scratch import make_scratch
    from tightfit.workers.text import load_text

    held, model, stored = store.get("identity"), store.get("model"), store.get("settings")
    if not held or model is None or stored is None:
        raise InputError(f"{store.path.parent} has measured nothing yet: run the search first.")
    settings, folder = Settings.from_dict(stored), store.path.parent
    asked, device = settings.text, pick_device(settings.device)
    text = load_text(asked.source, asked.dataset)
    _check(store, held, {"text": text.digest})
    kept = find_importance(folder, model["digest"], held.get("importance digest"))
    loaded = load_model(str(find_model(store, model)), device=device)
    splits = split_text(settings, loaded, text, prefix_of(settings, stored_space(store)))
    threads = int(held.get("number of threads") or 1)
    facts = facts_of(loaded, text, splits, threads, device)
    _check(store, held, facts)
    torch.set_num_threads(threads)
    importance = load_file(kept, device=device)
    reference = folder / "reference"
    evaluator = Evaluator(
        Replica(loaded.model, loaded.geometry),
        importance,
        OptionCache(kept.with_suffix(""), 0, writable=False),
        reference if os.access(reference, os.W_OK) else make_scratch() / "reference",
        {"model": loaded.digest, "importance": digest_importance(importance)},
        threads,
    )
    changed = tuple(
        f"{key} is {value} now, the run had {held[key]}"
        for key, value in facts.items()
        if key not in _INPUTS and held.get(key, value) != value
    )
    windows = {name: splits[name].windows for name in SPLITS}
    return Reopened(evaluator, windows, changed, threads)


def _check(store: Store, held: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    for key in _INPUTS:
        if key in facts and held.get(key) != facts[key]:
            raise InputError(
                f"{store.path.parent} was measured with another {key} ({held.get(key)}, now {facts[key]}): "
                "put back what it was made with, or search again."
            )
