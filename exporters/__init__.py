"""Handing a plan to the tools that carry it out.

One module per downstream tool. It writes the tool's own file, checks it under that tool's matching
rules, and reads back every layer's bits and the total bytes from what was written, never from what
a tool says about itself. An exporter says which of two things it is: an *artefact* holds the very
weights that were measured; a *recipe* hands rules to a tool that quantizes again, so that its loss
is not the measured one. It may import ``spaces`` and ``compress``; a loss comes through a callable.

To add an exporter, write one file with an ``export(shipment, out)`` function and one line in
:data:`EXPORTERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from tightfit.exporters.base import Shipment
from tightfit.spaces import InputError, suggest


@dataclass(frozen=True)
class Exporter:
    """One way to write a plan.

    Attributes:
        kind: ``artefact`` or ``recipe``, as above.
        suffix: of the file it writes.
        function: ``module:function``, imported when used.
    """

    kind: Literal["artefact", "recipe"]
    suffix: str
    function: str

    def export(self, shipment: Shipment, out: Path) -> Path:
        """Write the plan and return the path written."""
        module, _, name = self.function.partition(":")
        function: Callable[[Shipment, Path], Path] = getattr(import_module(module), name)
        return function(shipment, out)


EXPORTERS: dict[str, Exporter] = {
    "json": Exporter("recipe", ".json", "tightfit.exporters.plan_json:export"),
}
"""Name on the command line → exporter."""


def get_exporter(name: str) -> Exporter:
    """Return an exporter by its name.

    Raises:
        InputError: there is no such exporter.
    """
    if name not in EXPORTERS:
        allowed = ", ".join(EXPORTERS)
        raise InputError(f"no exporter is called {name!r} (exporters: {allowed}).{suggest(name, EXPORTERS)}")
    return EXPORTERS[name]


__all__ = ["EXPORTERS", "Exporter", "Shipment", "get_exporter"]
