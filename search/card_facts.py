"""What a run found out about one of its plans, as plain data for its model card."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightfit.search.public import public_settings, public_value
from tightfit.search.speed_points import asked_bounds
from tightfit.search.speed_tables import HEADER, setting, speed_cells
from tightfit.search.store import Store
from tightfit.search.summary import Front, PlanRow, Summary, summarize
from tightfit.search.tables import loss_text, perplexity_text
from tightfit.search.words import trust
from tightfit.spaces import Plan
from tightfit.workers.llamacpp.speed import Speed
from tightfit.workers.measurement import compare

MOST_BASELINES = 3
"""Baselines that a card shows beside the plan, the best ones first."""

_LICENSE = re.compile(r"^license(?:_name)?:[ \t]*['\"]?([^'\"\n]+?)['\"]?[ \t]*$", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_VERSIONS = ("torch version", "transformers version", "device", "number of threads")


def card_facts(store: Store, plan: Plan, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a card says beside plan, space and model; what the run has not found out is left out.

    Args:
        store: of the run.
        plan: one of its plans, measured or not.
        model: as the run stored it.
    """
    summary = summarize(store)
    front = next((front for front in summary.fronts if front.find(plan.digest)), None)
    identity = store.get("identity", {})
    place = store.path.resolve().parent
    run = f"{place.parent.name}/{place.name}"  # as `runs` and `name` make it anew
    facts = {
        "run": run,
        "budget": summary.budget,
        "limit": summary.limit,
        "parameters": model.get("parameters"),
        "license": read_license(Path(model["folder"])) if model.get("folder") else None,
        "text": _text(summary, front),
        "losses": _losses(front, plan.digest),
        "hardware": _hardware(summary, plan.digest),
        "trust": [list(topic) for topic in trust(summary)],
        "versions": {key: identity[key] for key in _VERSIONS if key in identity},
        "settings": public_settings(summary.settings or {}, model),
        "verify": f"--plan {plan.short} --run {shlex.quote(run)}",
        "too_slow": _too_slow(summary, plan.digest),
    }
    return {key: value for key, value in facts.items() if value}


def read_license(folder: Path) -> str | None:
    """Return the license that a model's README states in its front matter, if it does."""
    readme = folder / "README.md"
    if not readme.is_file():
        return None
    head = _FRONT_MATTER.match(readme.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n"))
    found = _LICENSE.search(head[1]) if head else None
    return found[1] if found else None


def _text(summary: Summary, front: Front | None) -> dict[str, Any] | None:
    if front is None:
        return None
    return {
        "split": front.split,
        "source": public_value(summary.text.source) if summary.text else "",
        "tokens": front.tokens,
        "documents": front.documents,
        "reference_perplexity": perplexity_text(front.reference_perplexity),
    }


def _losses(front: Front | None, digest: str) -> list[dict[str, Any]]:
    """The plan first, then the best baselines that were measured on the same text."""
    own = front.find(digest) if front else None
    if front is None or own is None:
        return []
    rivals = [row for row in front.rows if row.kind != "searched" and row.digest != digest]
    rivals.sort(key=lambda row: row.measured.kl)
    return [_loss(row, own) for row in (own, *rivals[:MOST_BASELINES])]


def _hardware(summary: Summary, digest: str) -> dict[str, Any] | None:
    """What running the plan in its tool gave, beside the baselines; None where it was not run."""
    own = [row for row in summary.speeds if row.digest == digest]
    if not own:
        return None
    rivals = [row for row in summary.speeds if row.kind != "searched" and row.digest != digest]
    rows = [speed_cells(row, summary) for row in (*own, *rivals[:MOST_BASELINES])]
    return {"header": list(HEADER), "rows": [list(row) for row in rows], "setting": setting(summary)}


def _too_slow(summary: Summary, digest: str) -> list[str]:
    """The bounds on speed that the plan was seen to miss, in words."""
    found = next((row.speed for row in summary.speeds if row.digest == digest), None)
    missed = [b.asked for b in asked_bounds(summary) if isinstance(found, Speed) and b.missed(found)]
    result = summary.result
    if not missed and result and result.too_slow and digest == result.final:
        return [bound.asked for bound in asked_bounds(summary)]  # it could not be run at all
    return missed


def _loss(row: PlanRow, own: PlanRow) -> dict[str, Any]:
    facts = {
        "label": row.label,
        "digest": row.digest,
        "weight_bytes": row.weight_bytes,
        "effective_bits": row.effective_bits,
        "kl": row.measured.kl,
        "kl_se": row.kl_se,
        "loss": loss_text(row.measured.kl, row.kl_se),
        "perplexity": perplexity_text(row.measured.perplexity),
        "agreement": row.measured.agreement,
    }
    if row is own:
        return facts
    paired = compare(row.measured, own.measured)
    return {**facts, "more": loss_text(paired.difference, paired.se if row.kl_se is not None else None)}
