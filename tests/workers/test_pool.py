"""With a real Ray, and mostly with one pool that has to get over everything that the tests do to it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import cloudpickle

from tightfit.spaces import InputError
from tightfit.workers.cluster import Cluster, WorkerError
from tightfit.workers.crew import Alone, Failure, Job, Outcome
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.measurement import Measurement
from tightfit.workers.pool import RayPool
from tightfit.workers.recipe import Recipe

Bench = Any  # of conftest


@dataclass(frozen=True)
class Haunted(Recipe):
    """Builds evaluators that die, hang or wait as the name of the plan says, and write down who they are."""

    marks: Path

    def build(self, threads: int, importance: bytes | None = None) -> Evaluator:
        evaluator, marks = super().build(threads, importance), self.marks
        measure = evaluator.measure

        def haunted(plan: str, *rest: Any) -> Measurement:
            with (marks / plan).open("a") as file:
                file.write(f"{os.getpid()}\n")
            if plan == "deadly":
                os._exit(7)
            if plan == "stuck" and len((marks / plan).read_text().split()) == 1:
                signal.pause()
            while plan.startswith("held") and not (marks / f"{plan} released").exists():
                time.sleep(0.01)
            norm = evaluator.replica.model.model.norm.weight
            kept = norm.clone()
            try:
                if plan == "broken":
                    norm.fill_(torch.nan)
                return measure(plan, *rest)
            finally:
                norm.copy_(kept)

        evaluator.measure = haunted  # type: ignore[method-assign]
        return evaluator


@dataclass(frozen=True)
class House:
    """A pool of two workers that measure as in :class:`Haunted`."""

    pool: RayPool
    marks: Path

    def runs(self, plan: str) -> list[int]:
        """Process of every time that a plan was begun."""
        file = self.marks / plan
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def release(self, plan: str) -> None:
        (self.marks / f"{plan} released").touch()


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def house(cluster: Cluster, bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    marks = tmp_path_factory.mktemp("marks")
    given = {field.name: getattr(bench.recipe, field.name) for field in fields(bench.recipe)}
    with RayPool(Haunted(**given, marks=marks), 2, bench.evaluator, shortest_lease=5.0) as pool:
        yield House(pool, marks)


def expected(bench: Bench, jobs: Sequence[Job]) -> list[Any]:
    """What one evaluator in one process makes of jobs."""
    return [comparable(outcome) for _, outcome in Alone(bench.evaluator, bench.recipe.texts).run(jobs)]


def comparable(outcome: Outcome) -> Any:
    """All of an outcome but the time that it took."""
    return replace(outcome, seconds=0.0) if isinstance(outcome, Measurement) else outcome


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_losses_are_those_of_one_evaluator_bit_for_bit(bench: Bench, house: House) -> None:
    jobs = [bench.job(f"plan {seed}", seed, windows=1 + seed % 4) for seed in range(6)]
    jobs += [bench.job("plan 0", 0, "validation"), Job("reference", {}, "validation", "validation", 3)]
    alone = expected(bench, jobs)
    assert len({measured.kl for measured in alone}) == len(jobs)  # or the order would prove nothing
    found = dict(house.pool.run(jobs))
    assert [comparable(found[i]) for i in range(len(jobs))] == alone
    assert len(set(house.pool.pids)) == 2
    assert os.getpid() not in house.pool.pids


def test_a_killed_worker_loses_nothing_and_its_plan_is_not_blamed(bench: Bench, house: House) -> None:
    jobs = [bench.job(name, i) for i, name in enumerate(["a", "held", "b", "c"])]
    before = set(house.pool.pids)

    def kill() -> None:
        for death in (1, 2):
            wait_until(lambda death=death: len(house.runs("held")) == death)
            os.kill(house.runs("held")[-1], signal.SIGKILL)
        wait_until(lambda: len(house.runs("held")) == 3)
        house.release("held")

    killer = threading.Thread(target=kill)
    killer.start()
    found = dict(house.pool.run(jobs))
    killer.join()
    assert [comparable(found[i]) for i in range(4)] == expected(bench, jobs)
    first, second, alone = house.runs("held")
    assert first in before
    assert house.pool.pids == [alone]
    wait_until(lambda: not is_running(first) and not is_running(second))
    assert [len(house.runs(name)) for name in "abc"] == [1, 1, 1]


def test_a_deadly_plan_is_given_up_after_it_died_alone(bench: Bench, house: House) -> None:
    jobs = [bench.job(name, i) for i, name in enumerate(["d", "deadly", "e", "f"])]
    jobs.append(jobs[1])  # asked for twice
    found = dict(house.pool.run(jobs))
    failure = found[1]
    assert isinstance(failure, Failure)
    assert (failure.plan, failure.split, failure.kind) == ("deadly", "selection", "died")
    assert "died 3 times" in failure.reason
    assert found[4] == failure
    good = expected(bench, [jobs[i] for i in (0, 2, 3)])
    assert [comparable(found[i]) for i in (0, 2, 3)] == good
    assert failure.protocol == good[0].protocol
    assert len(house.runs("deadly")) == len(set(house.runs("deadly"))) == 3
    assert dict(house.pool.run([jobs[1]])) == {0: failure}
    assert len(house.runs("deadly")) == 3


def test_a_hung_worker_is_killed_and_its_plan_measured_again(bench: Bench, house: House) -> None:
    jobs = [bench.job("g", 0), bench.job("stuck", 1)]
    found = dict(house.pool.run(jobs))
    assert [comparable(found[i]) for i in range(2)] == expected(bench, jobs)
    hung, again = house.runs("stuck")
    assert hung != again
    wait_until(lambda: not is_running(hung))


def test_what_cannot_be_measured_is_a_failure_of_the_plan_alone(bench: Bench, house: House) -> None:
    names = ["h", "wrong", "broken", "i", "j"]
    jobs = [bench.job(name, i) for i, name in enumerate(names)]
    options = {**jobs[1].options, "no.such.site": next(iter(jobs[1].options.values()))}
    jobs[1] = replace(jobs[1], options=options)
    found = dict(house.pool.run(jobs))
    wrong, broken = found[1], found[2]
    assert isinstance(wrong, Failure)
    assert isinstance(broken, Failure)
    assert (wrong.plan, wrong.kind) == ("wrong", "died")
    assert "no.such.site" in wrong.reason
    assert (broken.plan, broken.kind) == ("broken", "not finite")
    # Every matrix was changed before the site that is not there came up; they must not stay.
    good = expected(bench, [jobs[0], jobs[3], jobs[4]])
    assert [comparable(found[i]) for i in (0, 3, 4)] == good
    assert wrong.protocol == broken.protocol == good[0].protocol


def test_a_caller_that_stops_drops_the_rest(bench: Bench, house: House) -> None:
    jobs = [bench.job("k", 0), bench.job("held 2", 1), *(bench.job(f"l{i}", 2) for i in range(50))]
    run = house.pool.run(jobs)
    next(run)
    wait_until(lambda: house.runs("held 2"))
    run.close()
    wait_until(lambda: not is_running(house.runs("held 2")[0]))
    sent = sum(bool(house.runs(f"l{i}")) for i in range(50))
    assert sent < 50
    later = [bench.job("m", 3)]
    assert [comparable(outcome) for _, outcome in house.pool.run(later)] == expected(bench, later)
    assert sum(bool(house.runs(f"l{i}")) for i in range(50)) == sent


def test_nothing_to_do(house: House) -> None:
    assert list(house.pool.run([])) == []


def test_a_text_that_is_not_there(bench: Bench, house: House) -> None:
    with pytest.raises(InputError, match="no text 'holdout'"):
        list(house.pool.run([bench.job("n", 0, "holdout")]))


def test_workers_that_would_measure_something_else_are_refused(bench: Bench) -> None:
    other = replace(bench.recipe, identity={**bench.recipe.identity, "text": "another"}).build(1)
    with pytest.raises(WorkerError, match=r"the content key is \w+ on .* and \w+ here"):
        RayPool(bench.recipe, 1, other)


def test_a_model_that_changed_is_the_callers_to_hear_of(bench: Bench) -> None:
    with pytest.raises(InputError, match="has the digest"):
        RayPool(replace(bench.recipe, digest="0" * 64), 1, bench.evaluator)


def test_a_pool_of_none(bench: Bench) -> None:
    with pytest.raises(InputError, match="at least one"):
        RayPool(bench.recipe, 0, bench.evaluator)


def test_more_workers_than_there_are_cpus(bench: Bench) -> None:
    with pytest.raises(WorkerError, match="4 workers need a CPU each, but Ray has 3"):
        RayPool(bench.recipe, 4, bench.evaluator)
