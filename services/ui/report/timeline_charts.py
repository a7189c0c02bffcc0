"""The timeline of a trace: all of it, in the rows where most went on, as its page shows it at first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import holoviews as hv
import polars as pl

from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import timeline
from kernalyse.services.ui.charts.elements import tick_formatter
from kernalyse.services.ui.charts.names import elided
from kernalyse.services.ui.charts.timeline_gaps import gap_columns
from kernalyse.services.ui.charts.timeline_looks import CATEGORIES as EVENT_CATEGORIES
from kernalyse.services.ui.charts.timeline_looks import CATEGORY_TITLES, Looks, category_code, legend_entries
from kernalyse.services.ui.charts.timeline_rows import LANE, TimelineRows, timeline_rows
from kernalyse.services.ui.report.document import Chart, Key
from kernalyse.services.ui.theme import LIGHT
from kernalyse.services.ui.time_window import TimeWindow
from kernalyse.services.ui.timeline_questions import OUTLINE_PIXEL_COUNT, Outline

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
