"""The search itself: settings, stages, solvers, agents, the store, and what people see of a run.

As a library::

    from tightfit.search import Store, load_settings, run_search, summarize

    folder = run_search(load_settings("search.yaml", ["budget.weights=80MiB"]))
    with Store.open(folder, mode="ro") as store:
        print(summarize(store).result.verdict)

:mod:`~tightfit.search.run` goes through the stages of :mod:`~tightfit.search.stages`, which write
everything into the :class:`~tightfit.search.store.Store`; tables, figures, report and summary read it
from there. To add an agent, see :mod:`tightfit.search.agents`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.search.resolve import resolve
    from tightfit.search.run import run_search
    from tightfit.search.settings import Settings, load_settings
    from tightfit.search.store import Store
    from tightfit.search.summary import summarize

__all__ = ["Settings", "Store", "load_settings", "resolve", "run_search", "summarize"]

_HOMES = {
    "Settings": "settings",
    "Store": "store",
    "load_settings": "settings",
    "resolve": "resolve",
    "run_search": "run",
    "summarize": "summary",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: a command that only reads a store needs neither settings nor solvers.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
