"""What a run found out about KV caches, in sentences: less context, copying, blocks that lose jointly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tightfit.search.fronts import CLEAR
from tightfit.search.palette import plain
from tightfit.search.probes import Probed, Probes, extrapolated
from tightfit.search.summary import Summary
from tightfit.search.tables import loss_text, nats_text
from tightfit.workers.measurement import Measurement
from tightfit.workers.probes import PLANTED

_FORGOTTEN = 0.5  # a model that copies no better than halfway to guessing has nothing to forget


def cache_topics(summary: Summary) -> list[tuple[str, str]]:
    """Say what caches forget: (topic, sentence) pairs; none where plans do not decide about KV caches."""
    if summary.probes is None:
        return []
    prefix, context = (summary.space.prefix, summary.space.context) if summary.space else (None, None)
    topics = [
        ("Context", _context(summary.probes.plan, prefix, context)),
        ("Copying", _copying(summary, summary.probes)),
    ]
    return [(topic, sentence) for topic, sentence in topics if sentence]


def pairs_words(fit: Mapping[str, Any] | None, link: Mapping[str, Any] | None) -> str:
    """Say what few bits in keys and values lose together with a small cache of them.

    Args:
        fit: of the pairs, as stored.
        link: of the loss model, likewise.
    """
    known = [rho for rho in (fit or {}).get("correlations", []) if rho is not None]
    if not known:
        return ""
    mean = sum(known) / len(known)
    blocks = f"{len(known)} blocks" if len(known) > 1 else "one block"
    spread = f" ({_signed(min(known))} to {_signed(max(known))})" if len(known) > 1 else ""
    used = bool((link or {}).get("model", {}).get("couplings"))
    counted = "counts that where both are aggressive" if used else "leaves that out"
    return (
        "Few bits in the k and v projections of a block and a small cache of what they compute make errors "
        f"that correlate by {_signed(mean)} on average, measured on {blocks}{spread}; the loss model "
        f"{counted}."
    )


def _context(probed: Probed, prefix: int | None, context: int | None) -> str:
    """Say what a plan loses after the context that was measured, after half, and at the budget's."""
    full, half, change = probed.full, probed.half, probed.per_doubling
    if full is None or half is None or change is None or not prefix or context is None:
        return ""
    known = len(full.documents) > 1
    words = (
        f"After {prefix:,} tokens of context the plan loses {_loss(full)} nats/token; on the same words "
        f"after {prefix // 2:,}, {_loss(half)}."
    )
    if context <= prefix:
        return f"{words} The budget counts no more context than that."
    se = f" ± {nats_text(change.se)}" if known else ""
    changed = f"doubling the context changed the loss by {_change(change.difference)}{se}"
    words += f" The budget counts {context:,} tokens, where nothing was measured."
    if known and abs(change.difference) < CLEAR * change.se:
        return f"{words} Not extrapolated: {changed}, within the noise of this text."
    doublings = math.log2(context / prefix)
    there = extrapolated(full.kl, change.difference, prefix, context)
    rest = "one more doubling" if doublings == 1 else f"{plain(doublings)} more doublings"
    doubt = f" ± {nats_text(change.se * doublings)}" if known else ""
    return (
        f"{words} Extrapolated: {changed}; after {rest} like that, the plan loses about "
        f"{nats_text(there)}{doubt} there, if every doubling does as the last one."
    )


def _copying(summary: Summary, probes: Probes) -> str:
    """Say what tokens that were planted in the context and are asked for again cost."""
    reference, cost = probes.plan.copying_reference, probes.plan.copying
    if reference is None or cost is None:
        return ""
    words = (
        f"Copying {PLANTED} tokens planted in the context costs {nats_text(reference)} nats/token "
        f"uncompressed and {nats_text(cost)} with the plan"
    )
    rival = probes.rival
    if rival is not None and rival.copying is not None:
        result = summary.result
        baseline = result is not None and result.final == result.chosen
        name = "the best baseline" if baseline else "the plan of the search"
        words += f", {nats_text(rival.copying)} with {name}, {rival.label}"
    words += f"; a guess costs {nats_text(probes.guess)}."
    if reference > _FORGOTTEN * probes.guess:
        words += " The uncompressed model hardly copies itself, so this says little about its caches."
    return words


def _loss(measured: Measurement) -> str:
    return loss_text(measured.kl, measured.kl_se if len(measured.documents) > 1 else None)


def _change(value: float) -> str:
    return ("−" if value < 0 else "+") + nats_text(abs(value))


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
