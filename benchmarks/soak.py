"""Kill a run again and again at random moments; it must end as if nothing had happened.

    .venv/bin/python benchmarks/soak.py --kills 20 --agents exact evolution optuna:tpe

One run of a tiny trained model goes through undisturbed. Then, in a folder of its own, another one with
the same settings is killed (SIGKILL) at a random moment, started again, killed again, … and at last left
to finish. Checked every time: the store passes SQLite's integrity check, no process is left, nothing that
was in the store is measured again; and in the end: the chosen plan and all losses are those of the
undisturbed run. Exits with 1 where anything differs.

Every start is a process of its own. They are forked from this one, which has only imported the libraries,
so that the kills fall into the run and not into the seconds that importing takes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch  # noqa: F401  (imported once, for all processes that are forked)
import transformers  # noqa: F401

from tightfit.cli import main as tightfit
from tightfit.search.store import RUN_FILE, Store
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.lab import TINY, train

Key = tuple[str, str, str]

AGENTS = ["exact", "evolution", "optuna:nsga2", "optuna:tpe", "relinearize"]
_MARK = "TIGHTFIT_SOAK"
_LONGEST = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each agent's run")
    parser.add_argument("--agents", nargs="*", default=AGENTS)
    parser.add_argument("--workers", type=int, default=0, help="Ray workers of the whole run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args()
    model = str(train(TINY))
    failed = False
    print(f"{'agent':<14} {'kills':>5} {'moments, s':>14} {'starts':>7} {'measured':>9}  verdict", flush=True)
    for agent in arguments.agents:
        with tempfile.TemporaryDirectory() as folder:
            problems = _soak(Path(folder), model, agent, arguments)
        failed |= bool(problems)
        for problem in problems:
            print(f"  {problem}", flush=True)
    sys.exit(failed)


def _soak(folder: Path, model: str, agent: str, arguments: argparse.Namespace) -> list[str]:
    random_ = random.Random(f"{arguments.seed} {agent}")
    (folder / "search.yaml").write_text(json.dumps(_settings(model, agent, arguments.workers)))
    start = time.monotonic()
    status, _ = _start(folder, "undisturbed", None)
    length = time.monotonic() - start
    if status != 0:
        return [f"the undisturbed run ended with {status}:\n{(folder / 'output.log').read_text()[-3000:]}"]
    problems: list[str] = []
    moments = []
    for _ in range(arguments.kills):
        moments.append(random_.uniform(0, length))
        before = _stored(folder)
        status, made = _start(folder, "killed", moments[-1])
        problems += _check(folder, before, made)
        if status not in (0, -signal.SIGKILL):
            problems.append(f"a start ended with {status}")
    before = _stored(folder)
    status, made = _start(folder, "killed", None)
    problems += _check(folder, before, made) + (
        [] if status == 0 else [f"the last start ended with {status}"]
    )
    if status == 0:
        problems += _compare(folder)
    span = f"{min(moments, default=0):.1f}–{max(moments, default=0):.1f}"
    verdict = "as undisturbed" if not problems else f"{len(problems)} problems"
    count = len(_stored(folder))
    print(f"{agent:<14} {len(moments):>5} {span:>14} {len(moments) + 1:>7} {count:>9}  {verdict}", flush=True)
    return problems


def _settings(model: str, agent: str, workers: int) -> dict[str, Any]:
    return {
        "model": model,
        "threads": 1,
        "budget": {"weights": "90000B"},
        "space": {"weights": {"bits": [2, 3, 4, 6], "pin": {"embed": "8b-g64-float"}}},
        "text": {"sequence": 64, "calibration": 512, "selection": 512, "validation": 512, "holdout": 512},
        "sense": {
            "prescreen_tokens": 256,
            "marginals": 16,
            "marginal_tokens": 512,
            "fit_plans": 12,
            "fit_tokens": 512,
            "certificate_plans": 8,
        },
        "search": {"agents": [agent], "evaluations": 24, "batch": 4},
        "workers": {"count": workers, "validation": 0},
    }


def _start(folder: Path, name: str, kill_after: float | None) -> tuple[int, list[Key]]:
    """Run in a process of its own, killed after some seconds; return how it ended and what it measured."""
    log = folder / "measured.log"
    log.write_text("")
    child = os.fork()
    if child == 0:
        _run(folder, name, log)
    deadline = time.monotonic() + (_LONGEST if kill_after is None else kill_after)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(0.005)
    keys = [tuple(json.loads(line)) for line in log.read_text().splitlines()]
    return os.waitstatus_to_exitcode(status), keys  # type: ignore[return-value]


def _run(folder: Path, name: str, log: Path) -> None:
    """Be the run: note what is measured, and never return."""
    code = 1
    try:
        os.chdir(folder)
        os.environ[_MARK] = str(folder)
        output = os.open("output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _note_measurements(log)
        tightfit(["run", "search.yaml", "-s", f"name={name}"])
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _note_measurements(log: Path) -> None:
    """Append the key of whatever this process begins to measure to a file."""
    measure = Evaluator.measure

    def noted(
        self: Evaluator, plan: str, options: Any, split: str, windows: Sequence[Any], kv: Any = None
    ) -> Any:
        with log.open("a") as file:
            file.write(json.dumps([plan, split, self.protocol(split, windows)]) + "\n")
        return measure(self, plan, options, split, windows, kv)

    Evaluator.measure = noted  # type: ignore[method-assign]


def _check(folder: Path, before: set[Key], made: list[Key]) -> list[str]:
    problems = []
    again = before & set(made)
    if again:
        problems.append(f"{len(again)} stored measurements were made again")
    if len(made) != len(set(made)):
        problems.append("one process measured a plan twice")
    file = folder / "runs" / "killed" / RUN_FILE
    if file.exists():
        found = sqlite3.connect(file).execute("PRAGMA integrity_check").fetchone()[0]
        problems += [] if found == "ok" else [f"integrity check: {found}"]
    left = _left_running(str(folder))
    return problems + ([f"{len(left)} processes are left: {left}"] if left else [])


def _left_running(mark: str, patience: float = 30.0) -> list[int]:
    """Processes that carry the mark of this soak; those that are about to end get some time to."""
    deadline = time.monotonic() + patience
    while True:
        left = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _carries(entry, mark)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _carries(process: Path, mark: str) -> bool:
    try:
        # A forked child shares what its parent was started with; only what it starts itself is marked.
        return f"{_MARK}={mark}".encode() in (process / "environ").read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return False


def _stored(folder: Path) -> set[Key]:
    file = folder / "runs" / "killed" / RUN_FILE
    if not file.exists():
        return set()
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'measurement'").fetchone():
            return set()
        return set(connection.execute("SELECT plan, split, protocol FROM measurement"))


def _compare(folder: Path) -> list[str]:
    """Compare the run that was killed with the undisturbed one."""
    found = []
    for name in ("undisturbed", "killed"):
        with Store.open(folder / "runs" / name, mode="ro") as store:
            losses = {(m.plan, m.split): m.kl for m in store.measurements()}
            trials = [(t.agent, t.round, t.position, t.plan) for t in store.trials()]
            found.append((store.get("result")["chosen"], losses, trials))
    words = ("chosen plan", "losses", "proposals")
    return [f"other {word}" for word, a, b in zip(words, *found, strict=True) if a != b]


if __name__ == "__main__":
    main()
