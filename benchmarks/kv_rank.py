"""Fewer bits against fewer numbers: caches at b bits, and projected to the rank of the same bytes.

All layers are alike. Directions are those that hold most of the keys and values of calibration prompts, head
by head, and do not count as bytes. Keys are projected as they are before rotary positions are put on, as
Eigen Attention (Saxena et al., 2024, arXiv:2408.05646) and Palu (Chang et al., 2025, arXiv:2407.21118) do:
stored keys are rotated back, projected, and rotated again; for comparison also as the cache has them. Keys
and values have the same rank, or the split of the same bytes that loses least on the selection text.

Both kinds of cache keep the same first and last tokens as 16-bit floats, and tokens after the prompt stay as
they are, so that what is compared is what happened to the prompt.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from kv_common import facts, opened, ratio
from kv_layers import settings
from kv_states import continued, prompts, read_back
from torch import Tensor
from transformers.models.llama.modeling_llama import rotate_half

from tightfit.compress.kvcache import Prefilled
from tightfit.proxies.kv.rank import principal_directions, project, rank_bytes, rank_within
from tightfit.search.stages import Bench
from tightfit.search.tables import loss_text
from tightfit.spaces import Attention, KvOption
from tightfit.workers.measurement import Measurement, compare

BITS = (8, 6, 4, 3, 2)
KEY_SHARES = (0.25, 0.375, 0.5, 0.625, 0.75)  # of the rank that keys and values have together


def measure(arguments: argparse.Namespace) -> None:
    """Print, for every number of bits, the loss of a quantized cache and of projected ones of its bytes."""
    with opened(settings(arguments, max(arguments.uniform))) as bench:
        reads = {split: prompts(bench, split) for split in ("calibration", "selection", "holdout")}
        directions = Directions(bench, reads["calibration"])
        layer = bench.space.geometry.attention[0]
        print(f"\n{facts(bench)}")
        print(f"{'':<36} {'KiB/layer':>10} {'holdout KL ± se':>24} {'bits ÷ it ± se':>20} {'z':>7}")
        for bits in BITS:
            option = KvOption(bits, bits, residual=arguments.residual, sinks=arguments.sinks)
            stored = partial(_stored, option)
            own = continued(bench, option.name, "holdout", reads["holdout"], stored)
            print(_line(f"{bits} bits", option.cache_bytes(layer, arguments.prefix), own, own), flush=True)
            ranks = _ranks(option, layer.kv_heads, layer.head_dim, arguments.prefix)
            for name, pair, turned in _projections(bench, directions, ranks, option, reads["selection"]):
                change = partial(directions.projected, pair, option, turned)
                found = continued(bench, name, "holdout", reads["holdout"], change)
                size = _bytes(pair, option, layer.kv_heads, layer.head_dim, arguments.prefix)
                print(_line(f"  {name}", size, found, own), flush=True)


def _stored(option: KvOption, read: Prefilled, layer: int) -> tuple[Tensor, Tensor]:
    stored = read_back(read, layer, option)
    return stored.keys, stored.values


def _projections(
    bench: Bench,
    directions: Directions,
    ranks: list[tuple[int, int]],
    option: KvOption,
    reads: list[Prefilled],
) -> Iterator[tuple[str, tuple[int, int], bool]]:
    """Yield names, ranks of keys and values, and whether keys are projected without their positions."""
    alike = ranks[KEY_SHARES.index(0.5)]
    yield f"rank {alike[0]}, keys as in the cache", alike, False
    yield f"rank {alike[0]}, keys rotated back", alike, True
    losses = {
        pair: continued(bench, "", "selection", reads, partial(directions.projected, pair, option, True)).kl
        for pair in ranks
    }
    best = min(losses, key=lambda pair: losses[pair])
    yield f"best split: keys {best[0]}, values {best[1]}", best, True


class Directions:
    """Principal directions of every layer's keys, with and without positions, and of its values."""

    def __init__(self, bench: Bench, reads: Sequence[Prefilled]) -> None:
        model: Any = bench.evaluator.replica.model
        self._rotary = model.base_model.rotary_emb
        layers = range(len(reads[0].keys))
        self._values = [principal_directions([read.values[i] for read in reads]) for i in layers]
        self._keys = {
            False: [principal_directions([read.keys[i] for read in reads]) for i in layers],
            True: [principal_directions([self._turn(read.keys[i], -1) for read in reads]) for i in layers],
        }

    def projected(
        self, ranks: tuple[int, int], option: KvOption, turned: bool, read: Prefilled, layer: int
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values of a prompt as a cache of these ranks holds them.

        As many first and last tokens as under ``option`` are kept whole.
        """
        keys, values = read.keys[layer], read.values[layer]
        ends = _ends(option, read.tokens)
        if turned:
            # Tokens that are kept whole are rounded after they were turned: no matter at 16 bits.
            turned_back = project(self._turn(keys, -1), self._keys[True][layer], ranks[0], *ends)
            read_keys = self._turn(turned_back, 1)
        else:
            read_keys = project(keys, self._keys[False][layer], ranks[0], *ends)
        return read_keys, project(values, self._values[layer], ranks[1], *ends)

    def _turn(self, keys: Tensor, sign: int) -> Tensor:
        """Put rotary positions on keys that begin at position 0 (sign 1), or take them off (−1)."""
        at = torch.arange(keys.shape[2], device=keys.device)[None]
        cosine, sine = (part.unsqueeze(1).float() for part in self._rotary(keys, at))
        # A rotation, unless the model also scales what it rotates.
        scale = cosine.square() + sine.square()
        half: Any = rotate_half  # it has no types
        turned: Tensor = keys.float() * cosine + sign * half(keys.float()) * sine
        return turned if sign > 0 else turned / scale


def _ends(option: KvOption, tokens: int) -> tuple[int, int]:
    """First and last tokens that a quantized cache keeps as floats."""
    return option.sinks, tokens - option.sinks - option.quantized_tokens(tokens)


def _ranks(option: KvOption, kv_heads: int, width: int, tokens: int) -> list[tuple[int, int]]:
    """Ranks of keys and values that together take no more bytes than a quantized cache, by key share."""
    coded = option.quantized_tokens(tokens)
    floats = 4 * kv_heads * width * (tokens - coded)
    size = option.cache_bytes(Attention(kv_heads, width), tokens) - floats
    both = 2 * (rank_within(size // 2, coded, kv_heads, width) or 1)
    keys = [min(max(1, round(share * both)), both - 1, width) for share in KEY_SHARES]
    return [(rank, min(both - rank, width)) for rank in keys]


def _bytes(ranks: tuple[int, int], option: KvOption, kv_heads: int, width: int, tokens: int) -> int:
    ends = _ends(option, tokens)
    return sum(rank_bytes(tokens, kv_heads, width, rank, *ends) for rank in ranks)


def _line(name: str, size: int, found: Measurement, own: Measurement) -> str:
    row = f"{name:<36} {size / 1024:>10.2f} {loss_text(found.kl, found.kl_se):>24}"
    if found is own:
        return row
    value, se = ratio(own, found)
    return f"{row} {loss_text(value, se):>20} {compare(own, found).z:>7.1f}"
