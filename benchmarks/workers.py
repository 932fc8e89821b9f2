"""Plans per minute: one evaluator on one thread and on two, beside pools of one and two workers.

    .venv/bin/python benchmarks/workers.py
    .venv/bin/python benchmarks/workers.py --model ~/models/tiny --plans 40 --tokens 2048

All four measure the same plans, each drawn at random from options of 4 and 6 bits, on the same windows.
They take turns of a few plans, so that whatever else the machine does hits all of them alike, and warm up
with two plans before every turn; options and reference are made before. At the end it says whether every
loss is the same in all four.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tightfit.compress import Replica, input_energy
from tightfit.spaces import Geometry, WeightOption
from tightfit.workers.cluster import Cluster
from tightfit.workers.crew import Alone, Crew, Failure, Job, Outcome
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.measurement import DocumentLoss
from tightfit.workers.models import LoadedModel, load_model
from tightfit.workers.option_cache import OptionCache
from tightfit.workers.pool import RayPool
from tightfit.workers.recipe import Recipe, digest_importance, write_importance
from tightfit.workers.sources import SMOLLM2_OFFGRID
from tightfit.workers.text import load_text, split_documents

OPTIONS = [WeightOption(bits, 64, "float") for bits in (4, 6)]
CAP = 4 * 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=SMOLLM2_OFFGRID, help="alias, folder or Hugging Face id")
    parser.add_argument("--plans", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=512, help="scored tokens of every measurement")
    parser.add_argument("--sequence", type=int, default=129, help="most tokens of a window")
    parser.add_argument("--turn", type=int, default=4, help="plans that one measures before the next does")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Cluster(3):
        loaded = load_model(arguments.model)
        recipe, importance = prepare(arguments, loaded, Path(folder))
        jobs = draw_jobs(loaded.geometry, arguments.plans, len(recipe.texts["selection"]))
        alone = {threads: build(recipe, importance, loaded, threads) for threads in (1, 2)}
        for job in jobs:  # every option and the reference are made before anything is timed
            for site, option in job.options.items():
                alone[1].packed(site, option)
        with RayPool(recipe, 1, alone[1]) as one, RayPool(recipe, 2, alone[1]) as two:
            crews: dict[str, Crew] = {
                "alone, one thread": Alone(alone[1], recipe.texts),
                "alone, two threads": Alone(alone[2], recipe.texts),
                "pool of one": one,
                "pool of two": two,
            }
            compare(crews, jobs, arguments.turn)


def prepare(
    arguments: argparse.Namespace, loaded: LoadedModel, folder: Path
) -> tuple[Recipe, dict[str, torch.Tensor]]:
    """Write what workers read."""
    needs = {"selection": arguments.tokens, "calibration": 512}
    documents = load_text("python-docs")
    splits = split_documents(documents, loaded.tokenizer, needs, arguments.sequence, seed=0)
    windows = [torch.from_numpy(window.tokens) for window in splits["calibration"].windows]
    importance = input_energy(loaded.model, loaded.geometry, windows)
    write_importance(folder / "importance.safetensors", importance)
    (folder / "options").mkdir()
    recipe = Recipe(
        model=arguments.model,
        folder=loaded.folder,
        digest=loaded.digest,
        device="cpu",
        importance=folder / "importance.safetensors",
        options=folder / "options",
        cap=CAP,
        reference=folder / "reference",
        identity={"model": loaded.digest, "importance": digest_importance(importance)},
        texts={"selection": splits["selection"].windows},
    )
    return recipe, importance


def build(
    recipe: Recipe, importance: dict[str, torch.Tensor], loaded: LoadedModel, threads: int
) -> Evaluator:
    """An evaluator of this process; each has a replica of its own."""
    network = loaded.model if threads == 1 else load_model(recipe.model).model
    cache = OptionCache(recipe.options, recipe.cap)
    replica = Replica(network, loaded.geometry)
    return Evaluator(replica, importance, cache, recipe.reference, recipe.identity, threads)


def draw_jobs(geometry: Geometry, plans: int, windows: int) -> list[Job]:
    rng = np.random.default_rng([0, 61])
    sites = [linear.site for linear in geometry.linears if linear.tied_to is None]
    return [
        Job(
            f"plan {i}",
            {site: OPTIONS[rng.integers(len(OPTIONS))] for site in sites},
            "selection",
            "selection",
            windows,
        )
        for i in range(plans)
    ]


def compare(crews: dict[str, Crew], jobs: Sequence[Job], turn: int) -> None:
    seconds = dict.fromkeys(crews, 0.0)
    losses: dict[str, list[tuple[DocumentLoss, ...]]] = {name: [] for name in crews}
    for start in range(0, len(jobs), turn):
        part = jobs[start : start + turn]
        for name, crew in crews.items():
            list(crew.run([part[-1]] * 2))
            begin = time.perf_counter()
            outcomes = dict(crew.run(part))
            seconds[name] += time.perf_counter() - begin
            losses[name] += [documents(outcomes[i]) for i in range(len(part))]
    rates = {name: 60 * len(jobs) / taken for name, taken in seconds.items()}
    base = rates["alone, one thread"]
    print(f"{len(jobs)} plans, {sum(d.tokens for d in losses['pool of one'][0])} tokens each")
    for name, rate in rates.items():
        print(f"  {name:20} {rate:8.1f} plans per minute  {rate / base:5.2f} ×")
    same = all(found == losses["alone, one thread"] for found in losses.values())
    print(f"  losses are {'identical' if same else 'NOT identical'} in all four")


def documents(outcome: Outcome) -> tuple[DocumentLoss, ...]:
    if isinstance(outcome, Failure):
        raise SystemExit(outcome.reason)
    return outcome.documents


if __name__ == "__main__":
    main()
