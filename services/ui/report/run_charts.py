"""Which charts a run has, of its tables: the same chart functions that the dashboard's pages draw with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import holoviews as hv
import polars as pl

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import roofline, strips, telemetry
from kernalyse.services.ui.charts.stacks import Stretch, stacked_bars
from kernalyse.services.ui.report.document import Chart, Key
from kernalyse.services.ui.report.history_charts import history_charts
from kernalyse.services.ui.report.layer_charts import layer_charts
from kernalyse.services.ui.report.pass_charts import pass_charts
from kernalyse.services.ui.report.performance_charts import performance_charts
from kernalyse.services.ui.report.timeline_charts import timeline_charts
from kernalyse.services.ui.sample_strips import NOTHING_DRAWN, SampleRows, SampleStrips
from kernalyse.services.ui.theme import CATEGORIES, LIGHT, SYMBOLS, style_of

Tables = Mapping[str, pl.DataFrame]
"""By their names; those without rows may be missing."""

MAX_STRIP_COUNT: Final = 24
"""Configurations in one chart of samples: the labels of more cannot be read on a page."""

MAX_BAR_COUNT: Final = 20
BREAKDOWN: Final = {
    "computing": (pl.col("compute_ns") - pl.col("overlap_ns"), LIGHT.series[0]),
    "computing and communicating": (pl.col("overlap_ns"), LIGHT.series[2]),
    "communicating": (pl.col("communication_ns") - pl.col("overlap_ns"), LIGHT.series[1]),
    "copying": (pl.col("memory_only_ns"), LIGHT.series[3]),
    "idle": (pl.col("idle_ns") - pl.col("memory_only_ns"), "#c9d1da"),
}
"""What a device did of its time, apart from each other; their sum is the span."""


def run_charts(tables: Tables) -> list[Chart]:
    """Those that the run has rows for."""
    return [
        *_rooflines(tables),
        *pass_charts(_rows(tables, "models")),
        *performance_charts(tables),
        *_kernels(tables),
        *layer_charts(tables),
        *timeline_charts(tables),
        *_breakdown(tables),
        *_gaps(tables),
        *_samples(tables),
        *history_charts(_rows(tables, "history")),
        *_telemetry(tables),
    ]


def _rows(tables: Tables, name: str) -> pl.DataFrame:
    """No rows and no columns where there is no such table."""
    return tables.get(name, pl.DataFrame())


# ---------------------------------------------------------------- roofline


def _rooflines(tables: Tables) -> Iterator[Chart]:
    for name, title in (("roofline", "Roofline"), ("layer_roofline", "Roofline of layers")):
        rows = _rows(tables, name)
        if not rows.is_empty():
            newest = roofline.newest_rows(rows)
            if not roofline.drawable(newest).is_empty():
                yield roofline_of(newest, _rows(tables, "ceilings"), title)


def roofline_of(rows: pl.DataFrame, ceilings: pl.DataFrame, title: str, color_by: str = "category") -> Chart:
    """rows: newest ones of table roofline. color_by: category or run_id."""
    drawn = roofline.drawable(rows)
    present = drawn[color_by].drop_nulls().unique(maintain_order=True).to_list()
    values = CATEGORIES if color_by == "category" else tuple(present)
    points = roofline.point_columns(rows, LIGHT, color_by, values)
    shown = roofline.shown_ceilings(ceilings, tuple(sorted(set(points["dtype"].tolist()) - {""})))
    span = roofline.span_of(points, shown)
    element = roofline.roofline_chart(points, roofline.ceiling_columns(shown, span, LIGHT), span, LIGHT, 460)
    styles = [(value, style_of(value, values, LIGHT)) for value in (*values, *sorted(set(present) - set(values))) if value in present]
    key = [Key(value, style.color, SYMBOLS[style.marker]) for value, style in styles]
    notes = [f"Ridge of {name}: {theme.intensity(value)}." for name, value in roofline.ridges(shown)]
    missing_count = rows.height - drawn.height
    if missing_count:
        notes.append(f"{missing_count} without a flop count cannot be placed here.")
    notes.append(roofline.over_ceiling_note(rows))
    return Chart(title, element, "wide", " ".join(note for note in notes if note), key)


# ---------------------------------------------------------------- time


def _kernels(tables: Tables) -> Iterator[Chart]:
    rows = _rows(tables, "kernels")
    if rows.is_empty():
        return
    launched = rows.filter(pl.col("duration_sum_ns") > 0).sort("duration_sum_ns", descending=True)
    if launched.height:
        texts = [
            f"{row['kernel_name']}: {theme.duration(row['duration_sum_ns'])}, {theme.percent(row['share_ratio'])}, "
            f"{theme.count(row['launch_count'])} launches"
            for row in launched.head(MAX_BAR_COUNT).iter_rows(named=True)
        ]
        yield ranking("Kernels by time", launched, "kernel_name", texts, "device time of all launches")


def ranking(title: str, rows: pl.DataFrame, name: str, texts: Sequence[str], label: str) -> Chart:
    """The longest, by column duration_sum_ns. texts: of those that are shown, for hovering."""
    shown = rows.head(MAX_BAR_COUNT)
    stacks = [[Stretch(float(value), LIGHT.series[0], text)] for value, text in zip(shown["duration_sum_ns"], texts, strict=True)]
    rest = rows.height - shown.height
    note = f"The {shown.height} that take longest, of {theme.count(rows.height)}." if rest else ""
    return Chart(title, stacked_bars(shown[name].to_list(), stacks, label, LIGHT, theme.DURATION_TICKS), "wide", note)


def _breakdown(tables: Tables) -> Iterator[Chart]:
    rows = _rows(tables, "breakdown")
    if rows.is_empty():
        return
    parts = rows.select(
        "process_id", "device_index", "device_name", "span_ns", **{name: part.fill_null(0) for name, (part, _) in BREAKDOWN.items()}
    ).head(MAX_BAR_COUNT)
    names, stacks = [], []
    is_of_several = parts["process_id"].n_unique() > 1
    for row in parts.iter_rows(named=True):
        process = f"process {row['process_id']}, " if is_of_several else ""
        names.append(f"{process}device {row['device_index']} {row['device_name'] or ''}".rstrip())
        stacks.append(
            [
                Stretch(float(row[name]), color, f"{names[-1]}: {name} {theme.duration(row[name])}, {theme.percent(_share(row, name))}")
                for name, (_, color) in BREAKDOWN.items()
            ]
        )
    present = [name for name in BREAKDOWN if (parts[name] > 0).any()]
    key = [Key(name, BREAKDOWN[name][1]) for name in present]
    note = "Of each device from the start of its first work to the end of its last."
    yield Chart("What the devices did", stacked_bars(names, stacks, "time", LIGHT, theme.DURATION_TICKS), "wide", note, key)


def _share(row: Mapping[str, Any], name: str) -> float | None:
    return row[name] / row["span_ns"] if row["span_ns"] else None


def _gaps(tables: Tables) -> Iterator[Chart]:
    rows = _rows(tables, "gap_reasons")
    if rows.is_empty():
        return
    reasons = rows.group_by("reason").agg(pl.col("duration_sum_ns", "gap_count").sum()).sort("duration_sum_ns", descending=True)
    reasons = reasons.filter(pl.col("duration_sum_ns") > 0).with_columns(pl.col("reason").fill_null("not known"))
    if reasons.height:
        texts = [
            f"{row['reason']}: {theme.duration(row['duration_sum_ns'])} in {theme.count(row['gap_count'])} gaps"
            for row in reasons.head(MAX_BAR_COUNT).iter_rows(named=True)
        ]
        yield ranking("Why the devices were idle", reasons, "reason", texts, "idle time, all devices")


# ---------------------------------------------------------------- samples and telemetry


def _samples(tables: Tables) -> Iterator[Chart]:
    """A chart for the first configurations alone says so: a sweep may have thousands."""
    measurements, samples = _rows(tables, "measurements"), _rows(tables, "samples")
    if measurements.is_empty() or samples.is_empty():
        return
    shown = measurements.unique("configuration_index", keep="last").sort("configuration_index").head(MAX_STRIP_COUNT)
    places = shown.select("configuration_index", place=pl.int_range(pl.len(), dtype=pl.Int64))
    placed = samples.join(places, on="configuration_index", maintain_order="left").sort("place", maintain_order=True)
    if placed.is_empty():
        return
    drawn = _strips(placed.with_columns(configuration_index=pl.col("place")), shown.height)
    columns = strips.sample_columns(drawn, strips.configuration_colors(shown["category"].to_list(), LIGHT))
    marks = shown.with_columns(configuration_index=pl.int_range(pl.len(), dtype=pl.Int64))
    medians, intervals = strips.median_columns(marks), strips.interval_columns(marks)
    element = strips.strip_chart(columns, strips.no_samples(), medians, intervals, LIGHT).opts(
        hv.opts.Overlay(
            xlim=(-0.5, shown.height - 0.5),
            ylim=strips.duration_range(columns) or strips.EMPTY_RANGE_NS,
            xticks=[*strips.tick_labels(shown["label"].to_list(), limit=MAX_STRIP_COUNT).items()],
            xrotation=45 if shown.height > 6 else 0,
        )
    )
    rest = measurements["configuration_index"].n_unique() - shown.height
    note = f"The first {shown.height} configurations, of {theme.count(shown.height + rest)}. " if rest else ""
    disturbed = disturbance_note(measurements["disturbance"])
    yield Chart("Samples", element, "wide", f"{note}Lines are medians, boxes their 95 % intervals. {disturbed}".rstrip())


def _strips(samples: pl.DataFrame, configuration_count: int) -> SampleRows:
    """Thinned as on the page."""
    found = SampleStrips()
    found.add(samples)
    found.finish(range(configuration_count), configuration_count)
    change, _ = found.finished.since(NOTHING_DRAWN)
    return SampleRows.none() if change is None else change.rows


def _telemetry(tables: Tables) -> Iterator[Chart]:
    rows = _rows(tables, "telemetry")
    if rows.is_empty():
        return
    lines = {line: telemetry.line_columns(rows, line) for line in telemetry.LINES}
    if telemetry.time_range(lines) is None:
        return
    key = [Key(telemetry.TITLES[line], telemetry.line_color(line, LIGHT), "▬") for line in telemetry.LINES if len(lines[line]["time"])]
    note = f"The last {telemetry.SHOWN_S:g} s of the run at most; times are UTC where this is printed."
    yield Chart("Telemetry", telemetry.telemetry_chart(lines, LIGHT, 240), "wide", note, key)
