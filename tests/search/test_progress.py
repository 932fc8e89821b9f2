from __future__ import annotations

import io

import pytest

from tightfit.search.progress import Progress


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream whose lines can be overwritten."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(progress: Progress, clock: Clock, seconds: float, steps: int) -> None:
    """Run a stage whose steps take equally long."""
    with progress.stage("sense", "measuring") as tick:
        for done in range(1, steps + 1):
            clock.now += seconds
            tick(done, steps)


def test_a_file_gets_a_line_now_and_then_with_the_time_left(clock: Clock) -> None:
    stream = io.StringIO()
    run(Progress(stream, clock), clock, seconds=6.0, steps=10)
    assert stream.getvalue().splitlines() == [
        "  measuring: 3/10, 42.0 s left",
        "  measuring: 6/10, 24.0 s left",
        "  measuring: 9/10, 6.0 s left",
        "  measuring: 10, done in 1 min 00 s",
    ]


def test_a_quick_stage_writes_one_line(clock: Clock) -> None:
    stream = io.StringIO()
    run(Progress(stream, clock), clock, seconds=0.01, steps=100)
    assert stream.getvalue() == "  measuring: 100, done in 1.0 s\n"


def test_a_terminal_gets_one_line_that_changes(clock: Clock) -> None:
    stream = Terminal()
    run(Progress(stream, clock), clock, seconds=1.0, steps=4)
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("\n")
    assert [part.removeprefix("\033[K  ") for part in stream.getvalue().rstrip().split("\r")[1:]] == [
        "measuring: 1/4, 3.0 s left",
        "measuring: 2/4, 2.0 s left",
        "measuring: 3/4, 1.0 s left",
        "measuring: 4, done in 4.0 s",
    ]


def test_a_stage_without_steps_says_how_long_it_took(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(stream, clock).stage("prepare", "loading model and text"):
        clock.now += 75
    assert stream.getvalue() == "  loading model and text: done in 1 min 15 s\n"


def test_time_is_booked_by_stage_and_adds_up(clock: Clock) -> None:
    progress = Progress(io.StringIO(), clock)
    run(progress, clock, seconds=2.0, steps=3)
    run(progress, clock, seconds=1.0, steps=4)
    with progress.stage("solve", "solving"):
        clock.now += 0.5
    assert progress.seconds == {"sense": 10.0, "solve": 0.5}


@pytest.mark.parametrize(("steps", "ending"), [(2, "left\n"), (0, "")])
def test_what_stops_a_stage_begins_on_a_line_of_its_own(clock: Clock, steps: int, ending: str) -> None:
    stream = Terminal()
    progress = Progress(stream, clock)
    with pytest.raises(KeyboardInterrupt), progress.stage("sense", "measuring") as tick:  # noqa: PT012
        for done in range(steps):
            clock.now += 1
            tick(done + 1, 10)
        raise KeyboardInterrupt
    assert stream.getvalue().endswith(ending)
    assert "done" not in stream.getvalue()


def test_progress_goes_beside_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress().stage("solve", "solving"):
        pass
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("  solving: done in ")
