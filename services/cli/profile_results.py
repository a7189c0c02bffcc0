"""A profile that was just submitted: its output and progress while it runs, then its kernels and layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from services.core.model import Filter, LogLevel, ModelRun, RunState, TableQuery

if TYPE_CHECKING:
    from rich.console import Console

    from services.cli.analyzer_client import AnalyzerClient
    from services.core.model import Run

SHOWN_ROW_COUNT: Final = 10


def follow_profile(client: AnalyzerClient, run: Run, console: Console) -> bool:
    """Follow the run until its trace has been read, show what it came to, and return whether there is something to show."""
    from services.cli.model_results import follow_and_show_model
    from services.cli.run_display import outcome_line
    from services.cli.run_results import follow

    console.print(f"run {run.run_id}", markup=False, highlight=False)
    if isinstance(run.spec.work, ModelRun):
        is_good = follow_and_show_model(client, run, None, console)
        console.print(_where(run), markup=False, highlight=False, soft_wrap=True)
        return is_good
    run = follow(client, run, console, shows_program=True)
    shown_count = _show_tables(client, run)
    for line in (*run.notes.splitlines()[1:], *_missing_ceilings(client, run)):  # the first one came with the log
        console.print(line, markup=False, highlight=False, style="dim")
    console.print(outcome_line(run), markup=False, highlight=False)
    if shown_count:
        console.print(_where(run), markup=False, highlight=False, soft_wrap=True)
    return run.state is RunState.SUCCEEDED and _is_readable(client, run)


def _show_tables(client: AnalyzerClient, run: Run) -> int:
    """Print the longest kernels and layers, and return how many tables have rows."""
    from services.cli.terminal import console as make_console
    from services.cli.trace_display import kernel_table, layer_table

    console, shown_count = make_console(), 0
    for name, table_of in (("kernels", kernel_table), ("layers", layer_table)):
        frame, total_row_count = client.rows(TableQuery(name, (run.run_id,), limit=SHOWN_ROW_COUNT))
        if total_row_count:
            shown_count += 1
            of_all = f", the {frame.height} longest of {total_row_count}" if frame.height < total_row_count else ""
            console.print(f"\n{name}{of_all}:", markup=False, highlight=False)
            console.print(table_of(frame))
    return shown_count


def _missing_ceilings(client: AnalyzerClient, run: Run) -> tuple[str, ...]:
    """Return a note on a device whose kernels' work is known, but not what it can do: no data sheet is known of it."""
    points = client.rows(TableQuery("roofline", (run.run_id,), columns=("device_id", "efficiency_ratio")))[0]
    if points.is_empty() or points["efficiency_ratio"].count():
        return ()
    return (f"Efficiencies are not known, for no ceilings of {points['device_id'][0]} are: `kernalyse ceilings` measures those of a node.",)


def _is_readable(client: AnalyzerClient, run: Run) -> bool:
    """Return whether the analyzer has nothing to complain of. A program may have launched nothing: then there is nothing to show."""
    from services.cli.run_display import ANALYZER

    complaints = (Filter("source", ANALYZER), Filter("level", LogLevel.WARNING.value))
    return client.rows(TableQuery("log_lines", (run.run_id,), filters=complaints, limit=1))[1] == 0


def _where(run: Run) -> str:
    """Return where the rest of it is: on the run's page, where a dashboard runs here."""
    from services.cli.local_services import running_page_url

    url = running_page_url(f"/live?runs={run.run_id}")
    return f"All of it: {url or f'kernalyse show {run.run_id} kernels layers gaps launches memory'}"
