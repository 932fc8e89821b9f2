"""Runs on disk: finding them, telling how they are, reading them once per change, starting them again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tightfit.search.control import State, state
from tightfit.search.maps import SENSITIVITY_KINDS
from tightfit.search.records import Score, Site, StoredPlan
from tightfit.search.store import RUN_FILE, Store
from tightfit.search.summary import Front, PlanRow, Summary, summarize
from tightfit.spaces import Decision, InputError

DEFAULT = Path("runs")
"""Where searches put their runs unless told otherwise."""

LOG_FILE = "resume.log"
"""In a run's folder: what the process says that a page started."""

STAGES = ("prepare", "sense", "fit", "solve", "certify", "explore", "validate", "report")

Version = tuple[tuple[int, int], ...]

_STARTED: dict[Path, subprocess.Popen[bytes]] = {}


def check_path(path: Path) -> Path:
    """Return the folder that a page is to show: a run, or a folder of runs.

    The default folder need not be there yet: the first run makes it.

    Raises:
        InputError: there is no such folder.
    """
    if path.is_file() and path.name == RUN_FILE:
        return path.parent
    if path.is_dir() or (path == DEFAULT and not path.exists()):
        return path
    what = "is a file" if path.exists() else "does not exist"
    raise InputError(f"{path} {what}: name a run's folder or a folder of runs.")


def find_runs(path: Path) -> list[Path]:
    """Return the folders of all runs at a path, the one that was written last first."""
    if (path / RUN_FILE).is_file():
        return [path]
    found = [file.parent for file in path.glob(f"*/{RUN_FILE}")] if path.is_dir() else []
    return sorted(found, key=lambda folder: (max(version(folder)), folder.name), reverse=True)


def version(folder: Path) -> Version:
    """Return what changes whenever the store of a run is written, without opening it."""
    stamps = []
    for name in (RUN_FILE, f"{RUN_FILE}-wal"):
        try:
            held = (folder / name).stat()
        except OSError:
            held = None
        # Readers leave an empty write-ahead log behind, which is no change.
        stamps.append((held.st_mtime_ns, held.st_size) if held and held.st_size else (0, 0))
    return tuple(stamps)


@dataclass(frozen=True, eq=False)
class Run:
    """A run as pages show it; read once, it is the same object until the run changes.

    Attributes:
        state: of the process that works on it, if one does.
        summary: what it found so far.
        scores: of every option alone, by (decision, option), the best kind that there is.
        scores_are: in words, what kind that is; None without scores.
        terms: what each option adds inside the fitted loss model, likewise.
        stage_since: when the present stage began, in Unix seconds.
        measured: number of measurements of any kind.
        tokens: tokens that went through the model for them.
    """

    folder: Path
    state: State
    summary: Summary
    sites: Sequence[Site]
    decisions: tuple[Decision, ...]
    plans: Mapping[str, StoredPlan]
    scores: Mapping[tuple[str, str], Score]
    scores_are: str | None
    terms: Mapping[tuple[str, str], Score]
    stage_since: float | None
    measured: int
    tokens: int

    @property
    def best(self) -> PlanRow | None:
        """The plan to use: of the result or, before there is one, the best within the budget so far."""
        return self.summary.final or best_so_far(self.summary)

    def front(self, key: str | None) -> Front | None:
        """Return a front by its :func:`front_key`, or the one to show first."""
        return next((f for f in self.summary.fronts if front_key(f) == key), self.summary.front)

    @property
    def share(self) -> float | None:
        """How much of the estimated work is done, 0 to 1; None where nothing is known about it."""
        cost, settings = self.summary.forward_tokens, self.summary.settings or {}
        total = sum(cost.values())
        if not total:
            return None
        if self.state == "finished":
            return 1.0
        sense = settings.get("sense", {})
        marginals = sense.get("marginals", 0) * sense.get("marginal_tokens", 0)
        # What is not measured plan by plan is done once there are scores.
        before = cost.get("prepare", 0) + max(0, cost.get("sense", 0) - marginals) if self.scores else 0
        return min(0.99, (before + self.tokens) / total)


def front_key(front: Front) -> str:
    """Name a front so that it is found again after more plans were measured on it."""
    return f"{front.split} {front.protocol}"


def best_so_far(summary: Summary) -> PlanRow | None:
    """Return the plan of least loss within the budget, on the most trustworthy text that has one."""
    limit = summary.limit
    for front in summary.fronts:
        rows = [row for row in front.rows if limit is None or row.bytes <= limit]
        if rows:
            return min(rows, key=lambda row: (row.measured.kl, row.bytes))
    return None


def read(folder: Path) -> Run:
    """Read a run; again only after it was written or its process came or went.

    Raises:
        InputError: there is no run in this folder, or this version cannot read it.
    """
    return _read(folder, version(folder), state(folder))


@lru_cache(maxsize=4)
def _read(folder: Path, _version: Version, how: State) -> Run:
    with Store.open(folder, mode="ro") as store:
        kinds = {kind: store.scores(kind) for kind in SENSITIVITY_KINDS}
        kind = next((kind for kind, scores in kinds.items() if scores), None)
        started = [event for event in store.events() if event.kind == "started"]
        measurements = store.measurements()
        return Run(
            folder=folder,
            state=how,
            summary=summarize(store),
            sites=store.sites(),
            decisions=store.decisions(),
            plans=store.plans(),
            scores=_by_option(kinds[kind]) if kind else {},
            scores_are=SENSITIVITY_KINDS[kind] if kind else None,
            terms=_by_option(store.scores("loss_model")),
            stage_since=started[-1].time if started else None,
            measured=len(measurements),
            tokens=sum(m.tokens for m in measurements),
        )


def _by_option(scores: Sequence[Score]) -> dict[tuple[str, str], Score]:
    return {(score.decision, score.option): score for score in scores}


def resume(folder: Path) -> None:
    """Go on with a run in a process of its own, which outlives the page and this server.

    Raises:
        InputError: such a process cannot be started.
    """
    command = [sys.executable, "-m", "tightfit", "resume", str(folder)]
    try:
        with (folder / LOG_FILE).open("ab") as log:
            _STARTED[folder] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    except OSError as error:
        raise InputError(f"the run in {folder} cannot be resumed ({error.strerror}).") from error


def starting(folder: Path) -> bool:
    """Say whether a process that was started here has not ended yet."""
    return folder in _STARTED and _STARTED[folder].poll() is None


def failure(folder: Path) -> str | None:
    """Return the last line of a process that was started here and failed, or None."""
    process = _STARTED.get(folder)
    if process is None or not process.poll():
        return None
    lines = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f"{last.strip()} (exit code {process.returncode}; see {folder / LOG_FILE})"


def elapsed(run: Run) -> float | None:
    """Return seconds since the present stage began, or None before the first one."""
    return None if run.stage_since is None else max(0.0, time.time() - run.stage_since)
