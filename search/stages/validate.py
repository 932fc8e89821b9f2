"""Validate: pick the winner on validation text, then read the holdout text once."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from tightfit.search.agents import Proposal
from tightfit.search.archive import successes
from tightfit.search.hardware import speed_text
from tightfit.search.probes import COPY, HALF
from tightfit.search.stages.crews import validation_crew
from tightfit.search.stages.explore import Candidate
from tightfit.search.stages.prepare import Bench
from tightfit.search.stages.speed import excesses, misses, run_finalists
from tightfit.search.words import Judged, Outcome, verdict
from tightfit.spaces import InfeasibleError, Plan, format_size
from tightfit.workers.caches import count_cache
from tightfit.workers.llamacpp.speed import NoSpeed, Speed
from tightfit.workers.measurement import Measurement

# Baselines of each kind that are judged on validation and holdout text beside the chosen plan.
_BASELINES_KEPT = 2


def validate(bench: Bench, candidates: Sequence[Candidate]) -> None:
    """Choose a plan, judge it beside its baselines on holdout text, write the result.

    Raises:
        InfeasibleError: no plan has a loss that can be measured there.
    """
    searched = [c.proposal for c in candidates if c.proposal.kind == "searched"]
    finalists = searched[: bench.settings.search.finalists]
    baselines = [
        candidate.proposal
        for kind in ("uniform", "mix")
        for candidate in [c for c in candidates if c.proposal.kind == kind][:_BASELINES_KEPT]
    ]
    # Before this stage has workers of its own, which would disturb the clock.
    speeds = run_finalists(bench, [*finalists, *baselines])
    excess = excesses(bench, speeds)
    with validation_crew(bench):
        judged = _measure(bench, [*finalists, *baselines], "validation", "picking the winner")
        bench.store.put("finalists", [proposal.plan.digest for proposal in finalists])
        baselines = [p for p in baselines if p.plan.digest in judged]
        racing = [p for p in finalists if p.plan.digest in judged] or baselines
        # Where nothing keeps a bound on speed, what misses it least comes first.
        racing.sort(key=lambda p: (excess.get(p.plan.digest, 0.0), judged[p.plan.digest].kl, p.plan.digest))
        final: dict[str, Measurement] = {}
        # The next one only where the loss of the winner cannot be measured on this text.
        while racing and racing[0].plan.digest not in final:
            final |= _measure(bench, [racing[0], *baselines], "holdout", "reading the holdout text")
            racing = racing if racing[0].plan.digest in final else racing[1:]
        if racing and bench.space.has_kv:
            _probe(bench, [racing[0], *baselines])
    if not racing:
        raise InfeasibleError(
            "no finalist has a loss that can be measured on validation and holdout text: allow more bits or "
            "a larger budget."
        )
    chosen = racing[0]
    best = min(
        [p for p in baselines if p.plan.digest in final] or [chosen],
        key=lambda p: (excess.get(p.plan.digest, 0.0), final[p.plan.digest].kl, p is not chosen),
    )
    bench.store.put("result", _result(bench, chosen, best, final, speeds, excess))


def _probe(bench: Bench, proposals: Sequence[Proposal]) -> None:
    """Measure what caches forget, and what less context changes, of the chosen plan and its baselines."""
    found: dict[str, dict[str, Measurement]] = {}
    for split, what in ((HALF, "less context"), (COPY, "copying")):
        if bench.archive.windows(split):
            found[split] = _measure(bench, proposals, split, what)
    bench.store.put("probes", {split: list(measured) for split, measured in found.items()})


def _measure(bench: Bench, proposals: Sequence[Proposal], split: str, what: str) -> dict[str, Measurement]:
    """Measure plans; those whose loss cannot be measured are left out."""
    plans = [(proposal.plan, proposal.label) for proposal in proposals]
    with bench.progress.stage("validate", what) as tick:
        outcomes = bench.archive.measure_all(plans, split, tick=tick)
    return {measured.plan: measured for measured in successes(outcomes)}


def _result(
    bench: Bench,
    chosen: Proposal,
    best: Proposal,
    final: dict[str, Measurement],
    speeds: Mapping[str, Speed | NoSpeed],
    excess: Mapping[str, float],
) -> dict[str, object]:
    """Return what the run found. Where a baseline beat the chosen plan, that one is offered.

    ``excess`` is by how much plans miss the bounds on speed, relative.
    """
    merits = [(excess.get(p.plan.digest, 0.0), final[p.plan.digest].kl) for p in (best, chosen)]
    beaten = merits[0] < merits[1]
    offered, other = (best, chosen) if beaten else (chosen, best)
    recounted = _recount(bench, offered.plan)
    too_slow = misses(bench, speeds.get(offered.plan.digest))
    outcome = Outcome(
        offered=_judged(offered, final),
        rival=_judged(other, final) if chosen.kind == "searched" else None,
        predicted=bench.store.get("predicted")[offered.plan.digest],
        size=offered.bytes,
        recounted=recounted,
        cache=bench.space.cache_bytes(offered.plan),
        limit=bench.limit,
        speed=speed_text(bench.settings, speeds.get(offered.plan.digest)),
        too_slow=too_slow,
    )
    return {
        "chosen": chosen.plan.digest,
        "offered": offered.plan.digest,
        "best_baseline": best.plan.digest,
        "agrees": not beaten,
        "recounted_bytes": recounted,
        "fits": recounted <= bench.limit and not too_slow,
        "too_slow": too_slow,
        "verdict": verdict(outcome),
        "next": _next(bench),
    }


def _recount(bench: Bench, plan: Plan) -> int:
    """Count the bytes of a plan from its packed tensors, and from a cache that holds a whole context."""
    space = bench.space
    size = bench.evaluator.stored_bytes(space.site_options(plan))
    if space.load is None:
        return size
    return size + count_cache(space.geometry, space.kv_options(plan), space.load)


def _judged(proposal: Proposal, final: dict[str, Measurement]) -> Judged:
    return Judged(proposal.kind == "searched", proposal.label, final[proposal.plan.digest])


def _next(bench: Bench) -> list[str]:
    folder = shlex.quote(str(bench.store.path.parent))
    # A little more room than was asked for, to show what the next bytes would buy.
    more = format_size(bench.limit + bench.limit // 20).replace(" ", "")
    return [
        f"tightfit report {folder}",
        f"tightfit plan {folder} --budget {more}",
        f"tightfit export {folder} --to {_shipped(bench)}",
    ]


def _shipped(bench: Bench) -> str:
    """Name the exporter that the plan is for, with the file that it writes."""
    return "llama.cpp --out model.gguf" if bench.space.target.name == "llama.cpp" else "json --out plan.json"
