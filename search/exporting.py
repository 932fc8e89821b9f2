"""Exporting a plan of a run: everything cheap is checked first, then the file is written."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tightfit.exporters import EXPORTERS, Exporter, Shipment, get_exporter
from tightfit.search.resolve import stored_plan, stored_space
from tightfit.search.shipping import stored_shipment
from tightfit.search.store import Store
from tightfit.search.tables import render_table
from tightfit.spaces import InputError


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        exporter: its name.
        files: the paths written, the main one first; or the one folder.
        after: lines that say how to go on.
    """

    exporter: str
    plan: str
    files: tuple[Path, ...]
    after: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        files = [{"path": str(file), "bytes": _size(file)} for file in self.files]
        return {
            "exporter": self.exporter,
            "kind": EXPORTERS[self.exporter].kind,
            "plan": self.plan,
            "files": files,
            "next": list(self.after),
        }

    def render(self) -> str:
        """Return it as text."""
        lines = [f"wrote {file}" for file in self.files]
        return "\n".join([*lines, *(["next:"] if self.after else []), *(f"  {line}" for line in self.after)])


def export_plan(
    store: Store,
    name: str,
    out: Path | None = None,
    digest: str | None = None,
    *,
    force: bool = False,
    files: Sequence[Path] = (),
) -> Exported:
    """Write a plan of a run.

    Args:
        store: of the run.
        name: of the exporter.
        out: where to; in the run's folder unless given.
        digest: start of the plan's digest; the run's own choice unless given.
        force: replace files that exist, or the folder of an earlier export.
        files: exported files that a model card lists.

    Raises:
        InputError: there is no such exporter or plan, the tool cannot express it, a file exists or cannot be
            written, or the model is gone or is another one.
    """
    exporter = get_exporter(name)
    plan = stored_plan(store, digest)
    exporter.check_space(stored_space(store))
    path = out or store.path.parent / f"plan{exporter.suffix}"
    for file in exporter.files(path):
        check_place(file, force, folder=exporter.folder)
    if files and exporter.kind != "document":
        raise InputError("--with names files for a model card: use it with --to card.")
    listed = [describe_file(file) for file in files]
    shipment = stored_shipment(store, plan, source=exporter.needs_source, facts=exporter.kind == "document")
    if listed:
        shipment = replace(shipment, facts={**shipment.facts, "files": listed})
    written = exporter.export(shipment, path)
    existing = tuple(file for file in exporter.files(written) if file.exists())
    return Exported(name, plan.digest, existing, tuple(_after(store, exporter, shipment, written)))


def check_place(file: Path, force: bool, *, folder: bool = False) -> None:
    """Refuse a place where a file or folder cannot or should not be written, before anything heavy is done.

    Raises:
        InputError: it is a folder where a file is to be, it exists, or the folder around it does not.
    """
    if file.is_dir() and not folder:
        raise InputError(f"{file} is a folder: name the file to write.")
    if not file.parent.is_dir():
        raise InputError(f"{file} cannot be written: there is no folder {file.parent}.")
    if file.exists() and not force:
        raise InputError(f"{file} exists already: name another file with --out, or replace it with --force.")


def _size(path: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def describe_file(file: Path) -> dict[str, Any]:
    """Return name, bytes and SHA-256 of a file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}).") from error
    return {"name": file.name, "bytes": file.stat().st_size, "sha256": digest}


def listing_table() -> str:
    """Return the exporters as a table."""
    rows = [[name, one.kind, f"*{one.suffix}", one.tool, one.about] for name, one in EXPORTERS.items()]
    table = render_table(["name", "kind", "writes", "for", "what"], rows, right=set())
    return (
        f"{table}\n"
        "artefact: what was measured, to the byte; recipe: a tool quantizes again; document: for people"
    )


def listing_json() -> str:
    """Return the exporters as JSON."""
    return json.dumps(
        [{"name": name, **exporter.to_dict()} for name, exporter in EXPORTERS.items()], indent=2
    )


def _after(store: Store, exporter: Exporter, shipment: Shipment, written: Path) -> list[str]:
    lines = exporter.advice(shipment, written)
    if exporter.kind == "artefact" and not exporter.folder:
        run, file = shlex.quote(str(store.path.parent)), shlex.quote(str(written))
        card = shlex.quote(str(written.with_name("README.md")))
        plan = shipment.plan.short
        lines += [
            f"tightfit verify {file} --run {run}",
            f"tightfit export {run} --to card --plan {plan} --out {card} --with {file}",
        ]
    return lines
