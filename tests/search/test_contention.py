"""Many processes at one store: a run that writes, windows that read, and somebody who holds a lock."""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import pytest

from tightfit.search import connection
from tightfit.search.records import StoredTrial
from tightfit.search.store import Store
from tightfit.search.summary import summarize
from tightfit.spaces import Space, WeightRules, build_space, get_target, read_geometry
from tightfit.workers.measurement import DocumentLoss, Measurement

CONFIG = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
READERS, ROUNDS, LOCKED_SECONDS = 8, 150, 10.0


def small_space() -> Space:
    return build_space(read_geometry(CONFIG), WeightRules((2, 3, 4, 6), groups=(32,)), get_target("any"))


def write(path: Path, ready: Barrier, ended: Event) -> None:
    """Be the run: one turn after another, each stored before it is measured."""
    space = small_space()
    with Store.open(path) as store:
        ready.wait()
        for turn in range(ROUNDS):
            levels = [turn >> 2 * place & 3 for place in range(len(space.decisions))]
            plan = space.plan(levels)
            store.add_plan(plan, space.bytes_of(levels), "writer")
            store.add_trials([StoredTrial("writer", turn, 0, plan.digest, "writer", "searched", {})])
            document = DocumentLoss("doc", 100, 10.0 + turn, 330.0, 320.0, 90)
            store.add_measurement(Measurement(plan.digest, "selection", "p", (document,), 1.0, 0.1))
            store.add_event("explore", "round", {"round": turn})
    ended.set()


def read(path: Path, ready: Barrier, ended: Event, seen: Any) -> None:
    """Be a window: look again and again; what was seen once must stay."""
    ready.wait()
    looks, most = 0, 0
    while True:
        last = ended.is_set()
        with Store.open(path, mode="ro") as store:
            summary = summarize(store)
            assert all(m.documents for m in store.measurements())  # outside of any snapshot
            trials = len(store.trials())
        measured = len(summary.front.rows) if summary.front else 0
        assert measured >= most, "a measurement was lost"
        assert trials >= measured, "half of a turn was seen"
        looks, most = looks + 1, measured
        if last:
            seen.put((looks, most))
            return


def lock(path: Path, ready: Barrier, held: Event) -> None:
    """Be somebody else, with a lock that nobody expected."""
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    ready.wait()
    time.sleep(0.2)
    connection.execute("BEGIN EXCLUSIVE")
    held.set()
    time.sleep(LOCKED_SECONDS)
    connection.execute("ROLLBACK")


def test_one_writer_eight_readers_and_a_foreign_lock_of_ten_seconds(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Store.open(path) as store:
        store.set_space(small_space())
    context = multiprocessing.get_context("spawn")
    ready, ended, held = context.Barrier(READERS + 2), context.Event(), context.Event()
    seen = context.Queue()
    start: Callable[..., Any] = lambda target, *more: context.Process(
        target=target, args=(path, ready, *more)
    )
    processes = [start(write, ended), start(lock, held), *(start(read, ended, seen) for _ in range(READERS))]
    for process in processes:
        process.start()
    looks = [seen.get(timeout=300) for _ in range(READERS)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(processes)
    assert held.is_set()
    assert all(count > 1 and most == ROUNDS for count, most in looks)
    with Store.open(path) as store:
        assert len(store.measurements()) == len(store.trials()) == len(store.events()) == ROUNDS


def test_a_lock_that_never_ends_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.db"
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.2)
    with Store.open(path) as store:
        store.set_space(small_space())
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        try:
            with pytest.raises(connection.StoreError, match=r"another process has kept .*run\.db locked"):
                store.put("key", 1)
            with Store.open(path, mode="ro") as reader:  # a reader never waits
                assert reader.decisions() == small_space().decisions
        finally:
            other.close()
        store.put("key", 1)


def test_a_full_disk_is_reported_in_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run.db") as store:
        store.put("key", 1)
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(connection.StoreError, match=r"database or disk is full.* is kept"):
            store.put("key", "x" * 100_000)
        assert store.get("key") == 1
