"""A comparison of two runs as a table, as Markdown, as JSON, and in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from services.cli.terminal import FittedTable, markdown_table
from services.core.quantities import UNKNOWN, change, duration, percentage
from services.core.shared_reasons import notes, shared_reasons

if TYPE_CHECKING:
    import polars as pl

VERSION: Final = "kernalyse-comparison/1"
NUMERIC_HEADINGS: Final = ("before", "after", "change", "interval", "cycles", "processes")
HEADINGS: Final = ("configuration", *NUMERIC_HEADINGS, "verdict", "because")
VERDICTS: Final = ("SLOWER", "FASTER", "SAME", "UNDECIDED")  # worst news first


def too_slow(rows: pl.DataFrame, threshold_ratio: float) -> pl.DataFrame:
    """Rows of table comparison with the verdict SLOWER and a ratio over the threshold."""
    return rows.filter((rows["verdict"] == "SLOWER") & (rows["duration_ratio"] > 1 + threshold_ratio))


def verdict_table(rows: pl.DataFrame) -> FittedTable:
    """Input: table comparison. Reasons that several rows share are `reason_notes`."""
    return FittedTable(HEADINGS, _rows_of_cells(rows), numeric=NUMERIC_HEADINGS)


def reason_notes(rows: pl.DataFrame) -> tuple[str, ...]:
    """Lines to stand below the table."""
    return notes(shared_reasons(rows["reason"]))


def as_markdown(rows: pl.DataFrame, threshold_ratio: float | None) -> str:
    """What was found in words, then the table and its notes."""
    lines = [f"- {line}" for line in summary_lines(rows, threshold_ratio)]
    table = markdown_table(HEADINGS, NUMERIC_HEADINGS, _rows_of_cells(rows))
    below = [line for note in reason_notes(rows) for line in ("", note)]
    return "\n".join((*lines, "", *table, *below)) + "\n"


def as_json(rows: pl.DataFrame, threshold_ratio: float | None) -> str:
    """One object; `comparison` has the rows of that table."""
    document = {
        "schema": VERSION,
        "fail_if_slower_ratio": threshold_ratio,
        "is_slower": threshold_ratio is not None and not too_slow(rows, threshold_ratio).is_empty(),
        "summary": list(summary_lines(rows, threshold_ratio)),
        "comparison": rows.to_dicts(),
    }
    return json.dumps(document, indent=1) + "\n"


def summary_lines(rows: pl.DataFrame, threshold_ratio: float | None) -> Iterator[str]:
    """How many of what, and whether CI is to fail."""
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
        yield f"Undecided says neither that {_it(counts['UNDECIDED'])} the same nor that {_it(counts['UNDECIDED'])} not."
    if threshold_ratio is not None and matched_count:
        slow = too_slow(rows, threshold_ratio)
        known = f"Slower by more than {percentage(threshold_ratio)}"
        yield f"{known}: {', '.join(slow['label'])}." if not slow.is_empty() else f"{known}: none that is known to be."
    allowed = sorted({name for names in rows["allowed_differences"].drop_nulls() for name in names.split(",") if name})
    if allowed:
        yield f"The runs differ in {' and '.join(allowed)}, as allowed: the ratios tell of that too."


def _it(count: int) -> str:
    return "it is" if count == 1 else "they are"


def _rows_of_cells(rows: pl.DataFrame) -> Iterator[tuple[str, ...]]:
    marks = shared_reasons(rows["reason"])
    return (_cells(row, marks) for row in rows.iter_rows(named=True))


def _cells(row: dict[str, Any], marks: Mapping[str, str]) -> tuple[str, ...]:
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
