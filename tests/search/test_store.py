from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from sqlite_utils import Database

from tightfit.search.connection import StoreError
from tightfit.search.migrations import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from tightfit.search.records import Score, measurement_record
from tightfit.search.store import Store
from tightfit.spaces import (
    InputError,
    KvRules,
    Load,
    Plan,
    Space,
    WeightRules,
    build_space,
    get_target,
    read_geometry,
)
from tightfit.workers.measurement import DocumentLoss, Measurement

PLAN = Plan((("embed", "8b-g64-float"), ("layers.0.attn.q_proj", "4b-g64-float")))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "run.db")


@pytest.fixture
def tiny() -> Callable[..., Space]:
    def build(tied: bool = True, target: str = "any", **rules: object) -> Space:
        config = {
            "model_type": "llama",
            "dtype": "bfloat16",
            "vocab_size": 320,
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "tie_word_embeddings": tied,
        }
        return build_space(read_geometry(config), WeightRules(**rules), get_target(target))

    return build


def measurement(
    plan: Plan = PLAN, split: str = "selection", documents: int = 3, kl: float = 0.1
) -> Measurement:
    rows = tuple(
        DocumentLoss(f"doc-{i}", 100 + i, kl * (100 + i) * (1 + 0.1 * i), 330.7 + i, 320.1 + i, 80 + i)
        for i in range(documents)
    )
    return Measurement(plan.digest, split, "protocol", rows, 0.71, 1.5)


# Opening


def test_a_new_file_is_a_run_with_a_schema_version_and_write_ahead_logging(store: Store) -> None:
    with sqlite3.connect(store.path) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert raw.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_the_schema_version_counts_the_migrations() -> None:
    assert len(MIGRATIONS.pending(Database(memory=True))) == SCHEMA_VERSION


def test_a_folder_stands_for_the_run_inside_it(tmp_path: Path) -> None:
    Store.open(tmp_path / "demo" / "run.db").put("a", 1)
    assert Store.open(tmp_path / "demo", mode="ro").get("a") == 1


def test_what_was_written_survives_closing_and_opening(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run.db") as first:
        first.put("a", {"b": [1, 2.5, None, "ü"]})
    with Store.open(tmp_path / "run.db") as second:
        assert second.get("a") == {"b": [1, 2.5, None, "ü"]}


def test_a_missing_run_is_an_input_error_for_readers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no run at .*nowhere"):
        Store.open(tmp_path / "nowhere", mode="ro")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, mode: str) -> None:
    text, other = tmp_path / "text.db", tmp_path / "other.db"
    text.write_text("not a database, but long enough to have a header of one hundred bytes or more " * 3)
    with sqlite3.connect(other) as raw:
        raw.execute("CREATE TABLE mine (a)")
    for file in (text, other):
        before = file.read_bytes()
        with pytest.raises(InputError, match="Tightfit run"):
            Store.open(file, mode=mode)
        assert file.read_bytes() == before


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_a_newer_schema_is_refused_with_both_versions(store: Store, mode: str) -> None:
    with sqlite3.connect(store.path) as raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(
        InputError, match=rf"version is {SCHEMA_VERSION + 1}, .* reads up to {SCHEMA_VERSION}"
    ):
        Store.open(store.path, mode=mode)


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    """A run as it was written before caches were decided about: by the first two migrations alone."""
    file = tmp_path / "old" / "run.db"
    file.parent.mkdir()
    db = Database(file)
    MIGRATIONS.apply(db, stop_before="m003_bytes_of_caches")
    rows = [("plan", {"digest": PLAN.digest, "choices": json.dumps(PLAN.to_dict()), "bytes": 1234})]
    rows[0][1].update(source="exact", first_seen=1.0)
    rows.append(("run", {"key": "best", "value": json.dumps({"digest": PLAN.digest})}))
    rows.append(("measurement", measurement_record(measurement())))
    for table, row in rows:
        db[table].insert(row)
    db["document_loss"].insert_all(
        {"measurement": 1, "position": i, **asdict(document)}
        for i, document in enumerate(measurement().documents)
    )
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("PRAGMA user_version = 2")
    db.close()
    return file


def test_a_run_of_before_there_were_caches_can_be_read(version_2: Path) -> None:
    before = version_2.read_bytes()
    with Store.open(version_2, mode="ro") as store:
        (stored,) = store.plans().values()
        assert (stored.plan, stored.bytes, stored.cache_bytes) == (PLAN, 1234, 0)
        assert store.measurements() == [measurement()]
        assert store.get("best") == {"digest": PLAN.digest}
    assert version_2.read_bytes() == before


def test_a_run_of_before_there_were_caches_goes_on(version_2: Path) -> None:
    other = Plan((("embed", "4b-g64-float"),))
    with Store.open(version_2) as store:
        assert store.plans()[PLAN.digest].cache_bytes == 0
        assert not store.add_plan(PLAN, 1234, "mix")
        assert store.add_plan(other, 2000, "mix", 500)
        assert store.find_measurement(PLAN.digest, "selection", "protocol") == measurement()
    with sqlite3.connect(version_2) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    with Store.open(version_2, mode="ro") as store:
        assert [plan.cache_bytes for plan in store.plans().values()] == [0, 500]


def test_plans_are_charged_again_when_caches_come_to_hold_more(store: Store) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 64,
        "max_position_embeddings": 512,
    }

    def at(context: int, bits: tuple[int, ...] = (2, 4, 16)) -> Space:
        geometry, rules, target = read_geometry(config), WeightRules((2, 4)), get_target("any")
        return build_space(geometry, rules, target, KvRules(bits), Load(context))

    short = at(100)
    weights = Plan(((short.decisions[1].name, short.decisions[1].options[0].name),))
    caches = Plan((("layers.1.kv", "k4v4-g32-r32-s4"),))
    gone = Plan((("layers.1.kv", "k2v2-g32-r32-s4"),))
    for plan in (weights, caches, gone, short.plan([1] * len(short.decisions))):
        size, cache = short.charge(plan)
        store.add_plan(plan, size, "exact", cache)
    left = store.plans()[gone.digest]
    longer = at(300, (4, 16))
    store.charge_again(longer)
    plain = 2 * 32 * 300 * 2  # bytes of keys and values of one layer
    for stored in store.plans().values():
        if stored.plan not in (gone, short.plan([1] * len(short.decisions))):
            assert (stored.bytes, stored.cache_bytes) == longer.charge(stored.plan)
    assert store.plans()[weights.digest].cache_bytes == 2 * plain
    assert plain < store.plans()[caches.digest].cache_bytes < 2 * plain
    assert store.plans()[gone.digest] == left
    store.charge_again(at(300))
    assert all((p.bytes, p.cache_bytes) == at(300).charge(p.plan) for p in store.plans().values())


def test_a_damaged_file_is_refused_for_writing(tmp_path: Path) -> None:
    file = tmp_path / "run.db"
    with Store.open(file) as store:
        for i in range(200):
            store.put(f"key-{i}", "x" * 200)
    content = bytearray(file.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    file.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"damaged|malformed"):
        Store.open(file)


def test_a_reader_sees_what_the_writer_adds_and_cannot_write(store: Store) -> None:
    with Store.open(store.path, mode="ro") as reader:
        store.put("a", 1)
        assert reader.get("a") == 1
        with pytest.raises(StoreError, match="readonly"):
            reader.put("a", 2)
    assert store.get("a") == 1


def test_a_snapshot_does_not_move_while_others_write(store: Store) -> None:
    store.put("a", 1)
    with Store.open(store.path, mode="ro") as reader:
        with reader.snapshot():
            assert reader.get("a") == 1
            store.put("a", 2)
            assert reader.get("a") == 1
        assert reader.get("a") == 2


def test_a_killed_writer_leaves_every_finished_write(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from tightfit.search.store import Store\n"
        "store = Store.open(sys.argv[1])\n"
        "for i in range(5): store.put('last', i)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run.db")], check=False)
    assert done.returncode == -9
    with Store.open(tmp_path / "run.db") as store:
        assert store.get("last") == 4


# Values


def test_values_are_replaced_and_have_a_default(store: Store) -> None:
    assert store.get("a") is None
    assert store.get("a", {}) == {}
    store.put("a", 1)
    store.put("a", 2)
    assert store.get("a") == 2


def test_numpy_numbers_become_plain_ones(store: Store) -> None:
    store.put("a", {"x": np.float32(0.5), "n": np.int64(3), "v": np.arange(2)})
    assert store.get("a") == {"x": 0.5, "n": 3, "v": [0, 1]}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_nothing_that_is_not_finite_enters(store: Store, tiny: Callable[..., Space], bad: float) -> None:
    store.set_space(tiny())
    store.add_plan(PLAN, 10, "exact")
    decision = store.decisions()[0]
    good = measurement()
    spoiled = replace(good, documents=(*good.documents[:2], replace(good.documents[2], nll=float(bad))))
    for write in (
        lambda: store.put("a", {"deep": [bad]}),
        lambda: store.add_fit("a", {"deep": [bad]}),
        lambda: store.add_event("sense", "progress", {"left": bad}),
        lambda: store.add_scores("marginal", [Score(decision.name, decision.options[0].name, bad)]),
        lambda: store.add_scores("marginal", [Score(decision.name, decision.options[0].name, 1.0, bad)]),
        lambda: store.add_measurement(spoiled),
        lambda: store.add_measurement(replace(good, kl_p99=float(bad))),
    ):
        with pytest.raises(ValueError, match="finite"):
            write()
    assert store.get("a") is None
    assert store.get_fit("a") is None
    assert store.scores("marginal") == []
    assert store.measurements() == []
    assert store.events() == []


# The space


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("target", ["any", "vllm"])
def test_a_space_comes_back_as_it_was(
    store: Store, tiny: Callable[..., Space], tied: bool, target: str
) -> None:
    space = tiny(
        tied, target, bits=(3, 4, 8), groups=(32, 64), zeros=("integer",), pin={"embed": "8b-row-sym"}
    )
    store.set_space(space)
    assert store.decisions() == space.decisions
    assert [site.name for site in store.sites()] == [linear.site for linear in space.geometry.linears]
    assert store.sites()[-1].tied_to == ("embed" if tied else None)


def test_another_space_takes_the_place_of_the_first_and_its_scores(
    store: Store, tiny: Callable[..., Space]
) -> None:
    store.set_space(tiny())
    decision = store.decisions()[0]
    store.add_scores("marginal", [Score(decision.name, decision.options[0].name, 1.0)])
    store.set_space(tiny(bits=(4, 5)))
    assert store.decisions() == tiny(bits=(4, 5)).decisions
    assert store.scores("marginal") == []


# Scores


def test_scores_are_in_the_order_of_the_space_and_replace_each_other(
    store: Store, tiny: Callable[..., Space]
) -> None:
    store.set_space(tiny(bits=(3, 4)))
    a, b = store.decisions()[:2]
    scores = [Score(b.name, b.options[1].name, 2.0), Score(a.name, a.options[0].name, 1.0, 0.1)]
    store.add_scores("marginal", scores)
    store.add_scores("marginal", [Score(b.name, b.options[1].name, 3.0)])
    assert store.scores("marginal") == [scores[1], Score(b.name, b.options[1].name, 3.0)]
    assert store.scores("prescreen") == []


def test_scores_of_unknown_options_are_refused_all_together(store: Store, tiny: Callable[..., Space]) -> None:
    store.set_space(tiny())
    known = store.decisions()[0]
    scores = [Score(known.name, known.options[0].name, 1.0), Score(known.name, "2b-row-sym", 1.0)]
    with pytest.raises(sqlite3.IntegrityError):
        store.add_scores("marginal", scores)
    assert store.scores("marginal") == []


# Plans and measurements


def test_a_plan_keeps_its_first_source(store: Store) -> None:
    assert store.add_plan(PLAN, 100, "exact")
    assert not store.add_plan(PLAN, 100, "greedy")
    stored = store.plans()[PLAN.digest]
    assert (stored.plan, stored.bytes, stored.source) == (PLAN, 100, "exact")


def test_a_plan_cannot_have_two_sizes(store: Store) -> None:
    store.add_plan(PLAN, 100, "exact")
    with pytest.raises(ValueError, match="has 100 bytes, not 101"):
        store.add_plan(PLAN, 101, "exact")


def test_a_measurement_comes_back_exactly(store: Store) -> None:
    store.add_plan(PLAN, 100, "exact")
    measured = measurement(kl=1 / 3)
    assert store.add_measurement(measured) == measured
    assert store.measurements() == [measured]
    assert store.find_measurement(PLAN.digest, "selection", "protocol") == measured


def test_the_table_of_measurements_can_be_read_without_tightfit(store: Store) -> None:
    store.add_plan(PLAN, 100, "exact")
    measured = store.add_measurement(measurement())
    with sqlite3.connect(store.path) as raw:
        row = raw.execute("SELECT kl, kl_se, perplexity, agreement, tokens FROM measurement").fetchone()
    assert row == (measured.kl, measured.kl_se, measured.perplexity, measured.agreement, measured.tokens)


def test_equal_plan_split_and_protocol_is_never_stored_twice(store: Store) -> None:
    store.add_plan(PLAN, 100, "exact")
    first = store.add_measurement(measurement(kl=0.1))
    assert store.add_measurement(measurement(kl=0.2)) == first
    assert store.measurements() == [first]
    other = store.add_measurement(replace(measurement(kl=0.2), protocol="longer"))
    holdout = store.add_measurement(measurement(split="holdout"))
    assert store.measurements() == [first, other, holdout]
    assert store.measurements("holdout") == [holdout]
    assert store.find_measurement(PLAN.digest, "selection", "unknown") is None


def test_a_measurement_of_an_unknown_plan_is_refused_with_its_documents(store: Store) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        store.add_measurement(measurement())
    assert store.measurements() == []
    with sqlite3.connect(store.path) as raw:
        assert raw.execute("SELECT count(*) FROM document_loss").fetchone() == (0,)


def test_a_measurement_that_breaks_in_the_middle_leaves_nothing(store: Store) -> None:
    store.add_plan(PLAN, 100, "exact")
    good = measurement()
    twice = replace(good, documents=(*good.documents, good.documents[0]))
    with pytest.raises(sqlite3.IntegrityError):
        store.add_measurement(twice)
    assert store.measurements() == []
    assert store.add_measurement(good) == good


def test_a_single_document_has_no_standard_error_but_is_stored(store: Store) -> None:
    store.add_plan(PLAN, 100, "exact")
    measured = store.add_measurement(measurement(documents=1))
    assert store.measurements() == [measured]
    with sqlite3.connect(store.path) as raw:
        assert raw.execute("SELECT kl_se FROM measurement").fetchone() == (None,)


def test_a_measurement_without_tokens_or_with_endless_perplexity_is_refused(store: Store) -> None:
    store.add_plan(PLAN, 100, "exact")
    good = measurement(documents=1)
    with pytest.raises(ValueError, match="no token"):
        store.add_measurement(replace(good, documents=()))
    broken = replace(good.documents[0], nll=1e6)
    with pytest.raises(ValueError, match="perplexity is not finite"):
        store.add_measurement(replace(good, documents=(broken,)))


# Fits and events


def test_the_latest_fit_of_a_name_counts(store: Store) -> None:
    assert store.get_fit("link") is None
    store.add_fit("link", {"chosen": "identity"})
    store.add_fit("link", {"chosen": "amplifying"})
    assert store.get_fit("link") == {"chosen": "amplifying"}


def test_events_keep_their_order_and_can_be_followed(store: Store) -> None:
    store.add_event("sense", "start")
    store.add_event("sense", "progress", {"done": 1, "of": 4})
    first, second = store.events()
    assert (first.stage, first.kind, first.data) == ("sense", "start", {})
    assert second.data == {"done": 1, "of": 4}
    assert first.time <= second.time
    assert store.events(after=first.id) == [second]
