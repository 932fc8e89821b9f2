"""What running plans in their tool gave, as the store keeps it and as people see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightfit.search.palette import plain
from tightfit.search.settings import Settings
from tightfit.workers.llamacpp.speed import NoSpeed, Speed, estimate

if TYPE_CHECKING:
    from tightfit.proxies.latency import Phase
    from tightfit.search.store import Store

LEAST_PLANS = 4
"""A table of times needs so many plans."""

TIMES: dict[Phase, Callable[[Speed], list[float]]] = {
    "generate": lambda speed: [1 / rate for rate in speed.values("generation_rate")],
    "prompt": lambda speed: speed.values("first_token"),
}
"""Seconds by round: of one generated token, and of a prompt up to the first token."""


@dataclass(frozen=True)
class Bound:
    """A bound on speed.

    Attributes:
        name: key of the settings.
        phase: what is timed.
        seconds: most seconds of it.
        asked: the bound as a user gives it.
    """

    name: str
    phase: Phase
    seconds: float
    asked: str

    def missed(self, speed: Speed) -> bool:
        """Whether the median time is above the bound."""
        return estimate(TIMES[self.phase](speed)).median > self.seconds

    def excess(self, speed: Speed) -> float:
        """By how much the median time is above the bound, relative; 0 where its interval reaches below it."""
        found = estimate(TIMES[self.phase](speed))
        return found.median / self.seconds - 1 if found.low > self.seconds else 0.0


def bounds_of(settings: Settings) -> list[Bound]:
    """Return the bounds on speed that the settings give."""
    budget, bounds = settings.budget, []
    if budget.tokens_per_second is not None:
        asked = f"{budget.tokens_per_second:g} tokens/s"
        bounds.append(Bound("tokens_per_second", "generate", 1 / budget.tokens_per_second, asked))
    if budget.latency is not None:
        asked = f"{1000 * budget.latency:g} ms to the first token"
        bounds.append(Bound("latency", "prompt", budget.latency, asked))
    return bounds


def work_of(settings: Settings) -> dict[str, int]:
    """Return what files are run on."""
    asked = settings.validation
    return {"prompt": asked.prompt, "generate": asked.generate, "rounds": asked.rounds}


def speed_of(row: Mapping[str, Any]) -> Speed | NoSpeed:
    """Read a stored run of a file."""
    data = {key: value for key, value in row.items() if key != "digest"}
    return NoSpeed(**data) if "reason" in data else Speed.from_dict(data)


def speed_text(settings: Settings, speed: Speed | NoSpeed | None) -> str:
    """Say what running a plan gave, beside what was asked for; nothing where it was not run."""
    if speed is None:
        return ""
    if isinstance(speed, NoSpeed):
        return f"could not be run ({speed.reason})"
    rate, first = speed.estimate("generation_rate"), speed.estimate("first_token")
    words = (
        f"{plain(rate.median)} tokens/s and {plain(1000 * first.median)} ms to the first token in llama.cpp"
    )
    asked = " and ".join(bound.asked for bound in bounds_of(settings))
    return f"{words} ({asked} asked for)" if asked else words


@dataclass(frozen=True)
class SpeedRow:
    """One plan that was run, as a row of a table.

    Attributes:
        label, kind: as of the plan's other rows.
        speed: what it took, or why that is not known.
        predicted: by phase, time over the uniform baseline's under the table of times; empty without one.
        measured: by phase, the same as measured: median and the ends of its interval.
    """

    digest: str
    label: str
    kind: str
    speed: Speed | NoSpeed
    predicted: Mapping[Phase, float]
    measured: Mapping[Phase, tuple[float, float, float]]


def speed_rows(store: Store, labels: Mapping[str, tuple[str, str]]) -> tuple[SpeedRow, ...]:
    """Return the plans that were run, the baseline that all are compared with first.

    Args:
        store: of the run.
        labels: (label, kind) by digest.
    """
    held = store.get_fit("hardware")
    if held is None:
        return ()
    found = {row["digest"]: speed_of(row) for row in held["runs"]}
    baseline = next((speed for speed in found.values() if isinstance(speed, Speed)), None)
    predicted = _predictions(store, [d for d, speed in found.items() if isinstance(speed, Speed)])
    rows = []
    for digest, speed in found.items():
        label, kind = labels.get(digest, (digest[:12], "searched"))
        ratios = {} if baseline is None or isinstance(speed, NoSpeed) else _ratios(speed, baseline)
        rows.append(SpeedRow(digest, label, kind, speed, predicted.get(digest, {}), ratios))
    return tuple(rows)


def _ratios(speed: Speed, baseline: Speed) -> dict[Phase, tuple[float, float, float]]:
    generation = speed.ratio(baseline, "generation_rate")
    prompt = speed.ratio(baseline, "first_token")
    return {
        # Rates, so that the ends of the interval change places.
        "generate": (1 / generation.median, 1 / generation.high, 1 / generation.low),
        "prompt": (prompt.median, prompt.low, prompt.high),
    }


def _predictions(store: Store, digests: Sequence[str]) -> dict[str, dict[Phase, float]]:
    """Predict times over the first plan's, from tables that were made before these plans were run."""
    from tightfit.proxies.latency import LatencyTable
    from tightfit.search.resolve import stored_space

    if not digests or store.get_fit("latency_design") is None:
        return {}
    space, plans = stored_space(store), store.plans()
    found: dict[str, dict[Phase, float]] = {digest: {} for digest in digests}
    for phase in TIMES:
        data = store.get_fit(f"latency_{phase}")
        if data is None:
            continue
        table = LatencyTable.from_dict(data)
        times = {
            digest: table.predict(space.geometry, space.site_options(plans[digest].plan))
            for digest in digests
            if digest in plans
        }
        for digest, seconds in times.items():
            found[digest][phase] = seconds / times[digests[0]]
    return found
