"""A run that was just submitted: followed on the terminal, and its results shown and written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.cli.table_files import write_text

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from services.cli.analyzer_client import AnalyzerClient
    from services.core.model import Run


SHOWN_TABLES: Final = ("measurements", "roofline", "paired_comparisons", "failures", "best")


def follow_and_show(client: AnalyzerClient, run: Run, json_path: Path | None, console: Console) -> bool:
    """Follow and show the run, and return whether everything was measured and right.

    json_path: where results are written; "-" for standard output, which then has nothing else.
    """
    from services.cli.run_display import outcome_line

    run = follow(client, run, console)
    frames = {name: client.table(name, [run.run_id]) for name in SHOWN_TABLES}
    writes_to_standard_output = json_path is not None and str(json_path) == "-"
    _print_results(frames, quiet=writes_to_standard_output)
    console.print(outcome_line(run), markup=False, highlight=False)
    if json_path is not None:
        write_json(client, run, None if writes_to_standard_output else json_path)
    return run.state == "SUCCEEDED" and run.failed_configuration_count == 0 and _is_verified(frames["measurements"])


def follow(client: AnalyzerClient, run: Run, console: Console, *, shows_program: bool = False) -> Run:
    """Show the run's progress until it has ended, with what its program prints if that is wanted. Ctrl-C cancels it."""
    from services.cli.run_display import RunDisplay

    display = RunDisplay(run, console, shows_program=shows_program)
    try:
        return display.follow(client)
    except KeyboardInterrupt:
        console.print(f"Cancelling run {run.run_id}; what it has measured is kept…")
        client.cancel_run(run.run_id)
        return display.follow(client)


def _print_results(frames: dict[str, pl.DataFrame], *, quiet: bool) -> None:
    from services.cli.best_display import best_lines
    from services.cli.run_display import counted_lines, disturbed_lines, failure_lines, implausible_lines, paired_table, result_table
    from services.cli.terminal import console as make_console

    console = make_console(stderr=quiet)
    if not frames["measurements"].is_empty():
        console.print(result_table(frames["measurements"], frames["roofline"]))
    if not frames["paired_comparisons"].is_empty():
        console.print(paired_table(frames["paired_comparisons"], frames["measurements"]))
    for line in (
        *counted_lines(frames["roofline"]),
        *failure_lines(frames["failures"]),
        *implausible_lines(frames["roofline"]),
        *disturbed_lines(frames["roofline"]),
        *best_lines(frames["best"]),
    ):
        console.print(line, markup=False, highlight=False)


def _is_verified(measurements: pl.DataFrame) -> bool:
    return "FAILED" not in measurements["verification_state"].to_list() if measurements.height else True


def write_json(client: AnalyzerClient, run: Run, path: Path | None) -> None:
    """Write everything measured, in the project's format. path: None for standard output."""
    from services.analyzer.writers.results import results_document
    from services.cli.export import run_results

    text = results_document(run_results(client, run))
    write_text(text, path)
