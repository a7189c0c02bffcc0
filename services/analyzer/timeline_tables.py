"""The tables that are answered from a timeline in memory: what a window of time shows, what went on in it, where a name is."""

from __future__ import annotations

from typing import Final

from services.analyzer.table import COUNT, INDEX, NUMBER, TEXT, Column
from services.analyzer.table import keyed_table as _table
from services.analyzer.trace_tables import BUSY_COLUMNS, DEVICE_INDEX, PROCESS_ID, START_NS, STREAM_INDEX, THREAD_ID

TRACK: Final = Column("track", TEXT, "kernels and memory, of each stream; ranges, of each thread and depth; calls, of each thread.")
LANE_COLUMNS: Final = (
    TRACK,
    PROCESS_ID,
    DEVICE_INDEX,
    STREAM_INDEX,
    THREAD_ID,
    Column("depth", INDEX, "Of ranges: those around it."),
)

TIMELINE: Final = _table(
    "timeline",
    "What a drawing of a window of time shows, row after row of it. Kernels, copies, ranges and calls one by one where a row has no more "
    "of them than pixels, else pixel by pixel; pixels with nothing in them are left out.",
    *LANE_COLUMNS,
    START_NS,
    Column("duration_ns", COUNT, "Of the pixel; of one that is shown as it is, its own."),
    Column("busy_ratio", NUMBER, "Of the pixel, time in which something went on."),
    Column("begun_count", COUNT, "Kernels, copies, ranges or calls that began in the pixel."),
    Column(
        "name",
        TEXT,
        "Which took most of the pixel. Where more than 32 begin in one, they are summed by 32, and of each sum what took most counts.",
    ),
    Column("row_index", INDEX, "launch_index, op_index, range_index or call_index of one that is shown as it is; null: a pixel."),
    Column("category", TEXT, "Of kernels and copies: what the name tells that they do, e.g. matmul; null: it tells nothing."),
)

TIMELINE_MATCHES: Final = _table(
    "timeline_matches",
    "One row per kernel, copy, range or call of a timeline, in order of start; a filter on name finds those of it at once. A window leaves "
    "those that start in it.",
    Column("match_index", INDEX, "Among all that match, in order of start, from 0; without regard to the window."),
    *LANE_COLUMNS,
    START_NS,
    Column("duration_ns", COUNT, "End less start."),
    Column("name", TEXT, "Of it."),
    Column("row_index", INDEX, "launch_index, op_index, range_index or call_index."),
)

WINDOW_SUMMARY: Final = _table(
    "window_summary",
    "What devices did in a window of time: one row per process and device, then one per kernel and per kind of copy, longest first. "
    "What reaches over an edge counts for its part within.",
    PROCESS_ID,
    DEVICE_INDEX,
    Column("subject_kind", TEXT, "device, kernel or memory."),
    Column("subject", TEXT, "Name of the kernel, or what was copied where; null: of a device."),
    Column("op_count", COUNT, "Kernels, or copies and fills, in the window; of a device its kernels."),
    Column("duration_sum_ns", COUNT, "Of these within the window, overlap counted twice; of a device the window's length."),
    Column("share_ratio", NUMBER, "Of the device time of all kernels in the window, or of all copies; null: of a device."),
    *BUSY_COLUMNS,
    Column("overlap_ns", COUNT, "Computing and communicating at once; null: of a kernel or copy, as the four before and the two after."),
    Column("memory_ns", COUNT, "At least one copy or fill went on."),
    Column("memory_only_ns", COUNT, "Of idle_ns, while a copy or fill went on."),
)

WINDOWED_TABLES: Final = (TIMELINE, TIMELINE_MATCHES, WINDOW_SUMMARY)
