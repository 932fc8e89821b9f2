"""What a run folder belongs to: everything that its scores and measurements rest on.

Settings that name other inputs are refused before anything is loaded; what only loading can tell
(weights, tokens, library versions) is refused right after. A folder whose run never got past loading
belongs to nothing yet. Other settings may change between two starts of a run: measurements are kept
wherever they still mean the same, everything drawn from them starts anew, and the run says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.search.settings import Settings
from tightfit.search.store import Store
from tightfit.spaces import InputError, Space

# Measurements rest on these.
_FIXED = ("model", "seed", "threads", "device", "target", "text")
# These change the loss model, or what is sought with it.
_RESTARTING = ("budget", "space", "sense")
# These change nothing about what a run finds.
_FREE = ("name", "runs", "workers", "limits")
# What later stages write. It belongs to one budget, and another one starts without it.
_OF_ONE_BUDGET = ("front", "solution", "predicted", "finalists", "best", "result", "finished")
_FITS_OF_ONE_BUDGET = ("link", "certificate_variance", "certificate_band", "hardware")
# These belong to the formats on offer.
_FITS_OF_ONE_SPACE = ("latency_design", "latency_generate", "latency_prompt")
_ENDINGS = ("finalists", "result", "finished")


@dataclass(frozen=True)
class Change:
    """What differs between a run and the settings that it is started with again.

    Attributes:
        lines: in words, one difference each.
        restarts: whether loss model, front and proposals start anew; otherwise only the end does.
    """

    lines: tuple[str, ...]
    restarts: bool

    @property
    def words(self) -> tuple[str, ...]:
        """The differences, and what they mean for what was found before."""
        if not self.lines:
            return ()
        kept = "measurements are kept; loss model, front and proposals start anew"
        return (*self.lines, kept if self.restarts else "measurements and proposals are kept")


def compare_settings(store: Store, settings: Settings) -> Change:
    """Find what has changed since a run was last started; nothing is written.

    Raises:
        InputError: the folder holds a run with another model, text, seed, …; names the setting.
    """
    if not store.get("identity"):  # it belongs to nothing yet
        return Change((), False)
    lines, restarts = [], False
    for key, before, now in _differences(store.get("settings", {}), settings.to_dict()):
        section = key.partition(".")[0]
        if section in _FIXED:
            _refuse(store, key, before, now)
        if section not in _FREE:
            lines.append(f"{key} is now {_brief(now)} (it was {_brief(before)})")
            restarts |= section in _RESTARTING or key == "search.mode"
    return Change(tuple(lines), restarts)


def compare_space(store: Store, space: Space, prefix: int = 0) -> str | None:
    """Say what another space means for what a run has measured, None where it is the same; writes nothing.

    Args:
        store: of the run.
        space: of the settings that it is started with now.
        prefix: tokens in the KV caches where losses are measured.

    Raises:
        InputError: the store holds a run over other decisions, or losses were measured after another number
            of tokens.
    """
    held, before = store.decisions(), store.get("space", {}).get("prefix")
    if store.get("identity") and before is not None and before != prefix:
        raise InputError(
            f"{store.path.parent} holds a run whose losses are measured after {before} tokens of context; "
            f"now it would be {prefix}: set text.prefix to {before}, or give this run another name."
        )
    if not store.get("identity") or held == space.decisions:
        return None
    if [(d.name, d.sites, d.weights) for d in held] != [
        (d.name, d.sites, d.weights) for d in space.decisions
    ]:
        raise InputError(
            f"{store.path.parent} holds a run whose decisions govern other matrices: "
            "give this run another name, or delete that folder."
        )
    offered = {d.name: {option.name for option in d.options} for d in space.decisions}
    measured = {m.plan for m in store.measurements()}
    plans = [stored.plan for digest, stored in store.plans().items() if digest in measured]
    kept = sum(all(option in offered[name] for name, option in plan.choices) for plan in plans)
    return (
        f"the options on offer have changed: {kept} of {len(plans)} measured plans are still possible and "
        "keep their measurements; scores, loss model and proposals start anew"
    )


def adopt(store: Store, settings: Settings, change: Change, space: Space, limit: int, budget: str) -> None:
    """Make a run one of these settings: take out what no longer holds, then record them.

    May be interrupted anywhere and done again: the settings, by which a change is noticed, come last.
    """
    held = store.get("budget")
    if change.restarts or store.decisions() != space.decisions or (held and held["limit"] != limit):
        fits: tuple[str, ...] = _FITS_OF_ONE_BUDGET
        if store.decisions() != space.decisions:
            fits += _FITS_OF_ONE_SPACE
        store.forget((*_OF_ONE_BUDGET, "speed_reach"), fits, trials=True)
        store.charge_again(space)
    elif change.lines:
        store.forget(_ENDINGS, ())
    if store.decisions() != space.decisions:
        store.set_space(space)
    store.put("budget", {"limit": limit, "text": budget})
    store.put("settings", settings.to_dict())


def is_finished(store: Store, settings: Settings) -> bool:
    """Whether the run has come to its end under these very settings, free ones left out."""
    held = store.get("finished")
    # Keys that are new since then stand at their defaults.
    return held is not None and _essence(Settings.from_dict(held)) == _essence(settings)


def set_finished(store: Store, settings: Settings) -> None:
    """Record that the run has come to its end."""
    store.put("finished", _essence(settings))


def _essence(settings: Settings) -> dict[str, Any]:
    return {key: value for key, value in settings.to_dict().items() if key not in _FREE}


def check_inputs(store: Store, settings: Settings) -> None:
    """Check that model and text are still the ones that a run was made with, without loading the model.

    Raises:
        InputError: they are not, or are gone.
    """
    from tightfit.workers.models import digest_folder
    from tightfit.workers.sources import resolve_folder
    from tightfit.workers.text import load_text

    held = store.get("identity", {})
    now = {
        "model digest": digest_folder(resolve_folder(settings.model)),
        "text": load_text(settings.text.source, settings.text.dataset).digest,
    }
    for key, value in now.items():
        if held.get(key) != value:
            _refuse(store, key, held.get(key), value)


def identify(store: Store, facts: Mapping[str, Any]) -> None:
    """Record what was loaded, or refuse the folder where its measurements rest on something else.

    Args:
        store: of the run.
        facts: by name, whatever measurements rest on.

    Raises:
        InputError: a fact differs from that of the run in this folder; names it.
    """
    held = store.get("identity", {})
    for key, value in facts.items():
        if key in held and held[key] != value:
            _refuse(store, key, held[key], value)
    store.put("identity", dict(facts))


def _differences(
    before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, old value, new value) of every setting that differs.

    Keys that the older settings do not have are new in this version and stand at their defaults there.
    """
    for key, value in now.items():
        old = before.get(key, value)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and key not in ("only", "pin"):
            yield from _differences(old, value, f"{prefix}{key}.")
        elif _comparable(f"{prefix}{key}", old) != _comparable(f"{prefix}{key}", value):
            yield f"{prefix}{key}", old, value


def _refuse(store: Store, what: str, before: object, now: object) -> None:
    raise InputError(
        f"{store.path.parent} holds a run with another {what} ({_brief(before)}, now {_brief(now)}): "
        "give this run another name, or delete that folder."
    )


def _comparable(key: str, value: Any) -> str:
    """Two spellings of one local folder are one model."""
    if key == "model" and Path(str(value)).is_dir():
        value = str(Path(str(value)).resolve())
    return json.dumps(value)


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
