"""The progress of a run on the terminal, and its results as tables, notes and JSON."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from kernalyse.services.cli.output import TerminalTable, shorten_name
from kernalyse.services.cli.table_files import write_text
from kernalyse.services.core.disturbance import DISTURBED_SYMBOL, disturbance_note
from kernalyse.services.core.formatting import UNKNOWN, duration, giga, layer_label, median_with_interval, percentage
from kernalyse.services.core.model import CommandProfile, LogLevel, Run, RunState, StopReason, TableChunk
from kernalyse.services.ui.charts.elements import OUTSIDE

if TYPE_CHECKING:
    import polars as pl

    from kernalyse.services.cli.analyzer_client import AnalyzerClient, RunUpdate


# ---------------------------------------------------------------- progress and results

SHOWN_STOP_REASONS: Final = {
    StopReason.CONFIDENCE_REACHED: "confident",
    StopReason.NO_IMPROVEMENT: "no gain",
    StopReason.TIME_LIMIT: "time",
    StopReason.SAMPLE_LIMIT: "samples",
    StopReason.NOISE_REACHED: "noise",
    StopReason.ENTROPY_SETTLED: "entropy",
    StopReason.ELIMINATED: "eliminated",
    StopReason.BUDGET_SPENT: "budget",
}
MAX_IMPLAUSIBLE_COUNT: Final = 5
"""Reasons shown at most: a wrong formula makes every configuration implausible for the same reason, and the table marks each row."""

# Sources of log lines.
PROGRAM: Final = "program"
ANALYZER: Final = "analyzer"
SHOWN_LEVELS: Final = (LogLevel.WARNING, LogLevel.ERROR)


class RunDisplay:
    """The progress of one run on the terminal.

    Args:
        run: the run to follow.
        console: shows progress and log lines.
        shows_program: whether the output of the run's program is shown.

    Attributes:
        run: its latest state.
    """

    def __init__(self, run: Run, console: Console, *, shows_program: bool = False) -> None:
        self.run = run
        self._console = console
        self._shows_program = shows_program
        self._last_problem = ""
        of_configurations = () if isinstance(run.spec.work, CommandProfile) else (BarColumn(), MofNCompleteColumn())
        self._progress = Progress(
            TextColumn("{task.fields[state]}"),
            *of_configurations,
            TimeElapsedColumn(),
            TextColumn("{task.fields[activity]}"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("run", total=None, state=run.state, activity="")

    def follow(self, client: AnalyzerClient) -> Run:
        """Show the progress of the run until it has ended, and return its final state."""
        with self._progress:
            for update in client.watch_run(self.run.run_id):
                self._show(update)
        if not self.run.is_settled:
            self.run = client.run(self.run.run_id)
        return self.run

    def _show(self, update: RunUpdate) -> None:
        if update.run is not None:
            self.run = update.run
            self._progress.update(
                self._task,
                total=self.run.total_configuration_count,
                completed=self.run.completed_configuration_count,
                state=self.run.state.lower(),
                activity=Text(self.run.activity),
            )
            if self.run.problem and self.run.problem != self._last_problem:
                self._last_problem = self.run.problem
                self._console.print(Text(f"waiting: {self.run.problem}"))
        for chunk in update.tables:
            if chunk.table_name == "log_lines":
                self._show_log_lines(chunk)

    def _show_log_lines(self, chunk: TableChunk) -> None:
        import polars

        for row in polars.read_ipc_stream(BytesIO(chunk.arrow_ipc)).iter_rows(named=True):
            if self._shows_program and row["source"] == PROGRAM:
                self._console.print(Text(row["line"]), soft_wrap=True)
            elif row["level"] in SHOWN_LEVELS or row["source"] == ANALYZER:
                self._console.print(Text(f"{row['source']}: {row['line']}"))


def result_table(measurements: pl.DataFrame, roofline: pl.DataFrame) -> TerminalTable:
    """Return one row per measured configuration. Input: the tables measurements and roofline of one run."""
    latest_roofline = {row["configuration_index"]: row for row in roofline.iter_rows(named=True)}
    headings = ("kernel", "parameters", "median ± CI", "efficiency", "bound", "verified", "GFLOP/s", "GB/s", "stop")
    rows = (
        _result_cells(row, latest_roofline.get(row["configuration_index"], {}))
        for row in measurements.sort("configuration_index").iter_rows(named=True)
    )
    return TerminalTable(headings, rows, numeric=("median ± CI", "efficiency", "GFLOP/s", "GB/s"), unwrapped=("kernel",))


def counted_lines(roofline: pl.DataFrame) -> list[str]:
    """Return a note on configurations whose cost was measured by hardware counters. Input: table roofline of one run."""
    labels = roofline.filter(roofline["work_source"] == "counters")["label"].unique(maintain_order=True).to_list()
    if not labels:
        return []
    return [f"work by hardware counters, for want of formulas: {labels[0]}{f' and {len(labels) - 1} more' if len(labels) > 1 else ''}"]


def _result_cells(measurement: dict[str, Any], roofline: dict[str, Any]) -> tuple[str, ...]:
    kernel_name: str = measurement["kernel_name"]
    return (
        kernel_name,
        str(measurement["label"]).removeprefix(kernel_name).strip(),
        median_with_interval(
            measurement["duration_median_ns"], measurement["duration_median_low_ns"], measurement["duration_median_high_ns"]
        ),
        percentage(roofline.get("efficiency_ratio")),
        roofline.get("bound") or UNKNOWN,
        str(measurement["verification_state"]).lower().replace("_", " ")
        + (", implausible" if roofline.get("is_implausible") else "")
        + (f", {DISTURBED_SYMBOL} disturbed" if roofline.get("disturbance") else ""),
        giga(roofline.get("achieved_flop_per_s")),
        giga(roofline.get("achieved_bytes_per_s")),
        SHOWN_STOP_REASONS[StopReason(measurement["stop_reason"])],
    )


def paired_table(comparisons: pl.DataFrame, measurements: pl.DataFrame) -> TerminalTable:
    """Return one row per paired comparison, with the ratio of the medians that the table of results shows.

    Args:
        comparisons: table paired_comparisons of one run, not empty.
        measurements: table measurements of that run.
    """
    medians = dict(measurements.select("configuration_index", "duration_median_ns").iter_rows())
    numeric = ("paired time", f"{comparisons['confidence_ratio'][0] * 100:g} % interval", "of medians", "cycles", "blocks")
    rows = (
        (
            str(row["label"]),
            str(row["baseline_label"]),
            str(row["verdict"]).lower(),
            _ratio(row["duration_ratio"]),
            f"{_ratio(row['duration_ratio_low'])} to {_ratio(row['duration_ratio_high'])}",
            _ratio_of(medians.get(row["configuration_index"]), medians.get(row["baseline_configuration_index"])),
            _ratio(row["cycle_ratio"]),
            str(row["block_count"]),
            str(row["reason"]),
        )
        for row in comparisons.sort("configuration_index").iter_rows(named=True)
    )
    return TerminalTable(("compared", "with", "verdict", *numeric, "because"), rows, numeric=numeric)


def _ratio_of(after_ns: float | None, before_ns: float | None) -> str:
    return _ratio(after_ns / before_ns if after_ns and before_ns else None)


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"


def implausible_lines(roofline: pl.DataFrame) -> list[str]:
    """Return why measurements cannot be true, a line each for the first ones. Input: table roofline of one run."""
    latest = {row["configuration_index"]: row for row in roofline.iter_rows(named=True)}
    lines = [f"implausible: {row['label']}: {row['implausible_reason']}" for row in latest.values() if row["is_implausible"]]
    remaining_count = len(lines) - MAX_IMPLAUSIBLE_COUNT
    return lines if remaining_count <= 0 else [*lines[:MAX_IMPLAUSIBLE_COUNT], f"implausible: {remaining_count} more"]


def disturbed_lines(roofline: pl.DataFrame) -> list[str]:
    """Return a note on how many measurements were disturbed, and the worst cause. Input: table roofline of one run."""
    latest = {row["configuration_index"]: row["disturbance"] for row in roofline.iter_rows(named=True)}
    note = disturbance_note(latest.values())
    return [note] if note else []


def failure_lines(failures: pl.DataFrame) -> list[str]:
    """Return one line per error message, with the configurations that it is of. Input: table failures of one run."""
    labels_by_message: dict[str, list[str]] = {}
    for row in failures.sort("configuration_index").iter_rows(named=True):
        labels_by_message.setdefault(row["message"], []).append(row["label"] or f"configuration {row['configuration_index']}")
    return [
        f"failed: {labels[0]}{f' and {len(labels) - 1} more' if len(labels) > 1 else ''}: {message}"
        for message, labels in labels_by_message.items()
    ]


def outcome_line(run: Run) -> str:
    """Return a line on how a run ended, followed by the message of its error."""
    completed_count, total_count = run.completed_configuration_count, run.total_configuration_count
    of_total = f" of {total_count}" if total_count not in (None, completed_count) else ""
    count = "" if run.is_trace else f", {completed_count}{of_total} configurations, {run.failed_configuration_count} failed"
    text = f"run {run.run_id}: {run.state.lower()}{count}"
    return text if run.error is None or run.state is RunState.CANCELLED else f"{text}\n{run.error.message}"


# ---------------------------------------------------------------- from the start of a run to its results

SHOWN_TABLES: Final = ("measurements", "roofline", "paired_comparisons", "failures", "best")


def follow_and_show(client: AnalyzerClient, run: Run, json_path: Path | None, console: Console) -> bool:
    """Follow a run, show its results, and return whether everything was measured and verified.

    Args:
        client: the analyzer.
        run: it was just started.
        json_path: file for the results; "-" for standard output, which then has nothing else; None: none.
        console: shows progress and notes.
    """
    run = follow(client, run, console)
    frames = {name: client.table(name, [run.run_id]) for name in SHOWN_TABLES}
    writes_to_standard_output = json_path is not None and str(json_path) == "-"
    _print_results(frames, quiet=writes_to_standard_output)
    console.print(outcome_line(run), markup=False, highlight=False)
    if json_path is not None:
        write_json(client, run, None if writes_to_standard_output else json_path)
    return run.state == "SUCCEEDED" and run.failed_configuration_count == 0 and _is_verified(frames["measurements"])


def follow(client: AnalyzerClient, run: Run, console: Console, *, shows_program: bool = False) -> Run:
    """Show the progress of a run until it has ended, and return its final state. Ctrl-C cancels it.

    Args:
        client: the analyzer.
        run: it was just started.
        console: shows progress and log lines.
        shows_program: whether the output of the run's program is shown.
    """
    display = RunDisplay(run, console, shows_program=shows_program)
    try:
        return display.follow(client)
    except KeyboardInterrupt:
        console.print(f"Cancelling run {run.run_id}; what it has measured is kept…")
        client.cancel_run(run.run_id)
        return display.follow(client)


def _print_results(frames: dict[str, pl.DataFrame], *, quiet: bool) -> None:
    from kernalyse.services.cli.output import best_lines
    from kernalyse.services.cli.output import console as make_console

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
    """Write the results of a run as JSON in the format of docs/results_json.md. path: None for standard output."""
    from kernalyse.services.analyzer.export.results import results_document
    from kernalyse.services.cli.export import run_results

    text = results_document(run_results(client, run))
    write_text(text, path)


# ---------------------------------------------------------------- tables of a trace


def kernel_table(kernels: pl.DataFrame) -> TerminalTable:
    """Return one row per kernel. Input: table kernels of a trace."""
    numeric = ("launches", "time", "share", "median")
    rows = (
        (
            shorten_name(row["kernel_name"]),
            f"{row['launch_count']}",
            duration(row["duration_sum_ns"]),
            percentage(row["share_ratio"]),
            duration(row["duration_median_ns"]),
        )
        for row in kernels.iter_rows(named=True)
    )
    return TerminalTable(("kernel", *numeric), rows, numeric=numeric)


def layer_table(layers: pl.DataFrame) -> TerminalTable:
    """Return one row per layer. Input: table layers of a trace."""
    numeric = ("calls", "launches", "time", "share", "GFLOP/s", "GB/s", "efficiency")
    rows = (
        (
            shorten_name(layer_label(row["layer"], row["source"]) if row["layer"] else OUTSIDE),
            UNKNOWN if row["call_count"] is None else f"{row['call_count']}",
            f"{row['launch_count']}",
            duration(row["duration_sum_ns"]),
            percentage(row["share_ratio"]),
            giga(row["achieved_flop_per_s"]),
            giga(row["achieved_bytes_per_s"]),
            percentage(row["efficiency_ratio"]),
            row["bound"] or UNKNOWN,
            row["source"] or UNKNOWN,
        )
        for row in layers.iter_rows(named=True)
    )
    return TerminalTable(("layer", *numeric, "bound", "attributed by"), rows, numeric=numeric)
