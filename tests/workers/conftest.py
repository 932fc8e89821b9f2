"""One small trained model on two short texts, as workers get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tightfit.compress import QUANTIZER_VERSION, Replica, input_energy
from tightfit.spaces import WeightOption
from tightfit.workers.crew import Job
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.lab import TINY, train
from tightfit.workers.models import load_model
from tightfit.workers.option_cache import OptionCache
from tightfit.workers.recipe import Recipe, digest_importance, write_importance
from tightfit.workers.text import Window

CAP = 2**26


@dataclass(frozen=True)
class Bench:
    """A recipe, and what the process has that wrote it."""

    recipe: Recipe
    evaluator: Evaluator
    importance: Mapping[str, torch.Tensor]

    def options(self, seed: int) -> dict[str, WeightOption]:
        """An option for every matrix, drawn at random."""
        rng = np.random.default_rng([seed, 31])
        geometry = self.evaluator.replica.geometry
        sites = [linear.site for linear in geometry.linears if linear.tied_to is None]
        return {site: WeightOption(int(rng.choice([3, 4, 6])), 32, "float") for site in sites}

    def job(self, name: str, seed: int = 0, split: str = "selection", windows: int = 4) -> Job:
        return Job(name, self.options(seed), split, split, windows)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("run")
    model = train(TINY)
    loaded = load_model(str(model))
    rng = np.random.default_rng([5, 41])
    texts = {
        split: tuple(Window(f"{split}-{i % 3}", rng.integers(0, TINY.vocab, 40 + i)) for i in range(4))
        for split in ("selection", "validation")
    }
    replica = Replica(loaded.model, loaded.geometry)
    importance = input_energy(
        loaded.model, loaded.geometry, [torch.from_numpy(w.tokens) for w in texts["validation"]]
    )
    write_importance(folder / "importance.safetensors", importance)
    identity = {"model": loaded.digest, "importance": digest_importance(importance)}
    options = folder / "options" / f"v{QUANTIZER_VERSION}"
    evaluator = Evaluator(replica, importance, OptionCache(options, CAP), folder / "reference", identity)
    recipe = Recipe(
        model=str(model),
        folder=model,
        digest=loaded.digest,
        device="cpu",
        importance=folder / "importance.safetensors",
        options=options,
        cap=CAP,
        reference=folder / "reference",
        identity=identity,
        texts=texts,
    )
    return Bench(recipe, evaluator, importance)
