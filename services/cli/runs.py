"""The commands `kernalyse runs`, `cancel`, `annotate` and `delete`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from kernalyse.services.cli.options import JsonFlag, RunArgument, Server, with_server_options
from kernalyse.services.core.formatting import UNKNOWN

if TYPE_CHECKING:
    from kernalyse.services.core.model import Run


@with_server_options
def runs(
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many, the newest first.")] = 20,
    json_output: JsonFlag = False,
    *,
    server: Server,
) -> None:
    """List runs, the newest first."""
    from kernalyse.services.cli.session import analyzer_session

    with analyzer_session(server, with_profiler=False) as client:
        found = client.runs(count)
    if json_output:
        _print_json(found)
    else:
        _print_table(found)


@with_server_options
def cancel(
    run_id: RunArgument,
    *,
    server: Server,
) -> None:
    """End a run; what it has measured is kept."""
    from kernalyse.services.cli.session import analyzer_session

    with analyzer_session(server, with_profiler=False) as client:
        # The analyzer forwards to the run's node, which knows complete ids only.
        run = client.cancel_run(client.run(run_id).run_id)
    typer.echo(f"{run.run_id} {run.state}")


@with_server_options
def annotate(
    run_id: RunArgument,
    tags: Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Instead of the tags that it has; repeatable.")] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Without any tag.")] = False,
    notes: Annotated[str | None, typer.Option("--notes", metavar="TEXT", help="Instead of the notes that it has.")] = None,
    *,
    server: Server,
) -> None:
    """Give a run tags and notes, which lists, pages and documents show."""
    from kernalyse.services.cli.session import analyzer_session
    from kernalyse.services.core.errors import UsageError

    if not tags and not no_tags and notes is None:
        raise UsageError("annotate", found="nothing to write", expected="--tag, --no-tags or --notes", remedy="Say what is to stand there.")
    with analyzer_session(server, with_profiler=False) as client:
        run = client.run(run_id)
        current_tags = () if no_tags else run.tags
        run = client.annotate_run(run.run_id, tuple(tags) if tags else current_tags, run.notes if notes is None else notes)
    typer.echo(f"{run.run_id} {', '.join(run.tags)}".rstrip())


@with_server_options
def delete(
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run ids, beginnings of them, or last.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    *,
    server: Server,
) -> None:
    """Delete runs that have ended, with all their rows."""
    from kernalyse.services.cli.session import analyzer_session

    with analyzer_session(server, with_profiler=False) as client:
        # All are looked up before the first is deleted: "last" would be a different run afterwards.
        found = {run.run_id: run for run in map(client.run, run_ids)}
        if not yes:
            _confirm_deletion(found.values())
        for run_id in found:
            client.delete_run(run_id)
            typer.echo(f"{run_id} deleted")


def _confirm_deletion(runs: Iterable[Run]) -> None:
    """Ask the user to confirm.

    Raises:
        UsageError: standard input is no terminal, so nobody can answer.
        Abort: the answer is no.
    """
    import sys

    from kernalyse.services.core.errors import UsageError

    listed = ", ".join(f"{run.run_id} ({run.title})" for run in runs)
    if not sys.stdin.isatty():
        raise UsageError("delete", found="nobody to ask", expected="--yes", remedy=f"It would delete {listed}.")
    typer.confirm(f"Delete {listed} with all rows?", abort=True)


def _print_table(found: tuple[Run, ...]) -> None:
    from rich.text import Text

    from kernalyse.services.cli.output import TerminalTable, console

    if not found:
        typer.echo("No runs yet. Start one: kernalyse bench saxpy")
        return
    headings = ("run", "title", "state", "done", "failed", "duration", "started", "device", "node", "tags")
    has_origin = len({run.node_id for run in found}) > 1 or any(run.is_imported for run in found)
    rows = (
        (
            run.run_id,
            run.title,
            run.state if run.error is None else f"{run.state} {run.error.reason}",
            *_counts(run),
            _duration(run),
            _local(run.start_time),
            run.device_id or UNKNOWN,
            run.node_name if has_origin else "",
            ", ".join(run.tags),
        )
        for run in found
    )
    console().print(TerminalTable(headings, rows, unwrapped=("run", "done", "duration", "started", "device")))
    for run in found:
        if run.problem:
            console().print(Text(f"{run.run_id} is {run.state} for all the analyzer knows: {run.problem}"), soft_wrap=True)


def _counts(run: Run) -> tuple[str, str]:
    """Return the count of completed and all configurations, and that of failed ones; a trace has neither."""
    if run.is_trace:
        return UNKNOWN, UNKNOWN
    total = "?" if run.total_configuration_count is None else run.total_configuration_count
    return f"{run.completed_configuration_count}/{total}", str(run.failed_configuration_count)


def _print_json(found: tuple[Run, ...]) -> None:
    import json

    typer.echo(json.dumps([run_row(run) for run in found], indent=2))


def run_row(run: Run) -> dict[str, object]:
    """Return the run as a flat JSON object; unknown values are null."""
    error, revision = run.error, run.spec.revision
    return {
        "run_id": run.run_id,
        "node_id": run.node_id or None,
        "hostname": run.hostname or None,
        "title": run.title,
        "tags": list(run.tags),
        "notes": run.notes,
        "continues_run_id": run.spec.continues_run_id,
        "state": str(run.state),
        "create_time": run.create_time.isoformat(),
        "start_time": None if run.start_time is None else run.start_time.isoformat(),
        "end_time": None if run.end_time is None else run.end_time.isoformat(),
        "device_id": run.device_id,
        "completed_configuration_count": run.completed_configuration_count,
        "failed_configuration_count": run.failed_configuration_count,
        "total_configuration_count": run.total_configuration_count,
        "error_reason": None if error is None else error.reason,
        "error_message": None if error is None else error.message,
        "problem": run.problem or None,
        "git_commit": None if revision is None else revision.commit,
        "git_is_dirty": None if revision is None else revision.is_dirty,
    }


def _local(time: datetime | None) -> str:
    return "" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _duration(run: Run) -> str:
    if run.start_time is None or run.end_time is None:
        return ""
    return f"{(run.end_time - run.start_time).total_seconds():.1f} s"
