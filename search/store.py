"""The store: one SQLite file that holds everything a run knows.

One process writes; any number read while it does (WAL). A writer's transactions are short and
take the write lock at once, so that a reader or a second writer never meets half a change. What
the report, the command line and the user interface show is read from here alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from sqlite_utils import Database
from sqlite_utils.db import Table

from tightfit.search.connection import Mode, connect, reading, writing
from tightfit.search.records import (
    Event,
    Score,
    Site,
    StoredPlan,
    StoredTrial,
    check_finite,
    encode,
    measurement_record,
)
from tightfit.spaces import Decision, InputError, KvOption, Plan, Space, kv_sites, read_option
from tightfit.workers.measurement import DocumentLoss, Failure, Measurement

RUN_FILE = "run.db"
"""Name of the store inside a run's folder."""


class Store:
    """A run's store. Open it with :meth:`open`; it is a context manager that closes itself."""

    def __init__(self, db: Database, path: Path) -> None:
        self._db = db
        self.path = path

    @classmethod
    def open(cls, path: str | Path, mode: Mode = "rw") -> Store:
        """Open the store of a run, given its file or its folder.

        Args:
            path: ``run.db`` or the folder that holds it.
            mode: ``rw`` creates the file where there is none, checks its integrity and brings its
                tables up to date; ``ro`` can change nothing and may be used while a run is writing.

        Raises:
            InputError: there is no run to read, the file is no Tightfit run, it was written by a
                newer version, it is damaged, or its folder cannot be made.
        """
        path = Path(path)
        file = path / RUN_FILE if path.is_dir() else path
        if mode == "ro" and not file.is_file():
            raise InputError(f"there is no run at {path} (a run is a folder with a {RUN_FILE}).")
        return cls(connect(file, mode), file)

    def close(self) -> None:
        """Close the file; the last writer also folds the write-ahead log into it."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def snapshot(self) -> AbstractContextManager[None]:
        """See one moment of the run: reads inside the block ignore what is written meanwhile."""
        return reading(self._db)

    def _table(self, name: str) -> Table:
        return cast(Table, self._db[name])

    def _rows(self, sql: str, parameters: Iterable[Any] = ()) -> list[dict[str, Any]]:
        return list(self._db.query(sql, list(parameters)))

    # Values of the run

    def put(self, key: str, value: Any) -> None:
        """Set a value of the run (anything JSON can hold, NumPy numbers and arrays included).

        Raises:
            ValueError: the value holds a number that is not finite.
        """
        record = {"key": key, "value": encode(value)}
        with writing(self._db):
            self._table("run").insert(record, pk="key", replace=True)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the run, or ``default`` where it is not set yet."""
        rows = self._rows("SELECT value FROM run WHERE key = ?", [key])
        return json.loads(rows[0]["value"]) if rows else default

    def forget(self, keys: Iterable[str], fits: Iterable[str], *, trials: bool = False) -> None:
        """Remove values of the run, fits and perhaps all trials: nobody meets one without the others."""
        with writing(self._db):
            if trials:
                self._db.execute("DELETE FROM trial")
            for key in keys:
                self._db.execute("DELETE FROM run WHERE key = ?", [key])
            for name in fits:
                self._db.execute("DELETE FROM fit WHERE name = ?", [name])

    # The space

    def set_space(self, space: Space) -> None:
        """Store the sites and options of a space, in place of any other; scores of others are removed."""
        owner = {site: decision.name for decision in space.decisions for site in decision.sites}
        sites = [
            Site(x.site, x.layer, x.module, x.rows, x.cols, x.tied_to, owner[x.site])
            for x in space.geometry.linears
        ]
        options = [
            {"decision": decision.name, "position": position, "name": option.name, "bytes": cost}
            for decision in space.decisions
            for position, (option, cost) in enumerate(zip(decision.options, decision.costs, strict=True))
        ]
        with writing(self._db):
            for table in ("score", "option", "site"):
                self._db.execute(f"DELETE FROM {table}")
            self._table("site").insert_all({"position": i, **asdict(site)} for i, site in enumerate(sites))
            self._table("option").insert_all(options)

    def sites(self) -> list[Site]:
        """Return the sites in depth order."""
        columns = "name, layer, module, rows, cols, tied_to, decision"
        return [Site(**row) for row in self._rows(f"SELECT {columns} FROM site ORDER BY position")]

    def decisions(self) -> tuple[Decision, ...]:
        """Return the decisions of the space, in its order."""
        options: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows("SELECT * FROM option ORDER BY rowid"):
            options.setdefault(row["decision"], []).append(row)
        governed: dict[str, list[Site]] = {name: [] for name in options}
        sites = self.sites()
        for site in sites:
            governed[site.decision].append(site)
        layers = 1 + max((site.layer for site in sites if site.layer is not None), default=-1)
        return tuple(_decision(name, governed[name], rows, layers) for name, rows in options.items())

    # Scores

    def add_scores(self, kind: str, scores: Iterable[Score]) -> None:
        """Store scores of one kind; a score of the same option and kind is replaced.

        Args:
            kind: ``prescreen``, ``marginal``, ``calibrated`` or ``loss_model``.
            scores: any number of them, for options of the stored space.

        Raises:
            ValueError: a score is not finite; then none of them is stored.
        """
        rows = [
            {
                "decision": score.decision,
                "option": score.option,
                "kind": kind,
                "value": float(score.value),
                "se": None if score.se is None else float(score.se),
            }
            for score in scores
        ]
        for row in rows:
            check_finite(row, f"{kind} score of {row['decision']} at {row['option']}")
        with writing(self._db):
            self._table("score").insert_all(rows, pk=("decision", "option", "kind"), replace=True)

    def scores(self, kind: str) -> list[Score]:
        """Return the scores of one kind, in the order of the space."""
        rows = self._rows(
            "SELECT score.decision, score.option, value, se FROM score JOIN option "
            "ON option.decision = score.decision AND option.name = score.option "
            "WHERE kind = ? ORDER BY option.rowid",
            [kind],
        )
        return [Score(**row) for row in rows]

    # Plans and measurements

    def add_plan(self, plan: Plan, size: int, source: str, cache: int = 0) -> bool:
        """Store a plan; whoever proposed it first stays its source. Return whether it was new.

        Args:
            plan: with its digest.
            size: its bytes, KV caches included where it decides about them.
            source: who proposed it.
            cache: bytes of these caches.

        Raises:
            ValueError: the same plan is stored with other bytes.
        """
        record = {
            "digest": plan.digest,
            "choices": encode(plan.to_dict()),
            "bytes": int(size),
            "cache_bytes": int(cache),
            "source": source,
            "first_seen": time.time(),
        }
        with writing(self._db):
            held = self._rows("SELECT bytes FROM plan WHERE digest = ?", [plan.digest])
            if not held:
                self._table("plan").insert(record)
            elif held[0]["bytes"] != size:
                raise ValueError(f"plan {plan.short} has {held[0]['bytes']} bytes, not {size}")
        return not held

    def charge_again(self, space: Space) -> None:
        """Count the bytes of stored plans again, after a space's caches have come to hold more or less."""
        with writing(self._db):
            for row in self._rows("SELECT digest, choices FROM plan"):
                plan = Plan.from_dict(json.loads(row["choices"]))
                try:
                    size, cache = space.charge(plan)
                except InputError:  # it has options that are not on offer any more
                    continue
                self._table("plan").update(row["digest"], {"bytes": size, "cache_bytes": cache})

    def plans(self) -> dict[str, StoredPlan]:
        """Return every plan by its digest, in the order of being first seen."""
        return {
            row["digest"]: StoredPlan(
                Plan.from_dict(json.loads(row["choices"])),
                row["bytes"],
                row["source"],
                row["first_seen"],
                row.get("cache_bytes", 0),  # a reader of a file from before there were any
            )
            for row in self._rows("SELECT * FROM plan ORDER BY rowid")
        }

    def add_measurement(self, measurement: Measurement) -> Measurement:
        """Store a measurement of a stored plan with its documents, or return the one that is there.

        Equal (plan, split, protocol) is never stored twice. The standard error of a measurement on
        a single document is unknown and stored as NULL.

        Raises:
            ValueError: it scored no token, or a number in it is not finite.
        """
        record = measurement_record(measurement)
        with writing(self._db):
            held = self._measurements(
                "plan = ? AND split = ? AND protocol = ?",
                [measurement.plan, measurement.split, measurement.protocol],
            )
            if held:
                return held[0]
            row = self._table("measurement").insert(record)
            self._table("document_loss").insert_all(
                {"measurement": row.last_pk, "position": position, **asdict(document)}
                for position, document in enumerate(measurement.documents)
            )
        return measurement

    def find_measurement(self, plan: str, split: str, protocol: str) -> Measurement | None:
        """Return the measurement of a plan (by digest) under exactly this protocol, if there is one."""
        found = self._measurements("plan = ? AND split = ? AND protocol = ?", [plan, split, protocol])
        return found[0] if found else None

    def measurements(self, split: str | None = None) -> list[Measurement]:
        """Return every measurement, or those of one split, oldest first, documents included."""
        return self._measurements("split = ?", [split]) if split else self._measurements("1", [])

    def _measurements(self, where: str, parameters: list[str]) -> list[Measurement]:
        # First the measurements, then their documents: what a writer adds in between is not looked for.
        rows = self._rows(f"SELECT * FROM measurement WHERE {where} ORDER BY id", parameters)
        documents: dict[int, list[DocumentLoss]] = {}
        for row in self._rows(
            "SELECT measurement, document, tokens, kl, nll, reference_nll, agree FROM document_loss "
            f"WHERE measurement IN (SELECT id FROM measurement WHERE {where}) ORDER BY measurement, position",
            parameters,
        ):
            documents.setdefault(row.pop("measurement"), []).append(DocumentLoss(**row))
        return [
            Measurement(
                row["plan"],
                row["split"],
                row["protocol"],
                tuple(documents[row["id"]]),
                row["kl_p99"],
                row["seconds"],
            )
            for row in rows
        ]

    def add_failure(self, failure: Failure) -> None:
        """Store that a stored plan cannot be measured; again does nothing."""
        record = {**asdict(failure), "created": time.time()}
        with writing(self._db):
            self._table("failure").insert(record, ignore=True)

    def find_failure(self, plan: str, split: str, protocol: str) -> Failure | None:
        """Return why a plan cannot be measured under exactly this protocol, if it cannot."""
        found = self._failures("plan = ? AND split = ? AND protocol = ?", [plan, split, protocol])
        return found[0] if found else None

    def failures(self) -> list[Failure]:
        """Return every plan that could not be measured, oldest first."""
        return self._failures("1", [])

    def _failures(self, where: str, parameters: list[str]) -> list[Failure]:
        if "failure" not in self._db.table_names():  # a reader of a file from before there were any
            return []
        columns = "plan, split, protocol, kind, reason"
        rows = self._rows(f"SELECT {columns} FROM failure WHERE {where} ORDER BY rowid", parameters)
        return [Failure(**row) for row in rows]

    # Trials

    def add_trials(self, trials: Iterable[StoredTrial]) -> None:
        """Store what an agent proposed in one turn, all of it or nothing; the plans are stored already."""
        rows = [{**asdict(trial), "note": encode(trial.note)} for trial in trials]
        with writing(self._db):
            self._table("trial").insert_all(rows)

    def trials(self) -> list[StoredTrial]:
        """Return what agents proposed, oldest first."""
        if "trial" not in self._db.table_names():  # a reader of a file from before there were any
            return []
        rows = self._rows("SELECT * FROM trial ORDER BY rowid")
        return [StoredTrial(**{**row, "note": json.loads(row["note"])}) for row in rows]

    # Fits and events

    def add_fit(self, name: str, data: Mapping[str, Any]) -> None:
        """Store a fit; an earlier one of this name is replaced.

        Raises:
            ValueError: the data hold a number that is not finite.
        """
        record = {"name": name, "data": encode(dict(data)), "created": time.time()}
        with writing(self._db):
            self._table("fit").insert(record, pk="name", replace=True)

    def get_fit(self, name: str) -> dict[str, Any] | None:
        """Return a fit, or None where it was not made yet."""
        rows = self._rows("SELECT data FROM fit WHERE name = ?", [name])
        return dict(json.loads(rows[0]["data"])) if rows else None

    def add_event(self, stage: str, kind: str, data: Mapping[str, Any] | None = None) -> None:
        """Append something that happened, with whatever belongs to it.

        Raises:
            ValueError: the data hold a number that is not finite.
        """
        record = {"time": time.time(), "stage": stage, "kind": kind, "data": encode(dict(data or {}))}
        with writing(self._db):
            self._table("event").insert(record)

    def events(self, after: int = 0) -> list[Event]:
        """Return the events with an id above ``after``, oldest first."""
        rows = self._rows("SELECT * FROM event WHERE id > ? ORDER BY id", [after])
        return [Event(**{**row, "data": json.loads(row["data"])}) for row in rows]


def _decision(name: str, sites: list[Site], rows: list[dict[str, Any]], layers: int) -> Decision:
    if caches := kv_sites(name, layers):
        options = tuple(KvOption.from_name(row["name"]) for row in rows)
        return Decision(name, caches, options, tuple(row["bytes"] for row in rows), 0)
    # The owner of a tied tensor first, as the space lists it.
    ordered = [site for site in sites if site.tied_to is None] + [site for site in sites if site.tied_to]
    return Decision(
        name=name,
        sites=tuple(site.name for site in ordered),
        options=tuple(read_option(row["name"]) for row in rows),
        costs=tuple(row["bytes"] for row in rows),
        weights=sum(site.rows * site.cols for site in sites if site.tied_to is None),
    )
