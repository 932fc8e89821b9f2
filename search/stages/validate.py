"""Validate: pick the winner on validation text, then read the holdout text once."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.search.agents import Proposal
from tightfit.search.stages.explore import Candidate
from tightfit.search.stages.prepare import Bench
from tightfit.spaces import format_size
from tightfit.workers.measurement import Measurement, compare

# Baselines of each kind that are judged on validation and holdout text beside the chosen plan.
_BASELINES_KEPT = 2


def validate(bench: Bench, candidates: Sequence[Candidate]) -> None:
    """Choose a plan, judge it beside its baselines on holdout text, write the result."""
    searched = [c.proposal for c in candidates if c.proposal.kind == "searched"]
    finalists = searched[: bench.settings.search.finalists]
    baselines = [
        candidate.proposal
        for kind in ("uniform", "mix")
        for candidate in [c for c in candidates if c.proposal.kind == kind][:_BASELINES_KEPT]
    ]
    judged = _measure(bench, [*finalists, *baselines], "validation", "picking the winner")
    bench.store.put("finalists", [proposal.plan.digest for proposal in finalists])
    chosen = min(finalists or baselines, key=lambda p: (judged[p.plan.digest].kl, p.plan.digest))
    final = _measure(bench, [chosen, *baselines], "holdout", "reading the holdout text")
    best = min(baselines, key=lambda p: final[p.plan.digest].kl)
    bench.store.put("result", _result(bench, chosen, best, final))


def _measure(bench: Bench, proposals: Sequence[Proposal], split: str, what: str) -> dict[str, Measurement]:
    measured = {}
    with bench.progress.stage("validate", what) as tick:
        for done, proposal in enumerate(proposals, 1):
            digest = proposal.plan.digest
            measured[digest] = bench.archive.measure(proposal.plan, split, proposal.label)
            tick(done, len(proposals))
    return measured


def _result(
    bench: Bench, chosen: Proposal, best: Proposal, final: dict[str, Measurement]
) -> dict[str, object]:
    """Return what the run found. Where a baseline beat the chosen plan, that one is offered."""
    loss = final[chosen.plan.digest]
    beaten = final[best.plan.digest].kl < loss.kl
    offered = best if beaten else chosen
    recounted = bench.evaluator.stored_bytes(bench.space.site_options(offered.plan))
    return {
        "chosen": chosen.plan.digest,
        "offered": offered.plan.digest,
        "best_baseline": best.plan.digest,
        "agrees": not beaten,
        "recounted_bytes": recounted,
        "fits": recounted <= bench.limit,
        "verdict": _verdict(bench, offered, best, final, recounted),
        "next": _next(bench),
    }


def _verdict(
    bench: Bench,
    offered: Proposal,
    best: Proposal,
    final: dict[str, Measurement],
    recounted: int,
) -> str:
    loss = final[offered.plan.digest]
    fits = "fits" if recounted <= bench.limit else "does not fit"
    room = f"{format_size(recounted)} of {format_size(bench.limit)}"
    line = f"{fits}: plan {offered.plan.short} takes {room}, "
    line += f"holdout KL {loss.kl:.4f} ± {loss.kl_se:.4f} nats/token"
    if offered.plan.digest == best.plan.digest:
        return f"{line}; this is the baseline {best.label}: no plan that was searched is better"
    paired = compare(loss, final[best.plan.digest])
    ratio = loss.kl / final[best.plan.digest].kl
    sure = f"paired difference {paired.z:+.1f} standard errors"
    return f"{line}, {ratio:.2f} × the best baseline, {best.label} ({sure})"


def _next(bench: Bench) -> list[str]:
    folder = bench.store.path.parent
    # A little more room than was asked for, to show what the next bytes would buy.
    more = format_size(bench.limit + bench.limit // 20).replace(" ", "")
    return [
        f"tightfit report {folder}",
        f"tightfit plan {folder} --budget {more}",
        f"tightfit export {folder} --to json --out plan.json",
    ]
