"""What a run folder belongs to: everything that its scores and measurements rest on.

Settings that name other inputs are refused before anything is loaded; what only loading can tell
(weights, tokens, library versions) is refused right after. A folder whose run never got past loading
belongs to nothing yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightfit.search.settings import Settings
from tightfit.search.store import Store
from tightfit.spaces import InputError

_SETTINGS = ("model", "seed", "threads", "device", "target", "space", "text")
# What later stages write. It belongs to one budget, and another one starts without it.
_OF_ONE_BUDGET = ("front", "solution", "predicted", "finalists", "result")
_FITS_OF_ONE_BUDGET = ("link", "certificate_variance", "certificate_band")


def claim(store: Store, settings: Settings) -> None:
    """Take over a run folder, or refuse it where its measurements are of other settings.

    Raises:
        InputError: the folder holds a run with another model, text, space, …; names the setting.
    """
    held, new = store.get("settings", {}), settings.to_dict()
    for key in _SETTINGS if store.get("identity") else ():
        before, now = _comparable(key, held.get(key)), _comparable(key, new.get(key))
        if before != now:
            _refuse(store, key, before, now)
    store.put("settings", new)


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


def set_budget(store: Store, limit: int, text: str) -> None:
    """Record the budget; results of another one are taken out, measurements and scores stay."""
    held = store.get("budget")
    if held and held["limit"] != limit:
        store.forget(_OF_ONE_BUDGET, _FITS_OF_ONE_BUDGET)
    store.put("budget", {"limit": limit, "text": text})


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
