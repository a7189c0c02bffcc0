"""Contents of a report, section by section: a run's tables in plain words, every value with its unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import polars as pl

from kernalyse.services.analyzer.tables.runs import TABLES
from kernalyse.services.core.disturbance import comparison_disturbance_notes, disturbance_note
from kernalyse.services.core.formatting import (
    ceiling_rate,
    duration,
    footnote_lines,
    footnote_marks,
    operation_rate,
    percentage,
    rate,
    size,
)
from kernalyse.services.core.ml_models import layers_note
from kernalyse.services.core.model import CommandProfile, Device, ImportedTrace, KernelSweep, ModelRun, Run
from kernalyse.services.core.report import UNKNOWN, Report, Section

MAX_ROW_COUNT: Final = 25
"""Most rows of a section. The most important ones are at the top; the rest is in the table."""

OPPORTUNITIES: Final = "opportunities"

METHOD_COLUMNS: Final = {
    "Backend": "backend",
    "Timed by": "timing_method",
    "Cache": "cache_mode",
    "Stopped by": "stopping_criterion",
    "Driver": "driver_version",
    "Toolkit": "toolkit_version",
    "Compiler options": "compiler_options",
}
"""Headings, with their columns, of properties that all measurements of a run mostly share."""

SENTENCE_COLUMNS: Final = ("reason", "message", "note", "implausible_reason")
"""Columns with explanations in sentences; they come last, where they have room."""

MAX_VALUE_COUNT: Final = 4

TableLookup = Callable[[str], pl.DataFrame]


def build_report(run: Run, table_of: TableLookup, device: Device | None = None) -> Report:
    """Return the report of a run, with the sections that have contents.

    Args:
        table_of: returns a table of this run by its name.
        device: of the run, as its node describes it.
    """
    measurements = table_of("measurements")
    sections = (
        Section(
            "Run", facts=run_facts(run, device_text(device) if device else recorded_devices_text(table_of("trace_devices"), measurements))
        ),
        _method(measurements),
        _passes(run, table_of),
        *_trace_sections(run, table_of),
        *_sweep_sections(run, table_of),
        *_remarks(run),
    )
    return Report(f"Report of {run.title}", tuple(section for section in sections if section is not None))


# ---------------------------------------------------------------- the run


def run_facts(run: Run, devices: str) -> tuple[tuple[str, str], ...]:
    """Return names and values of the facts that identify a run. devices: in words, empty where no name is known."""
    facts = [
        ("Run", run.run_id),
        ("Source", _source(run)),
        ("Device", devices or run.device_id or UNKNOWN),
        ("State", run.state.value.lower()),
        ("Started", _moment(run.start_time)),
        ("Ended", _moment(run.end_time)),
    ]
    if run.error is not None:
        facts.append(("Error", run.error.message))
    if run.spec.revision is not None:
        facts.append(("Commit", f"{run.spec.revision.commit}{', with changes' if run.spec.revision.is_dirty else ''}"))
    if run.tags:
        facts.append(("Tags", ", ".join(run.tags)))
    return tuple(facts)


def device_text(device: Device) -> str:
    """Return a device in words, as its node describes it."""
    driver = f"driver {device.driver_version}" if device.driver_version else ""
    return ", ".join(part for part in (device.name, device.device_id, device.runtime, driver) if part)


def recorded_devices_text(traced: pl.DataFrame, measurements: pl.DataFrame) -> str:
    """Return the devices of a recording, or of results of another tool, in words. traced: table trace_devices."""
    counts = traced.group_by("device_name", maintain_order=True).len().rows()
    if not counts:
        return _values(measurements, "device_id", as_written=True)
    return ", ".join(
        f"{count} without a name" if name is None else name if count == 1 else f"{count} × {name}"
        for name, count in sorted(counts, key=lambda entry: entry[0] is None)
    )


def _source(run: Run) -> str:
    match run.spec.work:
        case ImportedTrace(file_name, _, reader_format):
            return f"imported from {file_name}, read as {reader_format}"
        case KernelSweep():
            return f"measured on node {run.node_name}"
        case CommandProfile(arguments, collector):
            return f"{collector or 'a collector'} around {' '.join(arguments)} on node {run.node_name}"
        case ModelRun(model_name):
            return f"model {model_name} on node {run.node_name}"
        case _:
            return f"ceilings measured on node {run.node_name}"


def _moment(time: datetime | None) -> str:
    return UNKNOWN if time is None else f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _method(measurements: pl.DataFrame) -> Section | None:
    """Return the section on how all measurements of the run were made."""
    if measurements.is_empty():
        return None
    facts_found = [(name, _values(measurements, column)) for name, column in METHOD_COLUMNS.items()]
    samples = measurements["sample_count"].sum()
    if samples:
        facts_found.append(
            ("Samples", f"{samples:,}, {measurements['discarded_sample_count'].sum():,} discarded while the clock was throttled")
        )
    facts_found.append(("Disturbed", disturbance_note(measurements["disturbance"])))
    facts = tuple((name, value) for name, value in facts_found if value)
    return Section("Method", facts=facts) if facts else None


def _values(frame: pl.DataFrame, column: str, *, as_written: bool = False) -> str:
    values = frame[column].drop_nulls().cast(pl.String).replace("", None).drop_nulls().unique(maintain_order=True).to_list()
    return ", ".join(value.lower() if value.isupper() and not as_written else value for value in values[:MAX_VALUE_COUNT]) + (
        f" and {len(values) - MAX_VALUE_COUNT} more" if len(values) > MAX_VALUE_COUNT else ""
    )


def _passes(run: Run, table_of: TableLookup) -> Section | None:
    return table_section(
        "Passes of the model",
        table_of("models"),
        {
            "model": "model_name",
            "variant": "variant",
            "batch": "batch_size",
            "sequence": "sequence_length",
            "median": "duration_median_ns",
            "p95": "duration_p95_ns",
            "p99": "duration_p99_ns",
            "tokens/s": "tokens_per_s",
            "flop rate": "achieved_flop_per_s",
            "efficiency": "efficiency_ratio",
            "bound": "bound",
            "disturbed by": "disturbance",
        },
        "Whole passes. Tokens/s, flop rate and efficiency are those of the median; efficiency is of the roofline, all launches together.",
        more=f"kernalyse show {run.run_id} models",
    )


def _sums_of_layers(run: Run, table_of: TableLookup) -> Iterator[str]:
    """Yield how the sum of the layers of each variant of a model compares to its complete pass."""
    if isinstance(run.spec.work, ModelRun):
        for row in table_of("models").iter_rows(named=True):
            note = layers_note(run.spec.work, row["launches_duration_sum_ns"], row["duration_median_ns"])
            yield f"{row['variant']}: {note}" if row["variant"] and note else note


def _remarks(run: Run) -> Iterator[Section]:
    lines = tuple(line for line in run.notes.splitlines() if line.strip())
    if lines:
        yield Section("Notes", sentences=lines)


# ---------------------------------------------------------------- traces


def _trace_sections(run: Run, table_of: TableLookup) -> Iterator[Section | None]:
    yield table_section(
        "Devices",
        table_of("breakdown"),
        {
            "device": "device_index",
            "name": "device_name",
            "process": "process_id",
            "span": "span_ns",
            "busy": "busy_ns",
            "idle": "idle_ns",
            "computing": "compute_ns",
            "communicating": "communication_ns",
            "both": "overlap_ns",
            "copying": "memory_ns",
            "kernels": "launch_count",
        },
        "Of each device from the start of its first work to the end of its last. Busy: at least one kernel ran.",
    )
    launched = table_of("kernels").filter(pl.col("launch_count").is_not_null())
    yield table_section(
        "Kernels by device time",
        launched.with_columns(duration_mean_ns=pl.col("duration_sum_ns") / pl.col("launch_count")),
        {
            "kernel": "kernel_name",
            "launches": "launch_count",
            "time": "duration_sum_ns",
            "share": "share_ratio",
            "mean": "duration_mean_ns",
            "shortest": "duration_min_ns",
            "median": "duration_median_ns",
            "longest": "duration_max_ns",
        },
        "Times are of the recording, exact to the nanosecond; shares are of the device time of all kernels.",
        more=f"kernalyse show {run.run_id} kernels",
    )
    yield table_section(
        "Layers by device time",
        table_of("layers").with_columns(pl.col("layer").fill_null("(outside of every one)")),
        {
            "layer": "layer",
            "calls": "call_count",
            "kernels": "launch_count",
            "time": "duration_sum_ns",
            "share": "share_ratio",
            "flop rate": "achieved_flop_per_s",
            "efficiency": "efficiency_ratio",
            "bound": "bound",
            "work by": "work_source",
            "told by": "source",
            "disturbed by": "disturbance",
        },
        " ".join(("Kernels summed by the innermost range or module that launched them.", *_sums_of_layers(run, table_of))),
        more=f"kernalyse show {run.run_id} layers",
    )
    if any(table.table_name == OPPORTUNITIES for table in TABLES):
        frame = table_of(OPPORTUNITIES)
        columns = {
            "what": "subject",
            "kind": "subject_kind",
            "variant": "variant",
            "could be saved": "lost_ns",
            "time": "duration_sum_ns",
            "share": "share_ratio",
            "efficiency": "efficiency_ratio",
            "bound": "bound",
            "kernels": "launch_count",
            "why": "reason",
        }
        yield table_section("What to look at first", frame, columns, "Time that a kernel at its roof would not take.")


# ---------------------------------------------------------------- sweeps, and results of other tools


def _sweep_sections(run: Run, table_of: TableLookup) -> Iterator[Section | None]:
    roofline = table_of("roofline").with_columns(duration_ns=pl.coalesce("duration_median_ns", "duration_mean_ns"))
    failures = table_of("failures")
    yield from _outcome(roofline, failures)
    best = table_of("best").filter(pl.col("candidate_count") > 1)
    yield table_section(
        "Best of each problem",
        best,
        {
            "configuration": "label",
            "median": "duration_median_ns",
            "candidates": "candidate_count",
            "runner-up": "runner_up_label",
            "ahead": "margin_ratio",
            "real": "is_real",
            "because": "reason",
        },
        "Configurations compete when they do the same work on the same device. Real: more than noise and drift.",
        more=f"kernalyse show {run.run_id} best",
    )
    yield table_section(
        "Roofline",
        roofline.sort("efficiency_ratio", descending=True, nulls_last=True, maintain_order=True),
        {
            "configuration": "label",
            "time": "duration_ns",
            "intensity": "intensity_flop_per_byte",
            "flop rate": "achieved_flop_per_s",
            "byte rate": "achieved_bytes_per_s",
            "attainable": "attainable_flop_per_s",
            "efficiency": "efficiency_ratio",
            "category": "efficiency_category",
            "ceilings": "ceiling_source",
            "work by": "work_source",
            "disturbed by": "disturbance",
        },
        "Efficiency: achieved over what is attainable at that intensity. Time: the median, else the mean.",
        more=f"kernalyse show {run.run_id} roofline",
    )
    yield _ceilings_section(table_of("ceilings"))
    yield table_section(
        "Not measured",
        failures,
        {"configuration": "label", "reason": "reason", "message": "message"},
        more=f"kernalyse show {run.run_id} failures",
    )
    yield table_section(
        "Wrong or impossible results",
        roofline.filter((pl.col("verification_state") == "FAILED").fill_null(False) | pl.col("is_implausible").fill_null(False)),
        {"configuration": "label", "against the reference": "verification_state", "impossible because": "implausible_reason"},
        "Compare none of these with others.",
        more=f"kernalyse show {run.run_id} roofline",
    )


def _outcome(roofline: pl.DataFrame, failures: pl.DataFrame) -> Iterator[Section]:
    if roofline.is_empty() and failures.is_empty():
        return
    counts = roofline.drop_nulls("efficiency_category").group_by("efficiency_category").len().sort("len", descending=True)
    counts_text = [f"{count} {category}" for category, count in counts.iter_rows()]
    uncategorized = roofline["efficiency_category"].null_count()
    counts_text += [f"{uncategorized} {UNKNOWN}"] if uncategorized and counts_text else []
    yield Section(
        "Outcome",
        sentences=(
            f"{roofline.height} configurations measured, {failures.height} not.",
            *([f"Against the roofline: {', '.join(counts_text)}."] if counts_text else []),
        ),
    )


def _ceilings_section(ceilings: pl.DataFrame) -> Section | None:
    ceilings = ceilings.unique(("device_id", "ceiling_name", "path", "source"), keep="last", maintain_order=True)
    values = [ceiling_rate(row["value"], row["unit"], row["ceiling_name"]) for row in ceilings.iter_rows(named=True)]
    columns = {"device": "device_id", "ceiling": "ceiling_name", "path": "path", "value": "value", "source": "source", "from": "note"}
    columns["host busy"] = "host_busy_ratio"
    return table_section(
        "Ceilings",
        ceilings.with_columns(value=pl.Series(values, dtype=pl.String)),
        columns,
        "What the device can do at most, by source.",
    )


# ---------------------------------------------------------------- tables


def table_section(title: str, frame: pl.DataFrame, columns: Mapping[str, str], sentence: str = "", more: str = "") -> Section | None:
    """Return a section with the first rows of a frame; None if it has none.

    Columns without values are left out, and sentences that several rows share become notes.

    Args:
        title: of the section.
        frame: of the rows.
        columns: column names by heading; those that the frame lacks are left out.
        sentence: shown above the rows.
        more: command that shows the rest.
    """
    if frame.is_empty():
        return None
    first = frame.head(MAX_ROW_COUNT)
    shown = {
        heading: column
        for position, (heading, column) in enumerate(columns.items())
        if column in frame.columns and (position == 0 or first[column].null_count() < first.height)
    }
    rest = frame.height - MAX_ROW_COUNT
    rows = [list(_cells(row, tuple(shown.values()))) for row in first.iter_rows(named=True)]
    marks = {}
    if rows and list(shown.values())[-1] in SENTENCE_COLUMNS:
        marks = footnote_marks(cells[-1] for cells in rows)
        for cells in rows:
            cells[-1] = marks.get(cells[-1], cells[-1])
    return Section(
        title,
        sentences=(sentence,) if sentence else (),
        headings=tuple(shown),
        is_numeric=tuple(frame[column].dtype.is_numeric() for column in shown.values()),
        rows=tuple(map(tuple, rows)),
        footnotes=(*footnote_lines(marks), *([f"And {rest} more{f': {more}' if more else ''}."] if rest > 0 else [])),
    )


def _cells(row: dict[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell(column, row[column], row.get("dtype")) for column in columns)


def cell(column: str, value: Any, dtype: str | None = None) -> str:
    """Return a value with the unit that its column names. dtype: of the kernel, as operations on integers are no flop."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if column.endswith("_flop_per_s"):
        return operation_rate(value, dtype)
    for suffix, written in CELL_FORMATS.items():
        if column.endswith(suffix):
            return written(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


CELL_FORMATS: Final[Mapping[str, Callable[[float], str]]] = {
    "_bytes_per_s": lambda value: rate(value, "B/s"),
    "_flop_per_byte": lambda value: f"{value:.4g} flop/B",
    "_ns": duration,
    "_ratio": percentage,
    "_bytes": size,
    "_hz": lambda value: rate(value, "Hz"),
}
"""Formats by suffix of the column name; a longer suffix comes before one that it ends with."""


# ---------------------------------------------------------------- comparisons

RATIO_COLUMNS: Final = ("duration_ratio", "duration_ratio_low", "duration_ratio_high")
TRACE_COMPARISON_NOTE: Final = (
    "Two recordings, one a side: they show where the time went in each, not that the next two would differ alike; "
    "bench --paired decides whether a kernel became slower."
)


def comparison_report(run: Run, baseline: Run, table_of: TableLookup, device_of: Callable[[Run], Device | None]) -> Report:
    """Return the report of a run compared with a baseline.

    Args:
        run: the candidate.
        baseline: the run that it is compared with.
        table_of: returns tables of both runs by name: comparison, or kernel_comparison and layer_comparison.
        device_of: returns the device of a run, as its node describes it; None: no node has.
    """
    sections = (
        *(_side(name, side, table_of, device_of(side)) for name, side in (("Baseline", baseline), ("Candidate", run))),
        *(_compared_trace_sections(table_of) if run.is_trace and baseline.is_trace else _compared_sweep_sections(table_of)),
    )
    return Report(comparison_title(run, baseline), tuple(section for section in sections if section is not None))


def _side(name: str, run: Run, table_of: TableLookup, device: Device | None) -> Section:
    recorded = (table_of(table_name).filter(run_id=run.run_id) for table_name in ("trace_devices", "measurements"))
    devices = recorded_devices_text(*recorded) if device is None else device_text(device)
    return Section(name, facts=tuple((f"{name} {fact.lower()}", value) for fact, value in run_facts(run, devices)))


def comparison_title(run: Run, baseline: Run) -> str:
    """Return the title of a comparison, with run_ids where the titles are equal."""
    if run.title == baseline.title:
        return f"{run.title}: {run.run_id} against {baseline.run_id}"
    return f"{run.title} against {baseline.title}"


def _compared_sweep_sections(table_of: TableLookup) -> Iterator[Section | None]:
    rows = table_of("comparison")
    verdicts = rows.drop_nulls("verdict").group_by("verdict").len().sort("len", "verdict", descending=[True, False])
    alone = {name: (rows["occurrence"] == name).sum() for name in ("NEW", "GONE")}
    counts_text = [f"{count} {verdict.lower()}" for verdict, count in verdicts.iter_rows()]
    unmatched = (("candidate", alone["NEW"]), ("baseline", alone["GONE"]))
    counts_text += [f"{count} only in the {side} run" for side, count in unmatched if count]
    disturbed = comparison_disturbance_notes(
        *(rows.drop_nulls(f"{side}duration_median_ns")[f"{side}disturbance"] for side in ("baseline_", ""))
    )
    yield Section("Outcome", sentences=(f"{rows.height} configurations: {', '.join(counts_text) or 'none in both runs'}.", *disturbed))
    marks = footnote_marks(rows["reason"])
    configurations = table_section(
        "Configurations",
        rows.sort("duration_ratio", descending=True, nulls_last=True).with_columns(
            pl.col("verdict").str.to_lowercase(), pl.col("reason").replace(marks), *(_times(name) for name in RATIO_COLUMNS)
        ),
        {
            "configuration": "label",
            "before": "baseline_duration_median_ns",
            "after": "duration_median_ns",
            "time ratio": "duration_ratio",
            "lowest": "duration_ratio_low",
            "highest": "duration_ratio_high",
            "verdict": "verdict",
            "because": "reason",
        },
        "Time after over time before, with the ends of its interval: below 1 the candidate is faster.",
    )
    yield configurations and replace(configurations, footnotes=(*configurations.footnotes, *footnote_lines(marks)))


def _times(ratio: str) -> pl.Expr:
    """Return an expression that formats a ratio: 1.234 as "×1.234"."""
    return pl.when(pl.col(ratio).is_not_null()).then(pl.format("×{}", pl.col(ratio).round_sig_figs(4))).alias(ratio)


def _compared_trace_sections(table_of: TableLookup) -> Iterator[Section | None]:
    yield Section("What this proves", sentences=(TRACE_COMPARISON_NOTE,))
    for table_name, heading, name in (("kernel_comparison", "kernel", "kernel_name"), ("layer_comparison", "layer", "layer")):
        yield table_section(
            f"{heading.capitalize()}s by change of device time",
            table_of(table_name).with_columns(pl.col(name).fill_null("(outside of every one)")),
            {
                heading: name,
                "before": "baseline_duration_sum_ns",
                "after": "duration_sum_ns",
                "change": "duration_delta_ns",
                "of all change": "delta_share_ratio",
                "launches before": "baseline_launch_count",
                "launches": "launch_count",
                "occurs": "occurrence",
            },
        )
