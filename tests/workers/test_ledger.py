from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.workers.ledger import Key, Ledger

A: Key = ("a", "selection", "p")
keys = st.tuples(st.sampled_from("ab"), st.sampled_from(["selection", "holdout"]), st.sampled_from("pq"))


def test_the_way_to_quarantine() -> None:
    ledger = Ledger()
    assert ledger.step(A) == "measure"
    assert ledger.died(A, "first") == "measure"
    assert ledger.died(A, "second") == "alone"
    assert ledger.died(A, "third") == "never"
    assert ledger.step(A) == "never"
    assert ledger.reason(A) == (
        "The process that measured it died 3 times, the last time with nothing beside it: third."
    )


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_a_job_that_comes_to_its_end_is_cleared(deaths: int) -> None:
    ledger = Ledger()
    for _ in range(deaths):
        ledger.died(A, "bad luck")
    ledger.finished(A)
    assert ledger.step(A) == "measure"
    assert ledger.died(A, "bad luck") == "measure"


@given(st.lists(st.tuples(keys, st.booleans()), max_size=60))
def test_jobs_do_not_count_for_each_other(events: list[tuple[Key, bool]]) -> None:
    ledger, deaths = Ledger(), Counter[Key]()
    for key, died in events:
        if died:
            deaths[key] += 1
            ledger.died(key, "it died")
        else:
            deaths[key] = 0
            ledger.finished(key)
        for other in {key for key, _ in events}:
            expected = ("measure", "measure", "alone", "never")[min(deaths[other], 3)]
            assert ledger.step(other) == expected


@given(st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_job_runs_at_most_three_times_in_a_row_without_an_end(fates: list[bool]) -> None:
    """However the processes fare, nothing runs for ever, and nothing is given up before it ran alone."""
    ledger, runs = Ledger(), []
    for survives in fates:
        step = ledger.step(A)
        if step == "never":
            break
        runs.append(step)
        if survives:
            ledger.finished(A)
            break
        ledger.died(A, "it died")
    assert len(runs) <= 3
    if ledger.step(A) == "never":
        assert runs == ["measure", "measure", "alone"]
