"""The tables of a run, and how a file of an earlier version becomes one of this version.

Every change of the tables is one more named function below and one more in :data:`SCHEMA_VERSION`;
what is written is never edited, since files of every earlier version exist.
"""

from __future__ import annotations

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from tightfit.spaces.errors import InputError

APPLICATION_ID = 0x54464954
"""``TFIT`` in ASCII: SQLite's own mark in the file header for whose database this is."""

SCHEMA_VERSION = 3
"""Number of migrations; a file's own number is its ``user_version``."""

MIGRATIONS = Migrations("tightfit")


@MIGRATIONS()
def m001_first_tables(db: Database) -> None:
    """Create the tables of design version 1."""
    db.executescript(_FIRST_TABLES)


@MIGRATIONS()
def m002_trials_and_failures(db: Database) -> None:
    """Keep what every agent proposed, in order, and which plans cannot be measured."""
    db.executescript(_TRIALS_AND_FAILURES)


@MIGRATIONS()
def m003_bytes_of_caches(db: Database) -> None:
    """Keep apart what of a plan's bytes are KV caches; before there were none."""
    db.execute("ALTER TABLE plan ADD COLUMN cache_bytes INTEGER NOT NULL DEFAULT 0")


def check_version(db: Database, path: object) -> None:
    """Refuse a database that this version cannot read.

    Raises:
        InputError: it is no Tightfit run, or its tables are newer than this version knows.
    """
    if _pragma(db, "application_id") != APPLICATION_ID:
        raise InputError(f"{path} is a SQLite file, but not a Tightfit run.")
    version = _pragma(db, "user_version")
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path} was written by a newer Tightfit: its schema version is {version}, "
            f"this version reads up to {SCHEMA_VERSION}."
        )


def is_empty(db: Database) -> bool:
    """Whether nothing was ever stored, so that the file may become a run."""
    return not db.table_names() and _pragma(db, "application_id") == 0


def is_current(db: Database) -> bool:
    """Whether every migration was applied."""
    return _pragma(db, "user_version") == SCHEMA_VERSION


def upgrade(db: Database) -> None:
    """Apply the pending migrations, all or none of them, inside the transaction that is open."""
    MIGRATIONS.apply(db)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _pragma(db: Database, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


_FIRST_TABLES = """
CREATE TABLE run (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE site (
    position INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    layer INTEGER,
    module TEXT NOT NULL,
    rows INTEGER NOT NULL,
    cols INTEGER NOT NULL,
    tied_to TEXT,
    decision TEXT NOT NULL
) STRICT;

CREATE TABLE option (
    decision TEXT NOT NULL,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (decision, name),
    UNIQUE (decision, position)
) STRICT;

CREATE TABLE score (
    decision TEXT NOT NULL,
    option TEXT NOT NULL,
    kind TEXT NOT NULL,
    value REAL NOT NULL,
    se REAL,
    PRIMARY KEY (decision, option, kind),
    FOREIGN KEY (decision, option) REFERENCES option (decision, name)
) STRICT;

CREATE TABLE plan (
    digest TEXT PRIMARY KEY,
    choices TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    source TEXT NOT NULL,
    first_seen REAL NOT NULL
) STRICT;

CREATE TABLE measurement (
    id INTEGER PRIMARY KEY,
    plan TEXT NOT NULL REFERENCES plan (digest),
    split TEXT NOT NULL,
    protocol TEXT NOT NULL,
    kl REAL NOT NULL,
    kl_se REAL,
    delta_nll REAL NOT NULL,
    perplexity REAL NOT NULL,
    reference_perplexity REAL NOT NULL,
    agreement REAL NOT NULL,
    kl_p99 REAL NOT NULL,
    tokens INTEGER NOT NULL,
    seconds REAL NOT NULL,
    created REAL NOT NULL,
    UNIQUE (plan, split, protocol)
) STRICT;

CREATE TABLE document_loss (
    measurement INTEGER NOT NULL REFERENCES measurement (id),
    position INTEGER NOT NULL,
    document TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    kl REAL NOT NULL,
    nll REAL NOT NULL,
    reference_nll REAL NOT NULL,
    agree INTEGER NOT NULL,
    PRIMARY KEY (measurement, position),
    UNIQUE (measurement, document)
) STRICT;

CREATE TABLE fit (
    name TEXT PRIMARY KEY,
    data TEXT NOT NULL,
    created REAL NOT NULL
) STRICT;

CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    stage TEXT NOT NULL,
    kind TEXT NOT NULL,
    data TEXT NOT NULL
) STRICT;
"""

_TRIALS_AND_FAILURES = """
CREATE TABLE trial (
    agent TEXT NOT NULL,
    round INTEGER NOT NULL,
    position INTEGER NOT NULL,
    plan TEXT NOT NULL REFERENCES plan (digest),
    label TEXT NOT NULL,
    kind TEXT NOT NULL,
    note TEXT NOT NULL,
    PRIMARY KEY (agent, round, position)
) STRICT;

CREATE TABLE failure (
    plan TEXT NOT NULL REFERENCES plan (digest),
    split TEXT NOT NULL,
    protocol TEXT NOT NULL,
    kind TEXT NOT NULL,
    reason TEXT NOT NULL,
    created REAL NOT NULL,
    PRIMARY KEY (plan, split, protocol)
) STRICT;
"""
