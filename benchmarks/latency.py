"""The table of times beside llama.cpp: plans are timed, the table is fitted, and other plans are predicted.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/latency.py
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/latency.py smollm2-135m --types Q4_0,Q5_0,Q8_0 --plans 12

Files of all plans are run in turn, round by round, so that the machine's ups and downs cancel in ratios to
the first plan. Printed per phase: how far predictions are from the measured ratios of plans that were not
fitted, what noise alone would give, Kendall's τ, the error that the table itself states, and how well
bytes alone would have told the times. Importances are all one: they change no time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from tightfit.exporters import Shipment, Source
from tightfit.proxies.latency import Phase
from tightfit.proxies.latency_design import design_plans
from tightfit.proxies.latency_fit import fit_latency, paired_samples
from tightfit.spaces import Option, Space, WeightRules, build_space, get_target, read_geometry
from tightfit.workers.llamacpp.bench import NoSpeed, Speed, bench_files

TYPES = "Q2_K,Q3_K,IQ3_S,IQ4_XS,Q4_0,Q4_K,Q5_K,Q6_K,Q8_0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="lab", help="an alias or a model folder")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--plans", type=int, default=16, help="to fit the table to")
    parser.add_argument("--held", type=int, default=10, help="to predict: two formats in random places")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    maker = Maker.of(asked.model, tuple(asked.types.split(",")))
    plans = design_plans(maker.space, asked.plans, asked.seed)
    held = [plan for plan in mixes(maker.space, asked.held, asked.seed) if plan not in plans]
    print(
        f"{asked.model}: {len(maker.space.decisions)} decisions, {len(plans)} plans and {len(held)} held out"
    )
    with tempfile.TemporaryDirectory() as folder:
        files = [maker.write(plan, Path(folder) / f"{at}.gguf") for at, plan in enumerate([*plans, *held])]
        sizes = np.array([path.stat().st_size for path in files])
        speeds = bench_files(files, asked.prompt, asked.generate, asked.rounds)
    good = [speed for speed in speeds if isinstance(speed, Speed)]
    for speed in speeds:
        if isinstance(speed, NoSpeed):
            raise SystemExit(f"{speed.file}: {speed.reason}")
    generation = 1 / np.array([speed.values("generation_rate") for speed in good])
    judge(maker.space, plans, held, generation, sizes, "generate", 1)
    prompt = np.array([speed.values("first_token") for speed in good])
    judge(maker.space, plans, held, prompt, sizes, "prompt", asked.prompt)


def judge(
    space: Space,
    plans: Sequence[tuple[int, ...]],
    held: Sequence[tuple[int, ...]],
    seconds: np.ndarray,
    sizes: np.ndarray,
    phase: Phase,
    tokens: int,
) -> None:
    """Fit to some plans and print how well the others are told."""
    options = [space.site_options(space.plan(levels)) for levels in [*plans, *held]]
    samples = paired_samples(options, seconds)
    base = float(np.median(seconds[0]))
    table = fit_latency(space.geometry, samples[: len(plans)], base, phase, tokens)
    measured = np.array([sample.ratio for sample in samples[len(plans) :]])
    noise = np.mean([sample.ratio_se / sample.ratio for sample in samples[len(plans) :]])
    told = np.array([table.predict(space.geometry, each) for each in options[len(plans) :]]) / base
    line = np.polyfit(sizes[: len(plans)], [sample.ratio for sample in samples[: len(plans)]], 1)
    bytes_alone = np.polyval(line, sizes[len(plans) :])
    print(f"{phase}: {base * 1e3:.3f} ms for {space.plan(plans[0]).choices[-1][1]} everywhere")
    for name, guess in (("table", told), ("bytes alone", bytes_alone)):
        errors = guess / measured - 1
        rms, tau = float(np.sqrt((errors**2).mean())), float(kendalltau(guess, measured).statistic)
        print(f"  {name:12} error {rms:.2%} (largest {np.abs(errors).max():.2%}), Kendall τ {tau:.2f}")
    spread = measured.std() / measured.mean()
    print(f"  noise of a held-out ratio {noise:.2%}; spread of these ratios {spread:.2%}")
    print(f"  the table states {table.error:.2%}; fixed {table.fixed / base:.0%} of the first plan")
    rates = sorted(table.types.items(), key=lambda pair: pair[1])
    print("  time per unit of work:", ", ".join(f"{name} {rate / rates[0][1]:.2f}" for name, rate in rates))


def mixes(space: Space, count: int, seed: int) -> list[tuple[int, ...]]:
    """Draw plans of two formats in random places."""
    plans = []
    for index in range(count):
        rng = np.random.default_rng([seed, 83, index])
        first, second = rng.choice(len(space.decisions[0].options), 2, replace=False)
        mask = rng.random(len(space.decisions)) < 0.5
        picks = [first if left else second for left in mask]
        plans.append(
            tuple(min(int(x), len(d.options) - 1) for x, d in zip(picks, space.decisions, strict=True))
        )
    return plans


@dataclass
class Maker:
    """Writes plans of one model as GGUF files; every matrix is packed once per format."""

    space: Space
    source: Source

    @classmethod
    def of(cls, model: str, types: tuple[str, ...]) -> Maker:
        """Load a model and offer these types."""
        import torch
        from safetensors.torch import load_file

        from tightfit.compress import PackedTensor, compress_matrix
        from tightfit.workers.models import prepare_alias
        from tightfit.workers.sources import ALIASES, read_config

        folder = prepare_alias(model) if model in ALIASES else Path(model)
        geometry = read_geometry(read_config(str(folder)))
        space = build_space(geometry, WeightRules(types=types), get_target("llama.cpp"))
        tensors = {k: v for path in sorted(folder.glob("*.safetensors")) for k, v in load_file(path).items()}
        packed: dict[tuple[str, Option], PackedTensor] = {}

        def pack(site: str, option: Option) -> PackedTensor:
            if (site, option) not in packed:
                linear = geometry.linear(site)
                weight = tensors[f"{linear.path}.weight"].float()
                weight = weight.T.contiguous() if linear.transposed else weight
                packed[site, option] = compress_matrix(weight, option, torch.ones(linear.cols))
            return packed[site, option]

        return cls(space, Source(folder, pack, {}))

    def write(self, levels: tuple[int, ...], out: Path) -> Path:
        """Write one plan."""
        from tightfit.exporters.gguf import export

        name = {"name": "benchmark", "digest": "", "family": self.space.geometry.family}
        return export(Shipment(self.space, self.space.plan(levels), name, self.source), out)


if __name__ == "__main__":
    main()
