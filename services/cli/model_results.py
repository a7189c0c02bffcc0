"""A model's run that was just submitted: followed on the terminal, and what it says shown and written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.core.model import RunState

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from services.cli.analyzer_client import AnalyzerClient
    from services.core.model import Run, Work

SHOWN_TABLES: Final = ("models", "layers", "layer_variants", "paired_comparisons", "failures")


def follow_and_show_model(client: AnalyzerClient, run: Run, json_path: Path | None, console: Console) -> bool:
    """Follow and show the run, and return whether everything was timed and right.

    json_path: where results are written; "-" for standard output, which then has nothing else.
    """
    from services.cli.run_display import outcome_line
    from services.cli.run_results import follow, write_json

    run = follow(client, run, console)
    tables = {name: client.table(name, [run.run_id]) for name in SHOWN_TABLES}
    is_quiet = json_path is not None and str(json_path) == "-"
    _print_tables(tables, run.spec.work, quiet=is_quiet)
    console.print(outcome_line(run), markup=False, highlight=False)
    if json_path is not None:
        write_json(client, run, None if is_quiet else json_path)
    is_right = "FAILED" not in tables["models"]["verification_state"].to_list()
    return run.state is RunState.SUCCEEDED and run.failed_configuration_count == 0 and is_right


def _print_tables(tables: dict[str, pl.DataFrame], work: Work, *, quiet: bool) -> None:
    from services.cli.model_display import layer_lines, layer_table, model_table, pair_lines, variant_table
    from services.cli.run_display import failure_lines
    from services.cli.terminal import console as make_console
    from services.core.disturbance import disturbance_note

    console = make_console(stderr=quiet)
    if not tables["models"].is_empty():
        console.print(model_table(tables["models"]))
    if not tables["layer_variants"].is_empty():
        console.print(variant_table(tables["layer_variants"]))
    elif not tables["layers"].is_empty():
        console.print(layer_table(tables["layers"]))
    disturbed = disturbance_note(tables["models"]["disturbance"])
    for line in (
        *layer_lines(tables["models"], work),
        *pair_lines(tables["paired_comparisons"], tables["models"]),
        *([disturbed] if disturbed else []),
        *failure_lines(tables["failures"]),
    ):
        console.print(line, markup=False, highlight=False)
