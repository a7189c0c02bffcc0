"""Comparisons of two runs in words, for the terminal, for Markdown and for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from services.cli.terminal import Rendering, TextTable
from services.core.disturbance import disturbed_sides
from services.core.quantities import UNKNOWN, change, duration, percentage
from services.core.shared_reasons import notes, shared_reasons

if TYPE_CHECKING:
    import polars as pl

VERSION: Final = "kernalyse-comparison/1"
NUMERIC_HEADINGS: Final = ("before", "after", "change", "interval", "cycles", "processes")
HEADINGS: Final = ("configuration", *NUMERIC_HEADINGS, "verdict", "because")
VERDICTS: Final = ("SLOWER", "FASTER", "SAME", "UNDECIDED")  # worst news first


def too_slow(rows: pl.DataFrame, threshold_ratio: float) -> pl.DataFrame:
    """Return the rows of table comparison with the verdict SLOWER and a ratio over the threshold."""
    return rows.filter((rows["verdict"] == "SLOWER") & (rows["duration_ratio"] > 1 + threshold_ratio))


def comparison_rendering(rows: pl.DataFrame, threshold_ratio: float | None) -> Rendering:
    """Return the rows of table comparison for printing. Reasons that several rows share are notes below the table."""
    marks = shared_reasons(rows["reason"])
    cells = tuple(_cells(row, marks) for row in rows.iter_rows(named=True))
    summary = tuple(summary_lines(rows, threshold_ratio))
    document = {
        "schema": VERSION,
        "fail_if_slower_ratio": threshold_ratio,
        "is_slower": threshold_ratio is not None and not too_slow(rows, threshold_ratio).is_empty(),
        "summary": summary,
        "comparison": rows.to_dicts(),
    }
    return Rendering((TextTable(HEADINGS, cells, NUMERIC_HEADINGS, notes(marks)),), summary, document)


def summary_lines(rows: pl.DataFrame, threshold_ratio: float | None) -> Iterator[str]:
    """Yield how many configurations got which verdict, and whether CI is to fail."""
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
    yield from disturbed_sides(*(rows.drop_nulls(f"{side}duration_median_ns")[f"{side}disturbance"] for side in ("baseline_", "")))
    allowed = sorted({name for names in rows["allowed_differences"].drop_nulls() for name in names.split(",") if name})
    if allowed:
        yield f"The runs differ in {' and '.join(allowed)}, as allowed: the ratios tell of that too."


def _it(count: int) -> str:
    return "it is" if count == 1 else "they are"


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
