"""Made-up speeds of plans, as a run stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from tightfit.proxies.latency import LatencyTable, Phase
from tightfit.search.store import Store
from tightfit.workers.llamacpp.speed import NoSpeed, Sample, Speed

WORK = {"prompt": 16, "generate": 8, "rounds": 3}
_JITTER = (0.98, 1.0, 1.04)


def made_up(digest: str, rate: float) -> Speed:
    """A plan that generates so many tokens per second at the median; a prompt is four times as fast."""
    samples = tuple(Sample(4 * rate * x, rate * x, 16 / (4 * rate * x), 0.1, 40 * 2**20) for x in _JITTER)
    return Speed(f"{digest[:16]}.gguf", 3 * 2**20, 16, 8, "a made-up processor", "1.0", samples)


def add_speeds(store: Store, rates: Mapping[str, float | None]) -> None:
    """Store what running plans gave; None is a plan that could not be run."""
    found = {
        digest: NoSpeed(f"{digest[:16]}.gguf", "the <tool> refused it")
        if rate is None
        else made_up(digest, rate)
        for digest, rate in rates.items()
    }
    rows = [{"digest": digest, **asdict(speed)} for digest, speed in found.items()]
    store.add_fit("hardware", {"work": WORK, "runs": rows})


def add_times(store: Store, shapes: Sequence[tuple[int, int]], rates: Mapping[str, float]) -> None:
    """Store tables of times: seconds per unit of work."""
    phases: tuple[Phase, ...] = ("generate", "prompt")
    for phase in phases:
        classes = {(name, *shape): rate for name, rate in rates.items() for shape in shapes}
        tokens = WORK["prompt"] if phase == "prompt" else 1
        table = LatencyTable(phase, tokens, 1e-5, 2e-10, dict(rates), {}, classes, 12, 0.021)
        store.add_fit(f"latency_{phase}", table.to_dict())
