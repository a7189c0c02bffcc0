"""Which charts a run has, of its tables: the same chart functions that the dashboard's pages draw with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import holoviews as hv
import polars as pl

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.core.ml_models import layers_note
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import heatmap, history, icicle, layers, roofline, split, strips, telemetry, timeline
from kernalyse.services.ui.charts.elements import elided, tick_formatter
from kernalyse.services.ui.charts.layers import Stretch, stacked_bars
from kernalyse.services.ui.charts.metrics import (
    ANNOUNCED,
    FAILED,
    LAUNCHED,
    METRICS,
    PLACED,
    Metric,
    MetricName,
    axis_values,
    performance_rows,
)
from kernalyse.services.ui.charts.models import COLUMNS, PERCENTILES, Bar, Passes, bar_chart, line_chart, passes_of
from kernalyse.services.ui.charts.timeline_rows import CATEGORIES as EVENT_CATEGORIES
from kernalyse.services.ui.charts.timeline_rows import (
    CATEGORY_TITLES,
    LANE,
    Looks,
    TimelineRows,
    category_code,
    gap_columns,
    legend_entries,
    timeline_rows,
)
from kernalyse.services.ui.data.sample_strips import NOTHING_DRAWN, SampleRows, SampleStrips
from kernalyse.services.ui.data.timeline_questions import OUTLINE_PIXEL_COUNT, Outline, TimeWindow
from kernalyse.services.ui.report.document import Chart, Key
from kernalyse.services.ui.theme import CATEGORIES, LIGHT, MARKERS, SYMBOLS, style_of, values_with

METRIC: Final = "duration_median_ns"
MAX_TITLE_LENGTH: Final = 60
MAX_TICK_COUNT: Final = 12
MIN_JUDGED_RUNS: Final = 6  # the analyzer's
JUDGED: Final = "Dashed: levels, with the band that 95 % of such runs lie in."
NOT_JUDGED: Final = "Dashed: the mean. Fewer than six runs cannot tell noise from a change."


def history_charts(rows: pl.DataFrame) -> Iterator[Chart]:
    """A chart for each series. rows: of table history, series after series, each oldest first; none where nothing has a history."""
    if rows.is_empty():
        return
    parts = rows.partition_by("series", maintain_order=True)
    for number, part in enumerate(parts):
        points, whiskers = history.point_columns(part, METRIC, "runs", LIGHT), history.whisker_columns(part, "runs")
        bands, levels = history.level_columns(part, "runs")
        x, y = history.span_of(points, whiskers, bands, "runs")
        names = history.run_names(part)
        step = math.ceil(len(names) / MAX_TICK_COUNT)
        shown = {"bands": bands, "levels": levels, "whiskers": whiskers, "runs": points}
        element = history.history_chart(LIGHT, shown, 300).opts(
            hv.opts.Overlay(
                xlim=x,
                ylim=y,
                xlabel="Runs up to this one, by commit",
                xticks=[(place, name) for place, name in names.items() if (len(names) - 1 - place) % step == 0],
                xformatter=tick_formatter(theme.PLAIN_TICKS),
            )
        )
        note = _history_note(part, len(parts) if number == 0 else 1)
        yield Chart(f"History of {elided(part['label'][0], MAX_TITLE_LENGTH)}", element, "wide", note)


def _history_note(part: pl.DataFrame, chart_count: int) -> str:
    """chart_count: that it speaks for."""
    notes = [JUDGED if part.height >= MIN_JUDGED_RUNS else NOT_JUDGED]
    changes = part.filter(pl.col("verdict").is_not_null())
    if changes.height:
        notes.append("▼ a regression, ▲ an improvement; hollow: not confirmed yet.")
        notes.append(f"The last: {changes['reason'][-1]}")
    notes += [note] if (note := disturbance_note(part["disturbance"])) else []
    if chart_count > 1:
        notes.append(f"Of what earlier runs have too, these {chart_count} changed most of late, or else take longest.")
    return " ".join(notes)


ICICLE_PX: Final = 800.0
"""Wide that names are made to fit into: of a printed page, where letters are wider than in a browser."""

LEVEL_PX: Final = 34
TREE_AXIS_PX: Final = 80
MAX_VARIANT_COUNT: Final = 4


def layer_charts(tables: Mapping[str, pl.DataFrame]) -> Iterator[Chart]:
    """tables: by their names, of which layer_tree and layers may be missing."""
    yield from _icicles(tables.get("layer_tree", pl.DataFrame()))
    yield from _kinds(tables.get("layers", pl.DataFrame()))


def _icicles(tree: pl.DataFrame) -> Iterator[Chart]:
    if tree.is_empty():
        return
    variants = tree["variant"].unique(maintain_order=True).to_list()[:MAX_VARIANT_COUNT]
    for variant in variants:
        rows = tree.filter(pl.col("variant").eq_missing(pl.lit(variant)))
        drawn = icicle.icicle(rows, "", "efficiency", LIGHT, ICICLE_PX)
        if drawn.placed.is_empty():
            continue
        element = icicle.icicle_chart(drawn.boxes, drawn.names, LIGHT, TREE_AXIS_PX + LEVEL_PX * drawn.level_count).opts(
            hv.opts.Overlay(xlim=(0, drawn.span_ns), ylim=(-float(drawn.level_count), 0))
        )
        key = [Key(name, color) for name, color in icicle.legend_of(rows, "efficiency", LIGHT)]
        title = "Layers" if variant is None or len(variants) == 1 else f"Layers, {variant}"
        all_ns = rows.filter(pl.col("parent_path").is_null())["duration_sum_ns"].sum()
        notes = (
            "As wide as their time, inside of those around them; colours tell how near to the roof.",
            layers_note(None, all_ns, rows["pass_duration_median_ns"].max()),  # type: ignore[arg-type]
            disturbance_note(rows["disturbance"]),
        )
        yield Chart(title, element, "wide", " ".join(note for note in notes if note), key)


def _kinds(rows: pl.DataFrame) -> Iterator[Chart]:
    kinds = rows if rows.is_empty() else layers.kinds_of(rows)
    if kinds.is_empty():
        return
    bars, names = layers.bar_columns(kinds, LIGHT)
    highest = max(1.0, float(bars["top"].max(initial=0)))
    element = layers.layer_chart(bars, LIGHT, 340).opts(
        hv.opts.Overlay(xticks=[*names.items()], xlim=(-0.5, max(1, len(names)) - 0.5), ylim=(0, highest * 1.08))
    )
    variants = [name for name in layers.variants_of(kinds) if name]
    key = [Key(name, LIGHT.series[place % len(LIGHT.series)], SYMBOLS[MARKERS[1]]) for place, name in enumerate(variants)]
    note = f"Layers that differ by a number alone together. {disturbance_note(rows['disturbance'])}".rstrip()
    yield Chart("Time by kind of layer", element, "wide", note, key)


def pass_charts(rows: pl.DataFrame) -> Iterator[Chart]:
    """rows: of table models, of one run."""
    timed = rows if rows.is_empty() else rows.filter(pl.col("duration_median_ns") > 0)
    if timed.is_empty():
        return
    found = passes_of(timed.select(*COLUMNS, "duration_median_low_ns", "duration_median_high_ns"), {timed["run_id"][0]: ""})
    disturbed = disturbance_note(timed["disturbance"])
    note = f"Median of the passes; whiskers are its 95 % interval. {disturbed}".rstrip()
    medians = bar_chart(found.names, found.sides(_median), "median", LIGHT, ticks=theme.DURATION_TICKS)
    yield Chart("Latency of a pass", medians, note=note)
    rates = found.figures("tokens_per_s", lambda value: theme.si(value, "tokens/s"))
    if _is_known(rates):
        yield Chart("Throughput", bar_chart(found.names, rates, "tokens/s of the median", LIGHT), note=disturbed)
    yield _percentiles(found, disturbed)
    memory = found.figures("memory_bytes", theme.memory)
    if _is_known(memory):
        bars = bar_chart(found.names, memory, "device memory", LIGHT, ticks=theme.MEMORY_TICKS)
        yield Chart("Device memory", bars.opts(hv.opts.Overlay(yticks=_whole_bytes(memory))))


def _median(row: Mapping[str, Any]) -> Bar:
    low, high = row["duration_median_low_ns"], row["duration_median_high_ns"]
    text = f"{row['name']}: {theme.duration(row['duration_median_ns'])}, {theme.duration(low)} to {theme.duration(high)}"
    return Bar(row["duration_median_ns"], low, high, text)


def _is_known(sides: Sequence[Sequence[Bar | None]]) -> bool:
    return any(bar is not None for bars in sides for bar in bars)


def _whole_bytes(sides: Sequence[Sequence[Bar | None]]) -> list[int]:
    """Ticks at powers of two, or a few of one: decimal ones would be odd figures of KiB."""
    highest = max(bar.value for bars in sides for bar in bars if bar is not None)
    step = 2 ** max(0, math.ceil(math.log2(max(highest, 1) / 4)))
    return [step * place for place in range(int(highest / step) + 2)]


def _percentiles(found: Passes, disturbed: str) -> Chart:
    lines = found.percentiles()
    element = line_chart(tuple(PERCENTILES), lines, "time of a pass", LIGHT, 300, theme.DURATION_TICKS, theme.duration)
    key = [
        Key(line.name, LIGHT.series[place % len(LIGHT.series)], SYMBOLS[MARKERS[place % len(MARKERS)]]) for place, line in enumerate(lines)
    ]
    return Chart("Percentiles of a pass", element, note=f"From the shortest pass to the longest. {disturbed}".rstrip(), key=key)


SWEEP_TABLES: Final = {"configurations": ANNOUNCED, "roofline": PLACED, "failures": FAILED, "kernels": LAUNCHED}
PREFERRED: Final[tuple[MetricName, ...]] = ("flop_rate", "byte_rate", "duration")
ROW_PX: Final = 30
HEATMAP_AXIS_PX: Final = 170


def performance_charts(tables: Mapping[str, pl.DataFrame]) -> Iterator[Chart]:
    """tables: by their names; none of them may be missing, all may be empty."""
    if not all(name in tables for name in SWEEP_TABLES):
        return
    announced, placed, failed, kernels = (tables[name].select(columns) for name, columns in SWEEP_TABLES.items())
    rows = performance_rows(announced, placed, failed, kernels.filter(pl.col("launch_count") > 0))
    if rows.is_empty():
        return
    # The median times of a trace's kernels say little of each other.
    metric = next((METRICS[name] for name in PREFERRED if _knows(rows, METRICS[name]) and (name != "duration" or announced.height)), None)
    if metric is None:
        return
    if announced.height:
        yield from _heatmap(rows, metric)
    yield from _split(rows, metric)


def _knows(rows: pl.DataFrame, metric: Metric) -> bool:
    return bool(rows[metric.column].cast(pl.Float64).is_finite().any())


def _heatmap(rows: pl.DataFrame, metric: Metric) -> Iterator[Chart]:
    values = axis_values(rows)
    axes = heatmap.chosen_axes(values, "", "")
    if axes is None:
        return
    made = heatmap.heatmap(rows, values, axes, metric)
    if made.scale is None:
        return
    element = heatmap.heatmap_chart(made.cells, made.gaps, made.marks, LIGHT, HEATMAP_AXIS_PX + ROW_PX * max(3, len(made.y.places)))
    cells = next(iter(element))
    bar = hv.Store.lookup_options("bokeh", cells, "plot").kwargs["colorbar_opts"]
    cells.opts(clabel=metric.title, colorbar_opts={**bar, "title": metric.title, "major_label_overrides": made.scale.labels(metric)})
    element = element.opts(
        hv.opts.Overlay(
            xlim=(-0.5, len(made.x.places) - 0.5),
            ylim=(-0.5, len(made.y.places) - 0.5),
            xticks=[(place, elided(label, 24)) for place, label in enumerate(made.x.labels)],
            yticks=[(place, elided(label, 24)) for place, label in enumerate(made.y.labels)],
            xlabel=made.x.name,
            ylabel=made.y.name,
        )
    )
    notes = [f"{metric.title} of the best configuration at each place; {heatmap.BEST_MARK} is the best of all."]
    if made.scale.is_logarithmic:
        notes.append("Colours are logarithmic.")
    texts = set(made.marks["text"].tolist())
    notes += [f"{mark} {meaning}." for mark, meaning in heatmap.MARK_MEANINGS.items() if mark in texts]
    notes.append(_disturbances(rows))
    yield Chart(f"Heatmap of {metric.title.lower()}", element, "wide", " ".join(note for note in notes if note))


def _disturbances(rows: pl.DataFrame) -> str:
    return disturbance_note(rows.filter("is_measured")["disturbance"])


def _split(rows: pl.DataFrame, metric: Metric) -> Iterator[Chart]:
    made = split.split_bars(rows, metric, LIGHT)
    if not made.names:
        return
    present = split.categories_of(rows)
    key = [Key(category, style_of(category, values_with(present), LIGHT).color) for category in present]
    what = "Configurations of one kernel" if made.is_of_configurations else "The best configuration of each kernel"
    left_out = f" Logarithmic. {split.left_out_text(made)}" if made.left_out else " Logarithmic."
    disturbed = _disturbances(rows)
    left_out += f" {disturbed}" if disturbed else ""
    if len(made.intensities["top"]):
        element = _named(split.intensity_chart(made.intensities, LIGHT), made, made.intensities["top"])
        yield Chart("Arithmetic intensity", element, "half", f"{what}.{left_out}", key)
    element = split.performance_chart(made.performances, made.roofs, LIGHT)
    element = _named(element, made, [*made.performances["top"], *made.roofs["y0"]]).opts(
        hv.opts.Overlay(ylabel=metric.axis_label, yformatter=tick_formatter(metric.ticks))
    )
    yield Chart(metric.title, element, "half", f"{what}; ▬ is what the device could reach.{left_out}", key)


def _named(element: hv.Overlay, made: split.SplitBars, heights: Iterable[float]) -> hv.Overlay:
    count = len(made.names)
    return element.opts(hv.opts.Overlay(xticks=[*made.names.items()], xlim=(-0.5, count - 0.5), ylim=split.height_range(heights)))


MAX_DEVICE_LANE_COUNT: Final = 18
MAX_LANE_COUNT: Final = 28
"""Streams and depths of threads. More rows than these and their devices would be lower than letters on a slide."""

TIMELINE_AXIS_PX: Final = 60
TICK_COUNT: Final = 4  # of time: more lie on each other where a telephone shows the page
NAMED_PX: Final = 700
"""Wide that names are made to fit into: of a printed page, where letters are wider than in a browser."""

MAX_ROW_TITLE_LENGTH: Final = 30
MAX_HOVER_LENGTH: Final = 400
TRACE_TABLES: Final = ("timeline", "gaps", "trace_devices", "trace_processes")


def timeline_charts(tables: Mapping[str, pl.DataFrame]) -> Iterator[Chart]:
    """tables: by their names, of which those of traces may be missing."""
    if any(name not in tables for name in TRACE_TABLES) or tables["timeline"].is_empty():
        return
    tile, gaps, devices, processes = (tables[name] for name in TRACE_TABLES)
    whole = Outline("", tile, tile, devices, processes).whole
    # From the first event on: a session may have gone on for hours before, and labels have few digits.
    tile, gaps = (frame.with_columns(pl.col("start_ns") - whole.start_ns) for frame in (tile, gaps))
    lanes = tile.group_by(LANE, maintain_order=True).agg(busy_ns=(pl.col("duration_ns") * pl.col("busy_ratio")).sum())
    shown = busiest(lanes)
    rows = timeline_rows(shown.select(LANE), devices, processes)
    drawn = timeline.drawn_tile(tile, rows, Looks(), whole.length_ns / OUTLINE_PIXEL_COUNT)
    drawn_gaps = gap_columns(gaps, rows)
    layers = {
        "gaps": drawn_gaps,
        "pixels": drawn.pixels,
        "events": drawn.events,
        "names": timeline.label_columns(drawn, 0, whole.length_ns, whole.length_ns / NAMED_PX),
        **timeline.hatch_columns(drawn, drawn_gaps, Looks()),
    }
    texts = timeline.HoverTexts([name[:MAX_HOVER_LENGTH] for name in drawn.names], [row.title for row in rows.rows])
    yield Chart(
        "Timeline",
        _with_axes(timeline.timeline_chart(LIGHT, layers, texts), rows, whole),
        "wide",
        _timeline_note(drawn, whole, shown.height, lanes.height),
        _key(drawn, gaps),
    )


def busiest(lanes: pl.DataFrame) -> pl.DataFrame:
    """Those with most time in them, streams before threads, in the order that they have.

    A range takes no longer than those around it: a thread that is shown is shown from its outermost ranges on.
    """
    placed = lanes.with_row_index("place").sort("busy_ns", descending=True, maintain_order=True)
    is_range = pl.col("track") == "ranges"
    of_devices = placed.filter(~is_range).head(MAX_DEVICE_LANE_COUNT)
    of_threads = placed.filter(is_range).head(MAX_LANE_COUNT - of_devices.height)
    return pl.concat([of_devices, of_threads]).sort("place").drop("place")


def _with_axes(element: hv.Overlay, rows: TimelineRows, whole: TimeWindow) -> hv.Overlay:
    count = len(rows.rows)
    height_px = TIMELINE_AXIS_PX + timeline.ROW_PX * count
    return element.opts(
        hv.opts.Overlay(
            height=height_px,
            min_height=height_px,
            xlim=(0, whole.length_ns),
            ylim=(0, count),
            xaxis="bottom",
            yaxis="left",
            xticks=TICK_COUNT,
            gridstyle={"grid_line_color": LIGHT.grid, "ygrid_line_color": None},
            xlabel="from the first event on",
            yticks=[(place + 0.5, elided(row.title, MAX_ROW_TITLE_LENGTH)) for place, row in enumerate(rows.rows)],
            xformatter=tick_formatter(theme.DURATION_TICKS),
        )
    )


def _timeline_note(drawn: timeline.DrawnTile, whole: TimeWindow, shown_count: int, count: int) -> str:
    notes = [f"All {theme.duration(whole.length_ns)} of the trace."]
    if drawn.placed["row_index"].has_nulls():
        notes.append("Rows with many events show how busy each pixel is (height) and what took most of it (colour).")
    if shown_count < count:
        notes.append(f"The {shown_count} streams and depths of threads where most went on, of {theme.count(count)}.")
    return " ".join(notes)


def _key(drawn: timeline.DrawnTile, gaps: pl.DataFrame) -> list[Key]:
    """Categories and reasons that are there to be seen."""
    words = {category_code(word) for word in drawn.placed.filter(pl.col("track") != "ranges")["category"].to_list()}
    present = {CATEGORY_TITLES.get(EVENT_CATEGORIES[code], EVENT_CATEGORIES[code]) for code in words}
    entries = legend_entries(LIGHT, gaps["reason"].unique().to_list())
    return [Key(name, color, symbol) for name, color, symbol in entries if name in present or name.startswith("gap: ")]


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
