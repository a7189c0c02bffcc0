"""Comparisons of two runs or two traces as tables, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kernalyse.services.cli.output import Rendering, TextTable, shorten_name
from kernalyse.services.core.disturbance import comparison_disturbance_notes
from kernalyse.services.core.formatting import UNKNOWN, change, duration, footnote_lines, footnote_marks, percentage
from kernalyse.services.core.formatting import change as ratio_change

if TYPE_CHECKING:
    import polars as pl


# ---------------------------------------------------------------- runs

RUN_COMPARISON_VERSION: Final = "kernalyse-comparison/1"
RUN_NUMERIC_HEADINGS: Final = ("before", "after", "change", "interval", "cycles", "processes")
HEADINGS: Final = ("configuration", *RUN_NUMERIC_HEADINGS, "verdict", "because")
VERDICTS: Final = ("SLOWER", "FASTER", "SAME", "UNDECIDED")  # the worst first


def slower_rows(rows: pl.DataFrame, threshold_ratio: float) -> pl.DataFrame:
    """Return the rows of table comparison with the verdict SLOWER and a ratio over the threshold."""
    return rows.filter((rows["verdict"] == "SLOWER") & (rows["duration_ratio"] > 1 + threshold_ratio))


def comparison_rendering(rows: pl.DataFrame, threshold_ratio: float | None) -> Rendering:
    """Return the rows of table comparison for printing. Reasons that several rows share are notes below the table."""
    marks = footnote_marks(rows["reason"])
    cells = tuple(_run_cells(row, marks) for row in rows.iter_rows(named=True))
    summary = tuple(summary_lines(rows, threshold_ratio))
    document = {
        "schema": RUN_COMPARISON_VERSION,
        "fail_if_slower_ratio": threshold_ratio,
        "is_slower": threshold_ratio is not None and not slower_rows(rows, threshold_ratio).is_empty(),
        "summary": summary,
        "comparison": rows.to_dicts(),
    }
    return Rendering((TextTable(HEADINGS, cells, RUN_NUMERIC_HEADINGS, footnote_lines(marks)),), summary, document)


def summary_lines(rows: pl.DataFrame, threshold_ratio: float | None) -> Iterator[str]:
    """Yield the count of each verdict, the configurations slower than the threshold, and notes on what limits the comparison."""
    counts = {verdict: rows.filter(rows["verdict"] == verdict).height for verdict in VERDICTS}
    matched_count = sum(counts.values())
    if matched_count == 0:
        yield "No configuration is in both runs: nothing was compared."
    else:
        yield f"{matched_count} compared: {', '.join(f'{count} {verdict.lower()}' for verdict, count in counts.items() if count)}."
    for occurrence, words in (("NEW", "only in the second run"), ("GONE", "only in the first run")):
        count = rows.filter(rows["occurrence"] == occurrence).height
        if count:
            yield f"{count} {words}."
    if counts["UNDECIDED"]:
        yield f"Undecided says neither that {_pronoun(counts['UNDECIDED'])} the same nor that {_pronoun(counts['UNDECIDED'])} not."
    if threshold_ratio is not None and matched_count:
        slow = slower_rows(rows, threshold_ratio)
        known = f"Slower by more than {percentage(threshold_ratio)}"
        yield f"{known}: {', '.join(slow['label'])}." if not slow.is_empty() else f"{known}: none that is known to be."
    yield from comparison_disturbance_notes(
        *(rows.drop_nulls(f"{side}duration_median_ns")[f"{side}disturbance"] for side in ("baseline_", ""))
    )
    allowed = sorted({name for names in rows["allowed_differences"].drop_nulls() for name in names.split(",") if name})
    if allowed:
        yield f"The runs differ in {' and '.join(allowed)}, as allowed: the ratios include that."


def _pronoun(count: int) -> str:
    return "it is" if count == 1 else "they are"


def _run_cells(row: dict[str, Any], marks: Mapping[str, str]) -> tuple[str, ...]:
    interval = f"{change(row['duration_ratio_low'])} to {change(row['duration_ratio_high'])}"
    counts = (row["baseline_process_count"], row["process_count"])
    return (
        str(row["label"]),
        duration(row["baseline_duration_median_ns"]),
        duration(row["duration_median_ns"]),
        change(row["duration_ratio"]),
        UNKNOWN if row["duration_ratio"] is None else interval,
        change(row["cycle_ratio"]),
        ", ".join(str(count) for count in counts if count is not None),
        str(row["verdict"] or row["occurrence"]).lower(),
        marks.get(row["reason"], row["reason"] or ""),
    )


# ---------------------------------------------------------------- traces

TRACE_COMPARISON_VERSION: Final = "kernalyse-trace-comparison/1"
NAME_COLUMNS: Final = {"kernel_comparison": "kernel_name", "layer_comparison": "layer"}
TRACE_NUMERIC_HEADINGS: Final = ("before", "after", "change", "of all change", "launches", "mean launch")
MEDIAN_HEADING: Final = "median launch"
"""Shown for kernels alone: a median over the different kernels of a layer says nothing."""

SHOWN_ROW_COUNT: Final = 20
"""Rows of each table on the terminal, the largest changes first: more bury them, fewer hide what explains the total. JSON has all."""

SCOPE_NOTE: Final = (
    "These are two recordings, one a side: they show where the time went in each, not that the next two would differ alike. "
    "Clocks, inputs and what else ran are in the difference; bench --paired decides whether a kernel became slower."
)


@dataclass(frozen=True, slots=True)
class TraceChange:
    """The comparison of two traces.

    Attributes:
        tables: kernel_comparison and layer_comparison, by name.
    """

    tables: Mapping[str, pl.DataFrame]

    @property
    def kernels(self) -> pl.DataFrame:
        """Return table kernel_comparison."""
        return self.tables["kernel_comparison"]

    @property
    def duration_ns(self) -> int:
        """Return the sum of the times of all kernels of the candidate."""
        return int(self.kernels["duration_sum_ns"].sum())

    @property
    def baseline_duration_ns(self) -> int:
        """Return the sum of the times of all kernels of the baseline."""
        return int(self.kernels["baseline_duration_sum_ns"].sum())

    @property
    def duration_ratio(self) -> float | None:
        """Return the candidate's time of all kernels over the baseline's, or None where either is zero."""
        return self.duration_ns / self.baseline_duration_ns if self.duration_ns and self.baseline_duration_ns else None

    def is_slower(self, threshold_ratio: float | None) -> bool:
        """Return whether all kernels together are slower by more than the threshold; None is no threshold."""
        ratio = self.duration_ratio
        return threshold_ratio is not None and ratio is not None and ratio > 1 + threshold_ratio


def change_rendering(change: TraceChange, threshold_ratio: float | None) -> Rendering:
    """Return the comparison for printing. The tables have the rows that changed most, the document has all."""
    tables = tuple(
        TextTable(
            _headings(name),
            tuple(_trace_cells(name, row) for row in rows.head(SHOWN_ROW_COUNT).iter_rows(named=True)),
            (*TRACE_NUMERIC_HEADINGS, MEDIAN_HEADING),
        )
        for name, rows in change.tables.items()
    )
    summary = tuple(change_lines(change, threshold_ratio))
    document = {
        "schema": TRACE_COMPARISON_VERSION,
        "fail_if_slower_ratio": threshold_ratio,
        "is_slower": change.is_slower(threshold_ratio),
        "duration_ratio": change.duration_ratio,
        "summary": summary,
        **{name: rows.to_dicts() for name, rows in change.tables.items()},
    }
    return Rendering(tables, summary, document)


def change_lines(change: TraceChange, threshold_ratio: float | None) -> Iterator[str]:
    """Yield the total times, how many kernels and layers were matched, and what two recordings can prove."""
    counts = (change.kernels[column].sum() for column in ("baseline_launch_count", "launch_count"))
    yield (
        f"All kernels: {duration(change.baseline_duration_ns)} before, {duration(change.duration_ns)} after "
        f"({ratio_change(change.duration_ratio)}), in {' and '.join(str(count) for count in counts)} launches."
    )
    for name, rows in change.tables.items():
        found = {occurrence: rows.filter(rows["occurrence"] == occurrence).height for occurrence in ("MATCHED", "NEW", "GONE")}
        by_form = rows.filter(rows["matched_by"] == "form").height
        loosely = f" ({by_form} by the form of their names)" if by_form else ""
        what = name.removesuffix("_comparison")
        yield f"{what.capitalize()}s: {found['MATCHED']} in both{loosely}, {found['NEW']} new, {found['GONE']} gone."
        if rows.height > SHOWN_ROW_COUNT:
            yield f"The {SHOWN_ROW_COUNT} {what}s that changed most are shown; --format json has all {rows.height}."
    if change.duration_ratio is None:
        yield "A side has no kernel time: nothing was compared."
    elif threshold_ratio is not None:
        verdict = "yes" if change.is_slower(threshold_ratio) else "no"
        yield f"All kernels together slower by more than {percentage(threshold_ratio)}: {verdict}."
    yield SCOPE_NOTE


def _headings(table_name: str) -> tuple[str, ...]:
    median = (MEDIAN_HEADING,) if table_name == "kernel_comparison" else ()
    return (table_name.removesuffix("_comparison"), *TRACE_NUMERIC_HEADINGS, *median, "")


def _trace_cells(table_name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    name: str | None = row[NAME_COLUMNS[table_name]]
    name_count = max(row["name_count"] or 0, row["baseline_name_count"] or 0)
    return (
        (UNKNOWN if name is None else shorten_name(name)) + (f" ({name_count} names)" if name_count > 1 else ""),
        duration(row["baseline_duration_sum_ns"]),
        duration(row["duration_sum_ns"]),
        _signed(row["duration_delta_ns"]),
        percentage(row["delta_share_ratio"]),
        " → ".join(UNKNOWN if count is None else str(count) for count in (row["baseline_launch_count"], row["launch_count"])),
        ratio_change(row["duration_per_launch_ratio"]),
        *((ratio_change(row["duration_median_ratio"]),) if "duration_median_ratio" in row else ()),
        "" if row["occurrence"] == "MATCHED" else row["occurrence"].lower(),
    )


def _signed(delta_ns: int) -> str:
    return f"{'+' if delta_ns > 0 else ''}{duration(delta_ns)}"
