"""A machine whose times are known: another rate for every format and shape, in no order of bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tightfit.proxies.latency import Products
from tightfit.proxies.latency_fit import LatencySample
from tightfit.spaces import Geometry, Option, Space, WeightRules, build_space, get_target, read_geometry

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
TYPES = ("Q2_K", "Q3_K", "IQ3_S", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
NOISE = 0.02

Options = Mapping[str, Option]


def space_of(tied: bool = True, types: Sequence[str] = TYPES) -> Space:
    config = {**CONFIG, "tie_word_embeddings": tied}
    return build_space(read_geometry(config), WeightRules(types=tuple(types)), get_target("llama.cpp"))


def machine(products: Products, seed: int, classes: float = 0.12) -> Callable[[Options], float]:
    """Seconds of a plan: three tenths of some plan's time are fixed, formats differ by about 1.5.

    Args:
        products: of the model.
        seed: of the machine.
        classes: how much shapes differ within a format, as the deviation of a logarithm.
    """
    geometry = products.geometry
    shapes = sorted({(linear.rows, linear.cols) for linear in geometry.linears})

    def rate(name: str, shape: tuple[int, int]) -> float:
        own = np.random.default_rng([71, seed, TYPES.index(name)]).lognormal(0, 0.4)
        draw = np.random.default_rng([72, seed, TYPES.index(name), shapes.index(shape)])
        return float(own * draw.lognormal(0, classes)) * 1e-10

    fixed = 0.5e-10 * sum(products.work(("Q4_K", x.rows, x.cols)) for x in geometry.linears)

    def seconds(options: Options) -> float:
        return fixed + sum(rate(c[0], c[1:]) * products.work(c) for c in products.classes(options))

    return seconds


def timed(
    space: Space, plans: Sequence[tuple[int, ...]], seconds: Callable[[Options], float], seed: int
) -> list[LatencySample]:
    """Time plans with noise; the first is the baseline."""
    rng = np.random.default_rng([73, seed])
    options = [space.site_options(space.plan(levels)) for levels in plans]
    base = seconds(options[0])
    noisy = [seconds(each) / base * (1 + NOISE * rng.standard_normal()) for each in options[1:]]
    return [
        LatencySample(options[0], 1.0, 0.0),
        *(LatencySample(each, ratio, NOISE) for each, ratio in zip(options[1:], noisy, strict=True)),
    ]


def mixes(space: Space, count: int, seed: int) -> list[Options]:
    """Plans as a search finds them: two formats in random places."""
    drawn = []
    for index in range(count):
        rng = np.random.default_rng([74, seed, index])
        low, high = (int(x) for x in rng.choice(len(TYPES), 2, replace=False))
        levels = [min(low if rng.random() < 0.5 else high, len(d.options) - 1) for d in space.decisions]
        drawn.append(space.site_options(space.plan(levels)))
    return drawn


def geometry_of(tied: bool = True) -> Geometry:
    return space_of(tied).geometry
