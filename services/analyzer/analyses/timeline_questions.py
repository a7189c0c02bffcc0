"""What is asked of a timeline besides its drawing: where a name is, and what went on in a window of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from services.analyzer.analyses.trace_breakdown import ANY as WORKED
from services.analyzer.analyses.trace_breakdown import COMMUNICATES, COMPUTE, KERNEL, MEMORY, UNIONS
from services.analyzer.analyses.trace_timeline import DEVICE_TRACKS, LANE, Timeline
from services.analyzer.correlation import Integers
from services.analyzer.table import COUNT, INDEX
from services.analyzer.tiles import within
from services.analyzer.timeline_tables import WINDOW_SUMMARY
from services.analyzer.window_sums import WindowSums, window_sums
from services.core.kernel_categories import COMMUNICATION

SUMMARY_SCHEMA: Final = {column.name: column.dtype for column in WINDOW_SUMMARY.columns[2:]}
DEVICE: Final = ("process_id", "device_index")


# ---------------------------------------------------------------- names


@dataclass(frozen=True, slots=True)
class Matches:
    """rows: places in the timeline's intervals, in order of start, of equal starts as they are drawn; start_ns: of each."""

    rows: Integers
    start_ns: Integers

    @classmethod
    def of(cls, timeline: Timeline, condition: pl.Expr | None) -> Matches:
        """condition: on columns name and track; None: all match."""
        intervals = timeline.intervals
        if condition is None:
            rows = np.arange(intervals.start_ns.size, dtype=np.int64)
        else:
            parts = [_of_track(timeline, track, condition) for track in timeline.lanes["track"].unique(maintain_order=True)]
            rows = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
        # Each lane is in order already: a merge sort joins such runs, and keeps those of equal starts as they are drawn.
        order = np.argsort(intervals.start_ns[rows], kind="stable")
        return cls(rows[order], intervals.start_ns[rows][order])

    @property
    def size_bytes(self) -> int:
        return self.rows.nbytes + self.start_ns.nbytes

    def frame(self, timeline: Timeline, first: int, last: int) -> pl.DataFrame:
        """Rows of table timeline_matches, from the first match to before the last."""
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
        """First match that starts in the window, and the first after it."""
        first = 0 if start_ns is None else int(np.searchsorted(self.start_ns, start_ns, side="left"))
        last = self.rows.size if end_ns is None else int(np.searchsorted(self.start_ns, end_ns, side="left"))
        return first, max(first, last)


def _of_track(timeline: Timeline, track: str, condition: pl.Expr) -> Integers:
    """Names are few: each is asked once, intervals by the number of theirs alone."""
    names = pl.DataFrame({"name": timeline.names}).with_columns(track=pl.lit(track))
    is_wanted = names.select(condition.fill_null(False)).to_series().to_numpy()
    if not is_wanted.any():
        return np.empty(0, dtype=np.int64)
    bounds = timeline.intervals.bounds
    found = []
    for lane in np.flatnonzero((timeline.lanes["track"] == track).to_numpy()):
        names_of_lane = timeline.intervals.name[bounds[lane] : bounds[lane + 1]]
        found.append(np.flatnonzero(is_wanted[names_of_lane]) + bounds[lane])
    return np.concatenate(found)


# ---------------------------------------------------------------- what went on


def window_summary(timeline: Timeline, window_start_ns: int | None, window_end_ns: int | None) -> pl.DataFrame:
    """Table window_summary. Raises InvalidRequestError: a window that ends before it begins."""
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
        found = window_sums(
            timeline.intervals, window, ranges, lanes["lane"].to_numpy().astype(np.int64), is_memory, kinds, MEMORY | WORKED
        )
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
    for kind, place in (("kernel", 0), ("memory", 1)):
        codes = np.flatnonzero(found.counts[place])
        duration_ns = pl.Series(found.duration_ns[place][codes], dtype=COUNT)
        of_kind = pl.DataFrame(
            {
                "subject_kind": [kind] * codes.size,
                "subject": timeline.names.gather(pl.Series(codes, dtype=INDEX)),
                "op_count": found.counts[place][codes],
                "duration_sum_ns": duration_ns,
                "share_ratio": duration_ns / max(int(duration_ns.sum()), 1),
            },
            schema_overrides={name: schema[name] for name in ("subject_kind", "subject", "op_count", "duration_sum_ns", "share_ratio")},
        )
        parts.append(of_kind)
    return pl.concat(parts, how="diagonal")
