"""What the benchmarks about KV caches share: settings, an opened run, races, and tables of losses."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.search.inspection import inspect_settings
from tightfit.search.progress import Progress
from tightfit.search.settings import Settings
from tightfit.search.stages import Bench, prepare
from tightfit.search.store import RUN_FILE, Store
from tightfit.search.tables import loss_text
from tightfit.spaces import Plan
from tightfit.workers.measurement import Failure, Measurement, compare, ratio_se

MIB = 2**20

Levels = tuple[int, ...]


def settings_of(
    arguments: argparse.Namespace,
    name: str,
    budget: Mapping[str, Any],
    weights: Mapping[str, Any],
    caches: Mapping[str, Any],
) -> Settings:
    """Return the settings of one benchmark's run; runs of one name share what was measured."""
    given = ("sequence", "prefix", "calibration", "selection", "holdout")
    tokens = min(1024, arguments.selection)
    return Settings.from_dict(
        {
            "name": name,
            "runs": arguments.runs,
            "model": arguments.model,
            "seed": arguments.seed,
            "threads": arguments.threads,
            "budget": {"context": arguments.context, **budget},
            "space": {
                "weights": weights,
                "kv": {
                    "keep": arguments.keep,
                    "residual": arguments.residual,
                    "sinks": arguments.sinks,
                    **caches,
                },
            },
            "text": {
                "source": arguments.text,
                "validation": arguments.sequence,  # judged is on selection and holdout text alone
                **{key: getattr(arguments, key) for key in given},
            },
            "sense": {
                "prescreen_tokens": tokens,
                "marginal_tokens": tokens,
                "fit_tokens": tokens,
                **arguments.sense,
            },
        }
    )


@contextmanager
def opened(settings: Settings) -> Iterator[Bench]:
    """A bench over the store of some settings; what is measured stays in its folder."""
    inspection = inspect_settings(settings)
    folder = Path(settings.runs) / settings.name
    with Store.open(folder / RUN_FILE) as store:
        store.set_space(inspection.space)
        store.charge_again(inspection.space)  # at this batch caches hold more or less
        yield prepare(settings, store, inspection.space, inspection.limit, folder, Progress())


@dataclass(frozen=True)
class Candidate:
    """A plan that came out of some method, and what it lost.

    Attributes:
        method: its name.
        plan: the best of its plans on the selection text.
        raced: how many of them were measured there; 0 where there was but one.
        selection: its loss there, NaN where it was not measured.
        holdout: on text that nothing was chosen on.
    """

    method: str
    plan: Plan
    raced: int
    selection: float
    holdout: Measurement


def race(bench: Bench, method: str, plans: Sequence[Plan]) -> Candidate:
    """Measure a method's plans on the selection text, and the best of them on the holdout text.

    Raises:
        SystemExit: no plan has a loss that can be measured.
    """
    distinct = list({plan.digest: plan for plan in plans}.values())
    outcomes = bench.archive.measure_all([(plan, method) for plan in distinct], "selection")
    losses = {
        plan.digest: outcome.kl
        for plan, outcome in zip(distinct, outcomes, strict=True)
        if not isinstance(outcome, Failure)
    }
    if not losses:
        raise SystemExit(f"{method}: none of {len(distinct)} plans could be measured")
    best = min((plan for plan in distinct if plan.digest in losses), key=lambda plan: losses[plan.digest])
    return Candidate(method, best, len(distinct), losses[best.digest], judge(bench, best, method))


def judge(bench: Bench, plan: Plan, method: str) -> Measurement:
    """Measure a plan on the holdout text.

    Raises:
        SystemExit: its loss cannot be measured.
    """
    outcome = bench.archive.measure_all([(plan, method)], "holdout")[0]
    if isinstance(outcome, Failure):
        raise SystemExit(f"{method}: {outcome.reason}")
    return outcome


def ratio(first: Measurement, second: Measurement) -> tuple[float, float]:
    """Loss of one plan over that of another, and its standard error over the documents of both.

    The error of a ratio of sums, to first order: that of Σ (a − ratio · b), over Σ b (Cochran, *Sampling
    Techniques*, 1977, §6.4).
    """
    value = first.kl / second.kl
    other = {document.document: document.kl for document in second.documents}
    residuals = [document.kl - value * other[document.document] for document in first.documents]
    se = ratio_se(residuals, [document.tokens for document in first.documents])
    return value, se / second.kl


HEADER = (
    f"{'':<26} {'weights':>9} {'KV':>9} {'raced':>6} {'selection':>10} {'holdout KL ± se':>22} "
    f"{'ratio to it ± se':>18} {'z':>7}"
)


def line(bench: Bench, candidate: Candidate, own: Candidate) -> str:
    """Return one row: a candidate, and the loss of ``own`` over its loss. Sizes are in MiB."""
    cache = bench.space.cache_bytes(candidate.plan)
    weights = bench.space.weight_bytes(candidate.plan)
    row = (
        f"{candidate.method:<26} {weights / MIB:>9.3f} {cache / MIB:>9.3f} {candidate.raced:>6} "
        f"{candidate.selection:>10.5f} {loss_text(candidate.holdout.kl, candidate.holdout.kl_se):>22}"
    )
    if candidate is own:
        return row
    value, se = ratio(own.holdout, candidate.holdout)
    return f"{row} {f'{value:.3f} ± {se:.3f}':>18} {compare(own.holdout, candidate.holdout).z:>7.1f}"


def facts(bench: Bench) -> str:
    """Say what losses were measured on."""
    parts = []
    for split in ("selection", "holdout"):
        windows = bench.archive.windows(split)
        scored = sum(window.scored for window in windows)
        parts.append(f"{split} {scored:,} tokens of {len({w.document for w in windows})} documents")
    return f"{bench.settings.model}, {'; '.join(parts)}"
