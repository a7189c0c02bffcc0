"""Output of commands: consoles, tables that fit them, rows of the canonical tables, and results in three formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernalyse.services.cli.options import ReadableFormat
from kernalyse.services.core.formatting import (
    UNKNOWN,
    ceiling_rate,
    duration,
    median_with_interval,
    operation,
    operation_rate,
    percentage,
    rate,
    size,
)

if TYPE_CHECKING:
    import polars as pl
    from rich.console import ConsoleOptions, RenderResult

    from kernalyse.services.analyzer.queries.filters import QueryResult


# ---------------------------------------------------------------- consoles and tables that fit them

UNLIMITED_WIDTH: Final = 100_000
"""Width of output to a file or a pipe, so that each row of a table is one line, for programs that search it."""

MAX_NAME_LENGTH: Final = 64
"""Names of C++ templates have hundreds of characters: three of them uncut would fill a screen."""

NAME_WIDTH: Final = 40
WORD_WIDTH: Final = 24
"""Characters before text of the first column, and words of the others, are broken: with fewer, a name takes a line per syllable; with
more, one long name leaves no room for numbers."""

MAX_LINE_COUNT: Final = 6
"""Lines of a sentence in a cell: with more, rows cannot be told apart; with fewer, a sentence needs a wide terminal."""

GAP_WIDTH: Final = 2


def console(*, stderr: bool = False) -> Console:
    """Return a console of standard output or standard error; without a terminal its width is unlimited."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=UNLIMITED_WIDTH)


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cells: tuple[str, ...]
    is_number: bool
    is_unwrapped: bool  # never wrapped
    breaks_after: int  # characters

    @property
    def has_values(self) -> bool:
        """Return whether any cell has a known value."""
        return any(cell not in ("", UNKNOWN) for cell in self.cells)

    @property
    def min_width(self) -> int:
        """Return the width in characters at which no word, no number and nothing that must not wrap is broken."""
        heading = max(map(cell_len, self.heading.split()), default=0)
        longest = max((cell_len(word) for cell in self.cells for word in cell.split()), default=0)
        if self.is_unwrapped:
            return max((heading, *map(cell_len, self.cells)))
        return max(heading, min(longest, self.breaks_after), -(-self.full_width // MAX_LINE_COUNT))

    @property
    def full_width(self) -> int:
        """Return the width in characters at which nothing is wrapped."""
        return max(map(cell_len, (self.heading, *self.cells)))


class TerminalTable:
    """A table without borders, of the columns that have values, as many as the terminal has room for.

    Headings wrap between words, numbers never. Columns are left out from the last on, never the first one, and are named below the
    table. In a file or a pipe all are there.
    """

    def __init__(
        self,
        headings: Sequence[str],
        rows: Iterable[Iterable[str]],
        *,
        numeric: Container[str | int] = (),
        unwrapped: Container[str | int] = (),
    ) -> None:
        """Lay out rows.

        Args:
            headings: one for each column.
            rows: cells as text.
            numeric: headings or positions of columns that are aligned to the right and never wrap.
            unwrapped: headings or positions of other columns that never wrap.
        """
        found = [tuple(row) for row in rows]
        columns = [
            _Column(
                heading,
                cells,
                is_number=heading in numeric or position in numeric,
                is_unwrapped=any(name in group for group in (numeric, unwrapped) for name in (heading, position)),
                breaks_after=WORD_WIDTH if position else NAME_WIDTH,
            )
            for position, (heading, cells) in enumerate(
                zip(headings, zip(*found, strict=True) if found else ((),) * len(headings), strict=True)
            )
        ]
        self._columns = [column for position, column in enumerate(columns) if position == 0 or not found or column.has_values]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self._fitting(options.max_width)) if console.is_terminal else self._columns
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP_WIDTH - 1, 0, 0))
        for column, width in zip(shown, _widths(shown, options.max_width), strict=True):
            table.add_column(column.heading, justify="right" if column.is_number else "left", width=width, overflow="fold")
        for cells in zip(*(column.cells for column in shown), strict=True):
            table.add_row(*map(Text, cells))
        yield table
        if left_out := [column.heading for column in self._columns[len(shown) :]]:
            yield Text(f"No room for: {', '.join(left_out)}. A wider terminal, or | less -S, shows all columns.", style="dim")

    def _fitting(self, width: int) -> Iterator[_Column]:
        remaining_width = width
        for position, column in enumerate(self._columns):
            remaining_width -= column.min_width + GAP_WIDTH
            if remaining_width < 0 and position > 0:
                return
            yield column


def _widths(columns: Sequence[_Column], width: int) -> Iterator[int]:
    """Yield the characters of each column: what it needs, and from left to right what it could use of what is left."""
    remaining_width = max(0, width - sum(column.min_width + GAP_WIDTH for column in columns))
    for column in columns:
        more = min(column.full_width - column.min_width, remaining_width)
        remaining_width -= more
        yield min(column.min_width + more, width)


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text.

    Attributes:
        numeric: headings of the columns that are aligned to the right.
        notes: lines that stand below it.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Container[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Rendering:
    """A result in words and tables, which `print_rendering` writes as a table, as Markdown or as JSON.

    Attributes:
        document: the JSON object, with plain values.
    """

    tables: Sequence[TextTable]
    summary: Sequence[str]
    document: Mapping[str, object]


def print_rendering(rendering: Rendering, output_format: ReadableFormat) -> None:
    """Print a result in a format; the summary follows, on standard error where standard output is for a program or a file."""
    match output_format:
        case ReadableFormat.JSON:
            typer.echo(as_json(rendering), nl=False)
        case ReadableFormat.MARKDOWN:
            typer.echo(as_markdown(rendering), nl=False)
        case ReadableFormat.TABLE:
            for table in rendering.tables:
                console().print(TerminalTable(table.headings, table.rows, numeric=table.numeric))
                for note in table.notes:
                    typer.echo(note)
    for line in rendering.summary:
        typer.echo(line, err=output_format is not ReadableFormat.TABLE)


def as_markdown(rendering: Rendering) -> str:
    """Return the summary as a list, then the tables, each with its notes."""
    lines = [f"- {line}" for line in rendering.summary]
    for table in rendering.tables:
        rule = ("--:" if heading in table.numeric else "---" for heading in table.headings)
        lines += ["", *(_markdown_row(cells) for cells in (table.headings, rule, *table.rows))]
        lines += [line for note in table.notes for line in ("", note)]
    return "\n".join(lines) + "\n"


def as_json(rendering: Rendering) -> str:
    """Return the document as text that ends with a line feed."""
    return json.dumps(rendering.document, indent=1) + "\n"


def shorten_name(name: str) -> str:
    """Return a name, or both ends of one that is too long, because names of templates begin alike."""
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH // 2]}…{name[-(MAX_NAME_LENGTH // 2 - 1) :]}"


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# ---------------------------------------------------------------- canonical tables
# The most important columns first, values with units, headings in words.

SHORTENED_COLUMNS: Final = ("kernel_name", "layer", "name", "label", "subject", "layer_path", "kernel_before", "kernel_after", "call")
"""Columns of names that may be long and are shortened to MAX_NAME_LENGTH."""

OVERVIEW_COLUMNS: Final = {
    "measurements": (
        "label", "duration_median_ns", "verification_state", "disturbance", "noise_ratio", "sample_count", "stop_reason", "cache_mode",
        "model_name", "batch_size", "tokens_per_s", "stated_flop_per_s",
    ),
    "roofline": (
        "label", "duration_median_ns", "launch_count", "duration_sum_ns", "efficiency_ratio", "bound", "is_implausible", "disturbance",
        "achieved_flop_per_s", "achieved_bytes_per_s", "attainable_flop_per_s", "intensity_flop_per_byte", "efficiency_category",
        "model_name", "batch_size", "ceiling_source", "work_source", "symbol",
    ),
    "counted_roofline": (
        "label", "memory_level", "bytes", "intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s",
        "memory_ceiling_bytes_per_s", "efficiency_ratio", "bound",
    ),
    "kernels": (
        "kernel_name", "launch_count", "duration_sum_ns", "share_ratio", "duration_median_ns", "duration_min_ns", "duration_max_ns",
        "duration_median_min_ns", "efficiency_ratio_max", "bound", "achieved_flop_per_s_max", "achieved_bytes_per_s_max",
        "configuration_count", "failed_configuration_count", "implausible_count", "disturbed_count", "best_label", "category",
    ),
    "layers": (
        "layer", "variant", "duration_sum_ns", "share_ratio", "pass_duration_median_ns", "launch_count", "call_count", "efficiency_ratio",
        "bound", "disturbance", "achieved_flop_per_s", "achieved_bytes_per_s", "source", "flop", "bytes", "work_source",
        "worked_share_ratio",
    ),
    "layer_roofline": (
        "label", "duration_sum_ns", "share_ratio", "efficiency_ratio", "bound", "disturbance", "achieved_flop_per_s",
        "achieved_bytes_per_s", "attainable_flop_per_s", "intensity_flop_per_byte", "ceiling_source", "work_source",
    ),
    "layer_tree": (
        "layer", "variant", "duration_sum_ns", "own_duration_sum_ns", "share_ratio", "launch_count", "call_count", "efficiency_ratio",
        "bound", "achieved_flop_per_s", "achieved_bytes_per_s",
    ),
    "layer_kernels": (
        "layer_path", "variant", "kernel_name", "duration_sum_ns", "share_ratio", "launch_count", "own_launch_count", "efficiency_ratio",
        "bound", "achieved_flop_per_s",
    ),
    "counted_layer_roofline": (
        "label", "memory_level", "launch_count", "bytes", "intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s",
        "memory_ceiling_bytes_per_s", "efficiency_ratio", "bound",
    ),
    "opportunities": (
        "subject", "subject_kind", "variant", "lost_ns", "duration_sum_ns", "share_ratio", "efficiency_ratio", "bound", "reason",
    ),
    "ceilings": ("ceiling_name", "path", "value", "host_busy_ratio", "source", "clock_hz", "confidence", "device_id"),
    "breakdown": (
        "device_index", "device_name", "process_id", "span_ns", "busy_ns", "idle_ns", "compute_ns", "communication_ns", "overlap_ns",
        "memory_ns", "memory_only_ns",
    ),
    "gaps": ("start_ns", "duration_ns", "reason", "device_index", "kernel_before", "kernel_after", "call", "layer"),
    "launches": (
        "kernel_name", "launch_count", "call_duration_median_ns", "queue_delay_median_ns", "queue_delay_p95_ns", "short_share_ratio",
        "launches_per_graph_count",
    ),
    "memory": (
        "kind", "direction", "device_index", "process_id", "op_count", "bytes_sum", "duration_sum_ns", "achieved_bytes_per_s",
        "bandwidth_ratio", "small_op_count",
    ),
    "occupancy": (
        "kernel_name", "grid_block_count", "block_thread_count", "registers_per_thread", "shared_bytes", "launch_count", "duration_sum_ns",
        "theoretical_occupancy_ratio", "wave_count", "limiting_resource",
    ),
    "collectives": (
        "collective_index", "kernel_name", "rank_count", "rank_index", "process_id", "start_ns", "duration_ns", "late_ns", "wait_ns",
        "is_straggler",
    ),
    "ranks": (
        "rank_index", "process_id", "device_index", "span_ns", "busy_ns", "compute_ns", "communication_ns", "collective_count", "wait_ns",
        "straggler_count", "clock_source", "clock_residual_ns",
    ),
    "rank_clocks": (
        "rank_index", "process_id", "host_name", "file_name", "clock_source", "operation_count", "clock_offset_ns", "clock_drift_ratio",
        "residual_median_ns", "residual_max_ns",
    ),
    "models": (
        "model_name", "variant", "duration_median_ns", "tokens_per_s", "efficiency_ratio", "bound", "verification_state", "disturbance",
        "batch_size", "sequence_length", "duration_mean_ns", "duration_standard_deviation_ns", "duration_p95_ns", "duration_p99_ns",
        "launch_count",
    ),
    "layer_variants": (
        "layer", "variant", "baseline_variant", "duration_sum_ns", "baseline_duration_sum_ns", "duration_ratio", "verdict",
        "duration_delta_ns", "efficiency_ratio", "baseline_efficiency_ratio", "occurrence",
    ),
    "best": (
        "label", "duration_median_ns", "candidate_count", "runner_up_label", "margin_ratio", "is_real",
    ),
    "samples": ("configuration_index", "sample_index", "duration_ns"),
    "counters": ("configuration_index", "kernel_name", "metric_name", "value", "unit", "text"),
    "counted_work": (
        "label", "duration_ns", "sm_clock_hz", "flop", "dtype", "path", "dram_bytes", "l2_bytes", "l1_bytes", "achieved_occupancy_ratio",
        "sm_throughput_ratio", "memory_throughput_ratio",
    ),
}  # fmt: skip
"""The columns of the widest tables that a terminal shows, the most important first, as many as there is room for. Of other tables it
shows all columns."""

KEYS: Final = ("run_id", "event_index")
"""Not shown where all columns are: the user named the run, and the index of a journal's entry is for programs."""

SUBSTITUTE_COLUMNS: Final = {"duration_median_ns": "duration_mean_ns"}
"""Shown after a column that is null in some rows: results of other tools may have means only."""

FACTORS: Final = ("duration_ratio", "duration_median_ratio", "cycle_ratio", "launch_ratio", "paired_ratio", "change_ratio")
"""Ratios of two values, shown as numbers such as 1.05. The others are fractions, shown as percentages."""

ENUMERATIONS: Final = ("stop_reason", "verification_state", "recheck_state", "cache_mode", "state", "verdict", "occurrence", "backend")
UNITS: Final = (("_flop_per_s", " flop rate"), ("_bytes_per_s", " byte rate"), ("_flop_per_byte", ""), ("_per_s", "/s"))
PLAIN_UNITS: Final = ("_unix_ns", "_ns", "_hz", "_watts", "_celsius")


def print_result(console: Console, name: str, result: QueryResult, max_row_count: int) -> None:
    """Print the first rows of a table, with notes on rows and names that are cut."""
    frame, total_row_count = result.frame, result.total_row_count
    columns = shown_columns(name, frame)
    count = f"{frame.height}" if frame.height == total_row_count else f"{frame.height} of {total_row_count}"
    console.print(f"{name}: {count} rows", highlight=False)
    rows = frame.head(max_row_count).rows(named=True)
    numeric = [position for position, column in enumerate(columns) if frame[column].dtype.is_numeric()]
    cells = ([cell(column, row[column], row) for column in columns] for row in rows)
    console.print(TerminalTable([heading(column) for column in columns], cells, numeric=numeric))
    if any(len(row[column] or "") > MAX_NAME_LENGTH for column in SHORTENED_COLUMNS if column in columns for row in rows):
        console.print("Long names are cut. Whole ones: --format json, csv or parquet.")
    if name == "best":
        for line in best_lines(frame):
            console.print(line, markup=False, highlight=False)
    if frame.height > max_row_count:
        console.print(f"The first {max_row_count} rows. All of them: --format json, csv or parquet.")


def shown_columns(name: str, frame: pl.DataFrame) -> list[str]:
    """Return the columns to show, without flags that are set in no row."""
    import polars as pl

    if frame.is_empty():
        return [column for column in OVERVIEW_COLUMNS.get(name, frame.columns) if column in frame.columns]
    columns = []
    for column in OVERVIEW_COLUMNS.get(name, [column for column in frame.columns if column not in KEYS]):
        if column not in frame.columns or (frame.schema[column] == pl.Boolean and not frame[column].any()):
            continue
        columns.append(column)
        stand_in = SUBSTITUTE_COLUMNS.get(column)
        if stand_in in frame.columns and stand_in not in columns and frame[column].null_count() > 0:
            columns.append(stand_in)
    if "work_source" in columns and frame["work_source"].null_count() == frame.height:
        columns = [column for column in columns if column != "worked_share_ratio"]  # a column of zeros
    return columns or list(frame.columns)


def heading(column: str) -> str:
    """Return a column's name in words, without its unit, which the values have."""
    for unit, words in UNITS:
        column = column.replace(unit, words)
    for unit in PLAIN_UNITS:
        column = column.removesuffix(unit)
    if not column.startswith(FACTORS):
        column = column.replace("_ratio", "")
    if column not in ("bytes", "bytes_sum"):
        column = column.removesuffix("_bytes")
    return column.removeprefix("is_").replace("_", " ")


def cell(column: str, value: Any, row: dict[str, Any]) -> str:
    """Return a value as text with its unit. row: all values by column, for text that is made of several."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        if column in SHORTENED_COLUMNS:
            return shorten_name(value)
        return value.lower().replace("_", " ") if column in ENUMERATIONS else value
    if not isinstance(value, int | float):
        return str(value)
    if column == "duration_median_ns" and row.get("duration_median_low_ns") is not None:
        return median_with_interval(value, row["duration_median_low_ns"], row["duration_median_high_ns"])
    if column == "value" and row.get("unit") in ("flop_per_s", "bytes_per_s"):
        return ceiling_rate(value, row["unit"], row.get("ceiling_name") or "")
    return number(column, value, row.get("dtype"))


def number(column: str, value: float, dtype: str | None = None) -> str:
    """Return a number with the unit that its column's name ends with, before a suffix such as _min or _sum.

    Args:
        column: name of the column.
        value: in the unit of the column.
        dtype: data type of the kernel: operations on integers are not called flop.
    """
    for extreme in ("_min", "_max", "_low", "_high", "_sum"):
        column = column.removesuffix(extreme)
    if column.endswith("_unix_ns"):
        return datetime.fromtimestamp(value / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if column in ("start_ns", "end_ns"):  # microseconds within hours: users search a timeline by them
        return f"{value / 1e9:.6f} s"
    units: dict[str, Callable[[float], str]] = {
        "_ns": duration,
        "_flop_per_s": lambda value: operation_rate(value, dtype),
        "_bytes_per_s": lambda value: rate(value, "B/s"),
        "_flop_per_byte": lambda value: f"{value:.4g} flop/B",
        "_hz": lambda value: rate(value, "Hz"),
        "_watts": lambda value: f"{value:.4g} W",
        "_celsius": lambda value: f"{value:.4g} °C",
        "_bytes": size,
        "_flop": lambda value: rate(value, operation(dtype)),
        "_ratio": _plain_number if column.startswith(FACTORS) else percentage,
    }
    shown = next((shown for suffix, shown in units.items() if f"_{column}".endswith(suffix)), None)
    if shown is not None:
        return shown(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _plain_number(value: float) -> str:
    return f"{value:.4g}"


# ---------------------------------------------------------------- best configurations

MAX_PROBLEM_COUNT: Final = 10
"""Shown at most: more fill the screen, and the table has them all."""


def best_lines(best: pl.DataFrame) -> Iterator[str]:
    """Yield one line for each problem with more than one configuration. Input: table best of one run."""
    with_runner_up = best.filter(best["candidate_count"] > 1)
    for row in with_runner_up.head(MAX_PROBLEM_COUNT).iter_rows(named=True):
        yield _best_line(row)
    remaining_count = with_runner_up.height - MAX_PROBLEM_COUNT
    if remaining_count > 0:
        yield f"… and the best of {remaining_count} more: kernalyse show {best['run_id'][0]} best"


def _without_parameters(label: str, parameters: str) -> str:
    """Return a label without the parameters of the problem, which are the same for the best and its runner-up."""
    shown = "".join(f" {name}={value}" for name, value in json.loads(parameters).items())
    return label.replace(shown, "", 1)


def _best_line(row: dict[str, Any]) -> str:
    name = f"best of {row['candidate_count']}: {row['label']}, {duration(row['duration_median_ns'])}"
    interval = f"{percentage(row['margin_ratio_low'])} to {percentage(row['margin_ratio_high'])}"
    margin = f"{percentage(row['margin_ratio'])} ({interval}) ahead of {_without_parameters(row['runner_up_label'], row['parameters'])}"
    return f"{name}, {margin}; {'real' if row['is_real'] else 'not shown to be real'}: {row['reason']}"
