"""How a run's SQLite file is opened, and how it is written."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from sqlite_utils import Database

from tightfit.search.migrations import check_version, is_current, is_empty, upgrade
from tightfit.spaces import InputError
from tightfit.spaces.errors import TightfitError

Mode = Literal["rw", "ro"]


class StoreError(TightfitError):
    """The store cannot be written: locked by somebody else for too long, or the disk is full."""


BUSY_SECONDS = 60.0
"""How long a writer waits for another one before it gives up."""


def connect(file: Path, mode: Mode) -> Database:
    """Open a run's file with everything set that a reader or a writer needs.

    A writer's folder is made where there is none.

    Raises:
        InputError: it is no Tightfit run, it was written by a newer version, it is damaged, or its
            folder cannot be made.
    """
    if mode == "ro":
        address, uri = f"{file.resolve().as_uri()}?mode=ro", True
    else:
        _make_folder(file.parent)
        address, uri = str(file), False
    try:
        if mode == "rw" and not file.exists():
            _create(file)
        connection = sqlite3.connect(address, uri=uri, timeout=BUSY_SECONDS)
        try:
            db = Database(connection, execute_plugins=False)
            if mode == "ro":
                db.execute("PRAGMA query_only = ON")
                check_version(db, file)
            else:
                _prepare_writer(db, file)
        except BaseException:
            connection.close()
            raise
    except sqlite3.DatabaseError as error:
        raise InputError(f"{file} cannot be opened as a Tightfit run: {error}.") from error
    return db


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made for this run ({error.strerror}).") from error


def _create(file: Path) -> None:
    """Make a new file aside and rename it, so that no reader ever finds one that is half made."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    connection = sqlite3.connect(partial)
    try:
        _prepare_writer(Database(connection, execute_plugins=False), partial)
    finally:
        connection.close()
    os.replace(partial, file)


def _prepare_writer(db: Database, file: Path) -> None:
    if not is_empty(db):  # before anything is written: the file may be somebody else's
        check_version(db, file)
        found = db.execute("PRAGMA integrity_check").fetchone()[0]
        if found != "ok":
            raise InputError(f"{file} is damaged ({found}): restore a copy or start a new run.")
    db.enable_wal()
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA foreign_keys = ON")
    if not is_current(db):
        with writing(db):
            upgrade(db)


@contextmanager
def writing(db: Database) -> Iterator[None]:
    """Make everything written inside the block one transaction, all or nothing.

    The write lock is taken at once. A plain BEGIN would ask for it only at the first write, when
    SQLite can no longer wait for another writer and fails instead.

    Raises:
        StoreError: the file cannot be written; nothing of the block is.
    """
    try:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.commit()
        except BaseException:
            db.rollback()
            raise
    except sqlite3.DatabaseError as error:
        if type(error) not in (sqlite3.OperationalError, sqlite3.DatabaseError):  # a mistake of ours
            raise
        raise StoreError(_explain(db, error)) from error


def _explain(db: Database, error: sqlite3.DatabaseError) -> str:
    file = db.execute("PRAGMA database_list").fetchone()[2]
    if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
        return (
            f"another process has kept {file} locked for {BUSY_SECONDS:.0f} s: end that process and "
            "start the run again; everything stored before is kept."
        )
    return f"{file} cannot be written ({error}); everything stored before is kept."


@contextmanager
def reading(db: Database) -> Iterator[None]:
    """See one moment of the file: reads inside the block ignore what is written meanwhile."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.rollback()
