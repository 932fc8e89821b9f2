"""The integer quantizer beside min–max rounding and a search over shrunken ranges.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/quantizer.py
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/quantizer.py --text wiki.txt --bits 3 4 --group 32

Errors are Σ h (w − ŵ)² ÷ Σ h w² per matrix of the decoder, averaged over matrices, h being the mean
squares of their inputs on the calibration tokens. ``shrunken`` tries eight symmetric shrinkages of every
group's range and keeps the best. KL is that of the whole decoder at one width, in nats per token, on
other tokens of the same text; ``--windows 0`` leaves it out. Times include packing, except for shrunken.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tightfit.compress import Replica, compress_matrix, input_energy
from tightfit.compress.ranges import Groups, codes_of
from tightfit.spaces import ZEROS, WeightOption
from tightfit.workers.models import load_model
from tightfit.workers.text import load_text, split_documents

SHRINKAGES = (1.0, 0.95, 0.9, 0.85, 0.79, 0.72, 0.65, 0.56)
Quantizer = Callable[[Tensor, WeightOption, Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-offgrid")
    parser.add_argument("--text", default="python-docs", help="a text file, or python-docs")
    parser.add_argument("--bits", type=int, nargs="*", default=[2, 3, 4, 5, 6])
    parser.add_argument("--zeros", nargs="*", default=list(ZEROS))
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--windows", type=int, default=8, help="windows of 256 tokens to measure KL on")
    arguments = parser.parse_args()
    loaded = load_model(arguments.model)
    calibration, held = windows_of(arguments.text, loaded.tokenizer, arguments.windows)
    replica = Replica(loaded.model, loaded.geometry)
    energy = input_energy(loaded.model, loaded.geometry, calibration)
    reference = predictions(replica, held)
    print(f"{'option':<14}" + "".join(f"{name:>40}" for name in QUANTIZERS))
    for option in (WeightOption(b, arguments.group, z) for z in arguments.zeros for b in arguments.bits):
        cells = []
        for quantizer in QUANTIZERS.values():
            error, nanoseconds = carry_out(replica, energy, option, quantizer)
            loss = divergence(reference, predictions(replica, held))
            cells.append(f"{error:.3e}  {loss:7.4f} nats  {nanoseconds:5.1f} ns/weight")
        print(f"{option.name:<14}" + "".join(f"{cell:>40}" for cell in cells), flush=True)


def windows_of(text: str, tokenizer: object, held: int) -> tuple[list[Tensor], list[Tensor]]:
    """Windows to calibrate on and to measure on, of different documents."""
    needs = {"calibration": 2048, "holdout": max(held, 1) * 255}
    splits = split_documents(load_text(text), tokenizer, needs, 256, seed=0)
    first, second = ([torch.from_numpy(w.tokens) for w in splits[name].windows] for name in needs)
    return first, second if held else []


def carry_out(
    replica: Replica, energy: dict[str, Tensor], option: WeightOption, quantizer: Quantizer
) -> tuple[float, float]:
    """Quantize the decoder in place; mean relative error, and nanoseconds per weight of the quantizer."""
    errors, seconds, weights = [], 0.0, 0
    for site in (x.site for x in replica.geometry.linears if x.layer is not None):
        weight, h = replica.original(site), energy[site]
        weights += weight.numel()
        start = time.process_time()
        result = quantizer(weight, option, h)
        seconds += time.process_time() - start
        errors.append(float((h * (result - weight) ** 2).sum() / (h * weight**2).sum()))
        replica.apply({site: result})
    return sum(errors) / len(errors), 1e9 * seconds / weights


@torch.no_grad()
def predictions(replica: Replica, windows: Sequence[Tensor]) -> list[Tensor]:
    logits = [replica.model(input_ids=ids[None]).logits[0, :-1] for ids in windows]
    return [torch.log_softmax(x, dim=-1) for x in logits]


def divergence(reference: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    tokens = [(p.exp() * (p - q)).sum(-1) for p, q in zip(reference, found, strict=True)]
    return float(torch.cat(tokens).mean()) if tokens else float("nan")


def ours(weight: Tensor, option: WeightOption, h: Tensor) -> Tensor:
    return compress_matrix(weight, option, h).dequantize()


def min_max(weight: Tensor, option: WeightOption, h: Tensor) -> Tensor:
    return _by_ranges(weight, option, h, ())


def shrunken(weight: Tensor, option: WeightOption, h: Tensor) -> Tensor:
    return _by_ranges(weight, option, h, SHRINKAGES)


def _by_ranges(weight: Tensor, option: WeightOption, h: Tensor, shrinkages: Sequence[float]) -> Tensor:
    groups = Groups(w := weight.reshape(len(weight), -1, option.group), h.view(1, -1, option.group), option)
    start = groups.min_max()
    best = groups.measure(start)
    for shrinkage in shrinkages:
        stretch = (shrinkage - 1) * 2**option.bits
        best = best.or_better(groups.measure(groups.moved(start, stretch, 0.0)))
    codes = codes_of(w, best.ranges, option.bits)
    return (codes * best.ranges.scale.unsqueeze(-1) + best.ranges.offset.unsqueeze(-1)).view_as(weight)


QUANTIZERS: dict[str, Quantizer] = {"min–max": min_max, "shrunken": shrunken, "ours": ours}

if __name__ == "__main__":
    main()
