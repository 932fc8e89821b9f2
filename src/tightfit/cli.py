"""The command line. Every command imports what it needs itself, so that ``--help`` is instant."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from tightfit import __version__
from tightfit.spaces.errors import InputError, TightfitError

if TYPE_CHECKING:
    from tightfit.search.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])

_JSON = click.option("--json", "as_json", is_flag=True, help="Write JSON instead of text.")


class _Commands(click.Group):
    """Reports wrong usage as every other error is reported: in one line."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        bare = not args  # parsing uses them up; without any, the "error" is the help
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if bare:
                raise
            _complain_of_usage(error, info_name or "tightfit")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _complain_of_usage(error, (error.ctx or ctx).command_path)


def _complain_of_usage(error: click.UsageError, command: str) -> NoReturn:
    _complain(f"{error.format_message().rstrip('.')} (see {command} --help).", error.exit_code)


def _complain(text: str, exit_code: int) -> NoReturn:
    """Write an error, one line per thing that is wrong, and end."""
    for line in text.splitlines():
        click.echo(f"tightfit: {line}", err=True)
    sys.exit(exit_code)


def _reports_errors(command: Command) -> Command:
    """Turn errors raised on purpose into lines and an exit code."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except TightfitError as error:
            _complain(str(error), error.exit_code)
        except KeyboardInterrupt:
            _complain("interrupted; everything measured is kept, and the same command goes on.", 130)

    return wrapped  # type: ignore[return-value]


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tightfit")
def main() -> None:
    """Find the best compression plan that fits a language model into a memory budget.

    Exit codes: 0 done, 1 failure, 2 bad input, 3 nothing fits the budget.
    """


@main.command("run")
@click.argument("settings", type=click.Path(path_type=Path))
@click.option("-s", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one setting.")
@click.option("--dry-run", is_flag=True, help="Stop after the feasible range and the cost estimate.")
@click.option("--resume", is_flag=True, help="Only go on with a run that exists; never begin one.")
@_reports_errors
def run_command(settings: Path, overrides: tuple[str, ...], dry_run: bool, resume: bool) -> None:
    """Search for the best plan, as SETTINGS (a search.yaml) says.

    Run again with the same settings, it goes on where it stopped: nothing is measured twice. A run
    that is finished shows its result.
    """
    from tightfit.search.run import run_search
    from tightfit.search.settings import load_settings
    from tightfit.search.store import RUN_FILE

    typed = load_settings(settings, overrides)
    folder = Path(typed.runs) / typed.name
    if resume and not (folder / RUN_FILE).is_file():
        raise InputError(f"there is no run at {folder} to go on with: leave out --resume to begin it.")
    _ends_on_sigterm()
    run_search(typed, dry=dry_run, say=click.echo)


@main.command("resume")
@click.argument("run", type=click.Path(path_type=Path))
@_reports_errors
def resume_command(run: Path) -> None:
    """Go on with RUN: let it continue where it is paused, take it up where its process has ended.

    A run that is finished shows its result.
    """
    from tightfit.search import control
    from tightfit.search.run import run_search
    from tightfit.search.settings import Settings

    if control.state(run) in ("running", "paused"):
        control.ask(run, "run")
        click.echo(f"the run in {run} goes on")
        return
    with _open(run) as store:
        held = store.get("settings")
    if held is None:
        raise InputError(f"{run} stopped before it wrote its settings: begin it again with tightfit run.")
    # The folder may have been moved or renamed since.
    run = run.resolve()
    settings = Settings.from_dict({**held, "runs": str(run.parent), "name": run.name})
    _ends_on_sigterm()
    run_search(settings, say=click.echo)


@main.command("pause")
@click.argument("run", type=click.Path(path_type=Path))
@_reports_errors
def pause_command(run: Path) -> None:
    """Let RUN wait after what it is measuring, until tightfit resume."""
    from tightfit.search import control

    control.ask(run, "pause")
    click.echo(f"the run in {run} pauses; tightfit resume {run} lets it go on")


@main.command("stop")
@click.argument("run", type=click.Path(path_type=Path))
@_reports_errors
def stop_command(run: Path) -> None:
    """End RUN after what it is measuring; it keeps everything, and tightfit resume takes it up again."""
    from tightfit.search import control

    control.ask(run, "stop")
    click.echo(f"the run in {run} stops; tightfit resume {run} takes it up again")


@main.command("inspect")
@click.argument("model")
@click.option("--budget", metavar="SIZE", help="Weight bytes to check, such as 76MiB.")
@click.option("--total", metavar="SIZE", help="Bytes of weights and KV cache to check, such as 140MiB.")
@click.option(
    "--context", type=click.IntRange(min=1), help="Tokens in the KV cache; the model's own longest."
)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences in it.")
@click.option(
    "--shared-prefix",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="First tokens that all sequences have in common.",
)
@click.option("--target", default="any", show_default=True, help="Tool that the plan is for.")
@click.option("--groups", default="64", show_default=True, help="Group sizes, comma separated.")
@_JSON
@_reports_errors
def inspect_command(
    model: str,
    budget: str | None,
    total: str | None,
    context: int | None,
    batch: int,
    shared_prefix: int,
    target: str,
    groups: str,
    as_json: bool,
) -> None:
    """Show what MODEL (alias, folder or hub id) takes in memory, from its config.json alone.

    With --total also whether weights and KV cache fit, and up to which context (exit code 3 if they do not).
    """
    from tightfit.search.inspect_model import inspect_model

    inspected = inspect_model(model, budget, context, batch, target, groups, total, shared_prefix)
    click.echo(json.dumps(inspected.to_dict(), indent=2) if as_json else inspected.render())
    if inspected.fits is False:
        sys.exit(3)


@main.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Where to write the HTML report.")
@_JSON
@_reports_errors
def report_command(run: Path, out: Path | None, as_json: bool) -> None:
    """Show the result of RUN (a run's folder) and write its HTML report.

    With --json, the report is written only where --out says so.
    """
    from tightfit.search.report import write_report
    from tightfit.search.run import REPORT_FILE, render
    from tightfit.search.summary import summarize

    with _open(run) as store:
        result = store.get("result")
        if as_json and result is None:
            raise InputError(f"{store.path} has no result yet: let the search finish.")
        if as_json and out is None:
            click.echo(json.dumps(result, indent=2))
            return
        path = write_report(store, out or store.path.parent / REPORT_FILE)
        if as_json:
            click.echo(json.dumps(result, indent=2))
        else:
            click.echo(render(summarize(store)))
            click.echo(f"\nreport: {path}")


@main.command("front")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--all", "whole", is_flag=True, help="Show every plan on every text it was measured on.")
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV instead of text.")
@_JSON
@_reports_errors
def front_command(run: Path, whole: bool, as_csv: bool, as_json: bool) -> None:
    """List the measured plans of RUN, smallest first.

    Shown are those measured on the most trustworthy text (holdout, validation, selection), without
    the worst of the dominated ones; CSV and JSON always hold all plans on all of these texts.
    """
    from tightfit.search.summary import summarize
    from tightfit.search.tables import front_csv, front_rows, front_table, front_tables

    with _open(run) as store:
        summary = summarize(store)
    if as_json:
        click.echo(json.dumps(front_rows(summary), indent=2))
    elif as_csv:
        click.echo(front_csv(summary))
    else:
        click.echo(front_tables(summary) if whole else front_table(summary))


@main.command("plan")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--budget", required=True, metavar="SIZE", help="Bytes, such as 80MiB.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the plan as JSON to this file.")
@_JSON
@_reports_errors
def plan_command(run: Path, budget: str, out: Path | None, as_json: bool) -> None:
    """Solve RUN again for another budget, from its stored scores: nothing is measured."""
    from tightfit.exporters import get_exporter
    from tightfit.search.resolve import resolve, size_budget
    from tightfit.search.shipping import stored_shipment
    from tightfit.spaces import parse_size

    size = parse_size(budget)
    with _open(run) as store:
        resolved = resolve(store, size_budget(store, size))
        if out is not None:
            get_exporter("json").export(stored_shipment(store, resolved.plan), out)
    click.echo(json.dumps(resolved.to_dict(), indent=2) if as_json else resolved.render())


@main.command("export")
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--to", "exporter", default="json", show_default=True, help="Which exporter.")
@click.option("--out", type=click.Path(path_type=Path), help="File to write; the run's folder unless given.")
@click.option("--plan", "digest", help="Start of a plan's digest; the run's own choice unless given.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@click.option(
    "--with",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Exported file that a model card lists with its SHA-256; may be given again.",
)
@click.option("--list", "listing", is_flag=True, help="List the exporters, and end.")
@_JSON
@_reports_errors
def export_command(
    run: Path | None,
    exporter: str,
    out: Path | None,
    digest: str | None,
    force: bool,
    files: tuple[Path, ...],
    listing: bool,
    as_json: bool,
) -> None:
    """Write a plan of RUN in the form another tool reads; tightfit export --list says which there are."""
    from tightfit.search import exporting

    if listing:
        click.echo(exporting.listing_json() if as_json else exporting.listing_table())
        return
    if run is None:
        raise InputError("which run? Name its folder, or see tightfit export --list.")
    with _open(run) as store:
        exported = exporting.export_plan(store, exporter, out, digest, force=force, files=files)
    click.echo(json.dumps(exported.to_dict(), indent=2) if as_json else exported.render())


@main.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--plan", "digest", help="Start of a plan's digest; the one that the file names unless given.")
@click.option(
    "--run",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="The run's folder, or a folder of runs.",
)
@click.option("--no-loss", is_flag=True, help="Stop after reading back, without measuring in llama.cpp.")
@_JSON
@_reports_errors
def verify_command(file: Path, digest: str | None, run: Path, no_loss: bool, as_json: bool) -> None:
    """Prove that FILE, a GGUF file, carries out a plan: tensor by tensor, and by its loss in llama.cpp.

    Exit codes: 0 it does, 1 it does not, 2 bad input.
    """
    from tightfit.search.verification import verify_file

    verified = verify_file(file, run, digest, loss=not no_loss)
    click.echo(json.dumps(verified.to_dict(), indent=2) if as_json else verified.render())
    if not verified.agrees:
        sys.exit(1)


@main.command("study")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="File to write; study.db in the run's folder.")
@_reports_errors
def study_command(run: Path, out: Path | None) -> None:
    """Write the measured plans of RUN as an Optuna study, such as optuna-dashboard opens."""
    from tightfit.search.study import write_study

    with _open(run) as store:
        path = write_study(store, out or store.path.parent / "study.db")
    click.echo(f"wrote {path}; look at it with: optuna-dashboard sqlite:///{path}")


@main.command("ui")
@click.argument("run", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--port", type=click.IntRange(1, 65535), help="Port; a free one from 7860 unless given.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--open/--no-open", "browser", default=False, help="Open a browser.")
@_reports_errors
def ui_command(run: Path, port: int | None, host: str, browser: bool) -> None:
    """Watch RUN, or all runs of a folder (runs unless given), in a browser."""
    from tightfit.ui.app import serve

    serve(run, port, host, browser)


@main.command("doctor")
@_JSON
@_reports_errors
def doctor_command(as_json: bool) -> None:
    """Check this machine: library versions, devices, disk, and known problems."""
    from tightfit.search.doctor import examine, render_findings

    findings = examine()
    click.echo(
        json.dumps([f.to_dict() for f in findings], indent=2) if as_json else render_findings(findings)
    )
    if any(finding.level == "error" for finding in findings):
        sys.exit(1)


def _ends_on_sigterm() -> None:
    """Let a polite request to end be answered as Ctrl-C is: tidy up and say how to go on."""

    def interrupt(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def _open(run: Path) -> Store:
    from tightfit.search.store import Store

    return Store.open(run, mode="ro")
