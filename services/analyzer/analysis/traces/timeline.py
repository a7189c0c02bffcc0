"""The timeline of a trace: drawing a window of it, search, and sums over a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import polars as pl

from kernalyse.services.analyzer.analysis.traces.activity import ANY as WORKED
from kernalyse.services.analyzer.analysis.traces.activity import COMMUNICATES, COMPUTE, KERNEL, MEMORY, UNIONS
from kernalyse.services.analyzer.analysis.traces.layers import infer_layer
from kernalyse.services.analyzer.numeric.correlation import Integers
from kernalyse.services.analyzer.numeric.timeline import Intervals, Window, WindowSums, draw_pixels, sum_window, within
from kernalyse.services.analyzer.tables.base import COUNT, INDEX, NUMBER, TEXT
from kernalyse.services.analyzer.tables.traces import TIMELINE, WINDOW_SUMMARY
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.kernel_categories import COMMUNICATION

# ---------------------------------------------------------------- drawing
# A window of a trace is drawn with every interval where there are few, and with the activity of each pixel where there are many.

_STREAM: Final = ("process_id", "device_index", "stream_index")
_THREAD: Final = ("process_id", "thread_id")
INPUT: Final = {
    "kernel_launches": (*_STREAM, "name_index", "start_ns", "duration_ns"),
    "memory_ops": (*_STREAM, "kind", "direction", "start_ns", "duration_ns"),
    "ranges": (*_THREAD, "name_index", "depth", "start_ns", "duration_ns"),
    "api_calls": (*_THREAD, "name_index", "start_ns", "duration_ns"),
    "trace_names": ("name_index", "name"),
}

MAX_WINDOW_NS: Final = 2**61
"""Limit of times since the start of the session, 73 years: sums of such times fit 64 bits."""

DEFAULT_PIXEL_COUNT: Final = 1000
MAX_PIXEL_COUNT: Final = 16_384
"""Wider than any screen. A timeline of a hundred lanes returns at most a hundred times as many rows."""

LANE: Final = {
    "track": TEXT,
    "process_id": COUNT,
    "device_index": INDEX,
    "stream_index": COUNT,
    "thread_id": COUNT,
    "depth": INDEX,
}
"""Columns that identify a lane, that is a row of the drawing."""

TRACKS: Final = {
    "kernels": ("kernel_launches", _STREAM),
    "memory": ("memory_ops", _STREAM),
    "ranges": ("ranges", (*_THREAD, "depth")),
    "calls": ("api_calls", _THREAD),
}
"""The tracks, each with its table and the columns that identify its lanes."""

DEVICE_TRACKS: Final = ("kernels", "memory")

EVENTS_VERSION: Final = 1
"""Version of the rows of `timeline_events`, which are cached: see TraceAnalysis.version."""


def timeline_events(trace: Mapping[str, pl.LazyFrame]) -> pl.LazyFrame:
    """Return all intervals of a timeline, sorted by lane and start: LANE, start_ns, end_ns, name, row_index.

    Names are of type Enum: as strings, those of ten million kernels and calls would fill the memory of a small machine.

    Args:
        trace: tables of INPUT of one trace, each in order of start within each process.
    """
    copied = pl.concat_str("kind", "direction", separator=" ", ignore_nulls=True).alias("name")
    names = trace["trace_names"].select("name_index", "name")
    texts = pl.concat([names.select("name"), trace["memory_ops"].select(copied)]).drop_nulls().unique().sort("name").collect()
    schema: dict[str, Any] = {
        **LANE,
        "track": pl.Enum(list(TRACKS)),
        "start_ns": COUNT,
        "end_ns": COUNT,
        "name": pl.Enum(texts.to_series()),
        "row_index": INDEX,
    }
    parts = []
    for track, (table_name, lane) in TRACKS.items():
        numbered = trace[table_name].select(INPUT[table_name]).with_row_index("row_index")
        named = (
            numbered.with_columns(copied) if track == "memory" else numbered.join(names, on="name_index", how="left", maintain_order="left")
        )
        parts.append(_events(named, track, lane, schema))
    return pl.concat(parts)


def _events(part: pl.LazyFrame, track: str, lane: Sequence[str], schema: Mapping[str, Any]) -> pl.LazyFrame:
    end_ns = pl.col("start_ns") + pl.col("duration_ns").clip(lower_bound=0)
    present = part.with_columns(track=pl.lit(track), end_ns=end_ns)
    known = set(present.collect_schema().names())
    columns = (pl.col(name).cast(dtype) if name in known else pl.lit(None, dtype=dtype).alias(name) for name, dtype in schema.items())
    # Launches in ncu reports have no times.
    return present.select(columns).drop_nulls(("start_ns", "end_ns")).sort(lane, nulls_last=True, maintain_order=True)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The intervals of a trace, prepared for drawing and search.

    lanes: one row per lane, columns of LANE. names, categories: by the name codes of intervals. row_index: row of each interval in
    the table of its track.
    """

    lanes: pl.DataFrame
    names: pl.Series
    categories: pl.Series
    intervals: Intervals
    row_index: pl.Series

    @classmethod
    def of(cls, events: pl.DataFrame) -> Timeline:
        """Return the timeline of the events that `timeline_events` returns."""
        texts = cast(pl.Enum, events.schema["name"]).categories
        names = pl.concat([texts.alias("name"), pl.Series("name", [None], dtype=TEXT)])
        codes = events["name"].to_physical().cast(INDEX).fill_null(texts.len())
        lane = events.select(pl.struct(*LANE).rle_id()).to_series()
        lanes = events.select(*LANE, lane=lane).unique("lane", keep="first", maintain_order=True)
        lanes = lanes.select(pl.col(name).cast(dtype) for name, dtype in LANE.items())
        bounds = np.searchsorted(lane.to_numpy(), np.arange(lanes.height + 1)).astype(np.int64)
        intervals = Intervals.of(bounds, events["start_ns"].to_numpy(), events["end_ns"].to_numpy(), codes.to_numpy())
        return cls(lanes, names, _categories(names), intervals, events["row_index"])

    @property
    def size_bytes(self) -> int:
        """Memory that the intervals take."""
        return self.intervals.size_bytes + int(self.row_index.estimated_size())

    def tile(self, window_start_ns: int | None, window_end_ns: int | None, pixel_count: int | None) -> pl.DataFrame:
        """Return table timeline for a window.

        A lane with at most pixel_count intervals in the window has one row per interval, other lanes one row per pixel.

        Args:
            window_start_ns, window_end_ns: ends of the window; None for the first start and the last end of all.
            pixel_count: width of the window in pixels; None for 1000.

        Raises:
            InvalidRequestError: the window ends before it begins, or there are too many pixels.
        """
        window = self.window(window_start_ns, window_end_ns, pixel_count)
        if window is None:
            return pl.DataFrame(schema=SCHEMA)
        ranges = within(self.intervals, window)
        counts = ranges[:, 1] - ranges[:, 0]
        few = np.flatnonzero((counts > 0) & (counts <= window.pixel_count))
        many = np.flatnonzero(counts > window.pixel_count)
        return pl.concat([self._single(few, ranges, window), self._pixels(many, ranges, window)]).sort("lane", "start_ns").drop("lane")

    def window(self, start_ns: int | None, end_ns: int | None, pixel_count: int | None) -> Window | None:
        """Return the window, None if the timeline is empty. Arguments and errors are those of `tile`."""
        intervals = self.intervals
        if intervals.start_ns.size == 0:
            return None
        first = intervals.first_ns if start_ns is None else start_ns
        last = intervals.last_ns if end_ns is None else end_ns
        if start_ns is None and end_ns is None:
            last = max(last, first + 1)  # if all intervals are empty
        pixels = DEFAULT_PIXEL_COUNT if pixel_count is None else pixel_count
        _check(first, last, pixels)
        return Window(first, last, min(pixels, last - first))

    def _single(self, lanes: Integers, ranges: Integers, window: Window) -> pl.DataFrame:
        spans = ranges[lanes]
        rows = np.concatenate([np.arange(first, last) for first, last in spans] or [np.empty(0, dtype=np.int64)])
        lane = np.repeat(lanes, spans[:, 1] - spans[:, 0])
        visible = (self.intervals.end_ns[rows] > window.start_ns) | (self.intervals.start_ns[rows] >= window.start_ns)
        rows, lane = rows[visible], lane[visible]
        start_ns = self.intervals.start_ns[rows]
        return self._rows(
            lane,
            start_ns,
            self.intervals.end_ns[rows] - start_ns,
            np.ones(rows.size),
            np.ones(rows.size, dtype=np.int64),
            self.intervals.name[rows],
            self.row_index.gather(rows),
        )

    def _pixels(self, lanes: Integers, ranges: Integers, window: Window) -> pl.DataFrame:
        found = draw_pixels(self.intervals, window, lanes.astype(np.int32), ranges)
        edges = window.edges()
        length_ns = edges[found.pixel + 1] - edges[found.pixel]
        none = pl.Series([None], dtype=INDEX).new_from_index(0, found.lane.size)
        return self._rows(found.lane, edges[found.pixel], length_ns, found.busy_ns / length_ns, found.begun_count, found.name, none)

    def _rows(
        self,
        lane: np.ndarray[tuple[int], np.dtype[np.signedinteger]],
        start_ns: Integers,
        duration_ns: Integers,
        busy_ratio: np.ndarray[tuple[int], np.dtype[np.float64]],
        begun_count: Integers,
        name: np.ndarray[tuple[int], np.dtype[np.int32]],
        row_index: pl.Series,
    ) -> pl.DataFrame:
        lanes = pl.Series("lane", lane, dtype=INDEX)
        codes = pl.Series(name, dtype=INDEX)
        codes = codes.set(codes < 0, None)
        shown = self.lanes[lanes]
        categories = self.categories.gather(codes)
        return shown.with_columns(
            pl.Series("start_ns", start_ns, dtype=COUNT),
            pl.Series("duration_ns", duration_ns, dtype=COUNT),
            pl.Series("busy_ratio", busy_ratio, dtype=NUMBER),
            pl.Series("begun_count", begun_count, dtype=COUNT),
            self.names.gather(codes).alias("name"),
            row_index.cast(INDEX).alias("row_index"),
            categories.set(~shown["track"].is_in(DEVICE_TRACKS), None).alias("category"),
            lanes,
        )


def _categories(names: pl.Series) -> pl.Series:
    """Return the categories of kernels of these names, as they are inferred for layers."""
    words = infer_layer(pl.col("name")).str.strip_suffix(" kernels")
    return names.to_frame().select(words.alias("category")).to_series()


SCHEMA: Final = {column.name: column.dtype for column in TIMELINE.columns[2:]}


def _check(start_ns: int, end_ns: int, pixel_count: int) -> None:
    if end_ns <= start_ns:
        raise InvalidRequestError(
            "window of the timeline",
            found=f"from {start_ns} to {end_ns} ns",
            expected="an end after the start",
            remedy="Give times since the start of the session.",
        )
    if start_ns < -MAX_WINDOW_NS or end_ns > MAX_WINDOW_NS:
        raise InvalidRequestError(
            "window of the timeline",
            found=f"from {start_ns} to {end_ns} ns",
            expected=f"times of at most {MAX_WINDOW_NS} ns",
            remedy="Give times since the start of the session.",
        )
    if not 1 <= pixel_count <= MAX_PIXEL_COUNT:
        raise InvalidRequestError(
            "pixel_count of table timeline", found=str(pixel_count), expected=f"1 to {MAX_PIXEL_COUNT}", remedy="Ask for fewer."
        )


# ---------------------------------------------------------------- search

SUMMARY_SCHEMA: Final = {column.name: column.dtype for column in WINDOW_SUMMARY.columns[2:]}
DEVICE: Final = ("process_id", "device_index")


@dataclass(frozen=True, slots=True)
class Matches:
    """The results of a search. rows: rows of the timeline's intervals, in order of start, then of lane; start_ns: their starts."""

    rows: Integers
    start_ns: Integers

    @classmethod
    def of(cls, timeline: Timeline, condition: pl.Expr | None) -> Matches:
        """Return the matching intervals of a timeline. condition: on the columns name and track; None: all match."""
        intervals = timeline.intervals
        if condition is None:
            rows = np.arange(intervals.start_ns.size, dtype=np.int64)
        else:
            parts = [_of_track(timeline, track, condition) for track in timeline.lanes["track"].unique(maintain_order=True)]
            rows = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
        # Each lane is sorted already. A stable merge sort joins such runs fast and keeps equal starts in order of lane.
        order = np.argsort(intervals.start_ns[rows], kind="stable")
        return cls(rows[order], intervals.start_ns[rows][order])

    @property
    def size_bytes(self) -> int:
        """Memory that the matches take."""
        return self.rows.nbytes + self.start_ns.nbytes

    def frame(self, timeline: Timeline, first: int, last: int) -> pl.DataFrame:
        """Return rows of table timeline_matches, for the matches from first up to last (exclusive)."""
        rows = self.rows[first:last]
        intervals = timeline.intervals
        lane = np.searchsorted(intervals.bounds, rows, side="right") - 1
        return timeline.lanes[pl.Series(lane, dtype=INDEX)].select(
            pl.Series("match_index", np.arange(first, first + rows.size), dtype=INDEX),
            *LANE,
            pl.Series("start_ns", intervals.start_ns[rows], dtype=COUNT),
            pl.Series("duration_ns", intervals.end_ns[rows] - intervals.start_ns[rows], dtype=COUNT),
            timeline.names.gather(pl.Series(intervals.name[rows], dtype=INDEX)).alias("name"),
            timeline.row_index.gather(pl.Series(rows)).cast(INDEX).alias("row_index"),
        )

    def between(self, start_ns: int | None, end_ns: int | None) -> tuple[int, int]:
        """Return the first match that starts in the window, and the first after it."""
        first = 0 if start_ns is None else int(np.searchsorted(self.start_ns, start_ns, side="left"))
        last = self.rows.size if end_ns is None else int(np.searchsorted(self.start_ns, end_ns, side="left"))
        return first, max(first, last)


def _of_track(timeline: Timeline, track: str, condition: pl.Expr) -> Integers:
    """Return the matching intervals of a track. The condition is evaluated once per name; intervals are matched by name code."""
    names = pl.DataFrame({"name": timeline.names}).with_columns(track=pl.lit(track))
    is_match = names.select(condition.fill_null(False)).to_series().to_numpy()
    if not is_match.any():
        return np.empty(0, dtype=np.int64)
    bounds = timeline.intervals.bounds
    found = []
    for lane in np.flatnonzero((timeline.lanes["track"] == track).to_numpy()):
        names_of_lane = timeline.intervals.name[bounds[lane] : bounds[lane + 1]]
        found.append(np.flatnonzero(is_match[names_of_lane]) + bounds[lane])
    return np.concatenate(found)


# ---------------------------------------------------------------- window summary


def window_summary(timeline: Timeline, window_start_ns: int | None, window_end_ns: int | None) -> pl.DataFrame:
    """Return table window_summary. Raises InvalidRequestError if the window ends before it begins."""
    window = timeline.window(window_start_ns, window_end_ns, 1)
    devices = timeline.lanes.with_row_index("lane").filter(pl.col("track").is_in(DEVICE_TRACKS))
    if window is None or devices.is_empty():
        return pl.DataFrame(schema=SUMMARY_SCHEMA)
    is_communication = timeline.names.str.contains(COMMUNICATION).fill_null(False).to_numpy()
    kinds = np.where(is_communication, COMMUNICATES | KERNEL | WORKED, COMPUTE | KERNEL | WORKED).astype(np.uint8)
    ranges = within(timeline.intervals, window)
    parts = []
    for (process_id, device_index), lanes in devices.group_by(*DEVICE, maintain_order=True):
        is_memory = (lanes["track"] == "memory").to_numpy()
        found = sum_window(timeline.intervals, window, ranges, lanes["lane"].to_numpy().astype(np.int64), is_memory, kinds, MEMORY | WORKED)
        rows = _rows(timeline, found, window.end_ns - window.start_ns)
        parts.append(rows.with_columns(process_id=pl.lit(process_id, dtype=COUNT), device_index=pl.lit(device_index, dtype=INDEX)))
    together = pl.concat(parts).select(pl.col(name).cast(dtype) for name, dtype in SUMMARY_SCHEMA.items())
    is_device = pl.col("subject_kind") == "device"
    return together.sort(~is_device, -pl.col("duration_sum_ns"), "subject", maintain_order=True)


def _rows(timeline: Timeline, found: WindowSums, length_ns: int) -> pl.DataFrame:
    covered = {name: int(found.covered_ns[bit]) for name, bit in UNIONS.items()}
    busy, worked = covered["busy_ns"], covered.pop("worked_ns")
    device = covered | {
        "subject_kind": "device",
        "op_count": int(found.counts[0].sum()),
        "duration_sum_ns": length_ns,
        "idle_ns": length_ns - busy,
        "overlap_ns": covered["compute_ns"] + covered["communication_ns"] - busy,
        "memory_only_ns": worked - busy,
    }
    schema = {name: dtype for name, dtype in SUMMARY_SCHEMA.items() if name not in DEVICE}
    parts = [pl.DataFrame([device], schema=schema)]
    for kind, row in (("kernel", 0), ("memory", 1)):
        codes = np.flatnonzero(found.counts[row])
        duration_ns = pl.Series(found.duration_ns[row][codes], dtype=COUNT)
        of_kind = pl.DataFrame(
            {
                "subject_kind": [kind] * codes.size,
                "subject": timeline.names.gather(pl.Series(codes, dtype=INDEX)),
                "op_count": found.counts[row][codes],
                "duration_sum_ns": duration_ns,
                "share_ratio": duration_ns / max(int(duration_ns.sum()), 1),
            },
            schema_overrides={name: schema[name] for name in ("subject_kind", "subject", "op_count", "duration_sum_ns", "share_ratio")},
        )
        parts.append(of_kind)
    return pl.concat(parts, how="diagonal")
