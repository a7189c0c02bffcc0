"""Live updates of a run's rows, for any number of subscribers.

A subscriber catches up from the store and continues from a ring buffer of the latest commits. It pulls: one that stalls falls
out of the ring and catches up from the store again, at no cost to the others. Subscribers at the same position share the
encoded bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.roofline import RooflineModel, roofline_under
from kernalyse.services.analyzer.queries.filters import chunks
from kernalyse.services.analyzer.store.live_rows import RunCommit, span_ends
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.derived import LAYER_ROOFLINE, ROOFLINE
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows, samples_frame
from kernalyse.services.analyzer.tables.runs import CEILINGS, COUNTED_WORK, MEASUREMENTS, SAMPLES, WATCHED_TABLES
from kernalyse.services.core.errors import ShuttingDownError
from kernalyse.services.core.model import Run, TableChunk

PAGE_ROW_COUNT: Final = 16_384
"""Rows of one response: more would make a subscriber wait for its first row, fewer cost more per row."""

SPAN_ROW_COUNT: Final = 16 * PAGE_ROW_COUNT
"""Rows read from the store at a time while catching up, some 30 MiB, which a subscriber that stalls holds. Fewer, and ceilings and roofline
are looked up more often."""

RING_BYTES: Final = 32 * 1024 * 1024
"""Memory of one ring: some seconds of the fastest run. That suffices for a slow page; a stalled one catches up from the store."""

COLUMN_BYTES: Final = 750
"""Overhead of a column of a frame, in bytes: in a commit with one measurement that is nearly all of its memory."""

SHARED_ENCODING_COUNT: Final = 8

Frames = Mapping[str, pl.DataFrame]


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """One response to a subscriber. It completes all rows before next_event_index. run: None if unchanged."""

    next_event_index: int
    run: Run | None
    tables: tuple[TableChunk, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """The changes of one commit. An empty range of indexes: the change has no event (user ceilings, tags)."""

    first_event_index: int
    next_event_index: int
    run: Run | None
    frames: Frames

    @property
    def byte_count(self) -> int:
        """Estimated memory of all frames."""
        return sum(int(frame.estimated_size()) + frame.width * COLUMN_BYTES for frame in self.frames.values())

    @property
    def row_count(self) -> int:
        """Rows of all frames."""
        return sum(frame.height for frame in self.frames.values())

    def is_new_at(self, position: int) -> bool:
        """Return whether a subscriber at this position has not seen the segment, or not all of it."""
        return self.next_event_index > position or self.first_event_index == self.next_event_index

    def after(self, position: int) -> Segment:
        """Return the rest of the segment for a subscriber at this position; the segment itself if none of it has been seen."""
        if not self.first_event_index < position < self.next_event_index:
            return self
        frames = {name: frame.filter(pl.col("event_index") >= position) for name, frame in self.frames.items()}
        return replace(self, frames={name: frame for name, frame in frames.items() if frame.height > 0})


@dataclass(slots=True)
class RunBuffer:
    """The ring buffer of one run. Segments are numbered in order; next_number is the number of the next one."""

    watcher_count: int = 0
    node_id: str = ""  # of the run
    is_left: bool = False  # its node is followed by another analyzer from now on
    segments: deque[Segment] = field(default_factory=deque)
    next_number: int = 0
    byte_count: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    hardware_change_count: int = 0  # changes of ceilings and thresholds so far
    roofline_model: tuple[int, RooflineModel] | None = None  # with the hardware_change_count before it was computed
    encodings: OrderedDict[tuple[int, int], asyncio.Task[tuple[TableChunk, ...]]] = field(default_factory=OrderedDict)

    @property
    def first_number(self) -> int:
        """Number of the oldest segment in the ring."""
        return self.next_number - len(self.segments)

    def append(self, segment: Segment) -> None:
        """Add a segment, drop the oldest ones beyond RING_BYTES, and wake subscribers."""
        self.segments.append(segment)
        self.next_number += 1
        self.byte_count += segment.byte_count
        while self.byte_count > RING_BYTES and len(self.segments) > 1:
            self.byte_count -= self.segments.popleft().byte_count
        self.wake()

    def drop(self) -> None:
        """Let every subscriber catch up from the store: what was committed may not have come through here."""
        self.segments.clear()
        self.next_number += 1
        self.byte_count = 0
        self.wake()

    def current_roofline_model(self, compute: Callable[[], RooflineModel]) -> RooflineModel:
        """Return the roofline model, computed again if ceilings or thresholds have changed since."""
        count = self.hardware_change_count
        if self.roofline_model is None or self.roofline_model[0] != count:
            self.roofline_model = (count, compute())
        return self.roofline_model[1]

    def wake(self) -> None:
        """Wake all subscribers."""
        self.changed.set()
        self.changed = asyncio.Event()

    def since(self, number: int) -> list[Segment]:
        """Return the segments from a number on, as many as fit one response; at least one if there is one."""
        taken: list[Segment] = []
        row_count = 0
        for position in range(number - self.first_number, len(self.segments)):
            segment = self.segments[position]
            row_count += segment.row_count
            if taken and row_count > PAGE_ROW_COUNT:
                break
            taken.append(segment)
        return taken

    async def encoded(self, number: int, segments: Sequence[Segment]) -> tuple[TableChunk, ...]:
        """Return the segments' rows, merged by table, and encoded once for all subscribers that ask for the same segments."""
        key = (number, len(segments))
        task = self.encodings.get(key)
        if task is None:
            task = asyncio.create_task(asyncio.to_thread(_encode, _merged(segments)))
            self.encodings[key] = task
            if len(self.encodings) > SHARED_ENCODING_COUNT:
                self.encodings.popitem(last=False)
        # Shielded: the subscriber that asked first may leave while others wait for the same bytes.
        return await asyncio.shield(task)


class RunSubscriptions:
    """Ring buffers by run; a run has one while it has a subscriber."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._feeds: dict[str, RunBuffer] = {}
        self._is_closed = False

    async def publish(self, commits: Sequence[RunCommit]) -> None:
        """Publish commits to the subscribers of their runs. Commits of one run have to come in order."""
        for commit in commits:
            feed = self._feeds.get(commit.run_id)
            if feed is not None:
                frames = await asyncio.to_thread(_commit_frames, self._store, commit, feed)
                feed.append(Segment(commit.first_event_index, commit.next_event_index, commit.run, frames))

    def restart(self, run_ids: Collection[str]) -> None:
        """Have the subscribers of these runs catch up from the store, after a commit whose outcome is not known."""
        for run_id in run_ids:
            if run_id in self._feeds:
                self._feeds[run_id].drop()

    def leave(self, node_id: str) -> None:
        """End the streams of the node's runs with ShuttingDownError: another analyzer follows the node, and has them from now on."""
        for feed in self._feeds.values():
            if feed.node_id == node_id:
                feed.is_left = True
                feed.wake()

    async def publish_run(self, run: Run) -> None:
        """Publish a change of a run that no event made."""
        feed = self._feeds.get(run.run_id)
        if feed is not None:
            feed.append(Segment(0, 0, run, {}))

    async def publish_ceilings(self, node_id: str, device_id: str, informed_run_ids: Collection[str] = ()) -> None:
        """Publish ceilings and roofline again to subscribers of runs on the device, except runs that have just got them."""
        for run_id, feed in list(self._feeds.items()):
            if run_id in informed_run_ids:
                continue
            run = (await asyncio.to_thread(self._store.runs.get, run_id)).run
            if (run.node_id, run.device_id) == (node_id, device_id):
                feed.hardware_change_count += 1
                feed.append(Segment(0, 0, None, await asyncio.to_thread(_ceiling_frames, self._store, run_id)))

    async def watch(self, run_id: str, next_event_index: int) -> AsyncIterator[RunUpdate]:
        """Yield the run and its rows from an index on, then live updates until the run is final and its traces are read.

        Raises:
            RunNotFoundError: the store has no such run.
            ShuttingDownError: the service stops.
        """
        feed = self._feeds.setdefault(run_id, RunBuffer())
        feed.watcher_count += 1
        feed.is_left = False
        try:
            position = next_event_index
            while True:
                # The number is taken before reading: commits from here on are in the ring, earlier ones are in the store.
                number = feed.next_number
                record = await asyncio.to_thread(self._store.runs.get, run_id)
                end = record.next_event_index
                feed.node_id = record.run.node_id
                yield RunUpdate(position, record.run, ())
                async for update in self._catch_up(run_id, position, end):
                    yield update
                position = max(position, end)
                if record.run.is_settled:
                    return
                async for update in self._follow_ring(feed, number, position):
                    yield update
                    position = update.next_event_index
                    if update.run is not None and update.run.is_settled:
                        return
        finally:
            feed.watcher_count -= 1
            if feed.watcher_count == 0:
                del self._feeds[run_id]

    def close(self) -> None:
        """End every stream with ShuttingDownError."""
        self._is_closed = True
        for feed in self._feeds.values():
            feed.wake()

    async def _follow_ring(self, feed: RunBuffer, number: int, position: int) -> AsyncIterator[RunUpdate]:
        """Yield updates from the ring, until the subscriber has fallen out of it."""
        while number >= feed.first_number:
            changed = feed.changed
            segments = feed.since(number)
            if not segments:
                if self._is_closed or feed.is_left:
                    found = "it stops" if self._is_closed else "it has left the run's node to another analyzer"
                    raise ShuttingDownError("analyzer", found=found, expected="a service that goes on", remedy="Watch again.")
                await changed.wait()
                continue
            fresh = [segment.after(position) for segment in segments if segment.is_new_at(position)]
            is_shared = [id(segment) for segment in fresh] == [id(segment) for segment in segments]
            tables = await (feed.encoded(number, segments) if is_shared else asyncio.to_thread(_encode, _merged(fresh)))
            number += len(segments)
            position = max(position, *(segment.next_event_index for segment in segments))
            run = next((segment.run for segment in reversed(fresh) if segment.run is not None), None)
            if tables or run is not None:
                yield RunUpdate(position, run, tables)

    async def _catch_up(self, run_id: str, first: int, end: int) -> AsyncIterator[RunUpdate]:
        """Yield stored rows from the first event up to before the end, in pages."""
        if first >= end:
            return
        counts = await asyncio.to_thread(self._store.row_counts, run_id, first)
        span_first = first
        for span_end in span_ends(counts, SPAN_ROW_COUNT, end):
            frames = await asyncio.to_thread(_stored_frames, self._store, run_id, span_first, span_end)
            in_span = counts.filter(pl.col("event_index").is_between(span_first, span_end - 1))
            page_first = span_first
            for page_end in span_ends(in_span, PAGE_ROW_COUNT, span_end):
                tables = await asyncio.to_thread(_encode, _cut(frames, page_first, page_end))
                yield RunUpdate(page_end, None, tables)
                page_first = page_end
            span_first = span_end


def _commit_frames(store: Store, commit: RunCommit, feed: RunBuffer) -> Frames:
    # With every analysis, which a command that lists runs does without.
    from kernalyse.services.analyzer.queries.run_tables import ceilings, thresholds

    tables = {row.table.table_name: row.table for row in commit.rows if row.table in WATCHED_TABLES and row.table is not CEILINGS}
    frames = {name: frame_from_rows(table, [row.values for row in commit.rows if row.table is table]) for name, table in tables.items()}
    if commit.samples:
        frames[SAMPLES.table_name] = samples_frame(commit.samples)
    if commit.has_new_ceilings:
        feed.hardware_change_count += 1
        between = pl.col("event_index").is_between(commit.first_event_index, commit.next_event_index - 1)
        for name, frame in _ceiling_frames(store, commit.run_id).items():
            frames[name] = frame.filter(between)
    elif MEASUREMENTS.table_name in frames:
        model = feed.current_roofline_model(
            lambda: RooflineModel.of(ceilings(store, [commit.run_id]), thresholds(store, [commit.run_id])).worked_out()
        )
        # Counters arrive after all measurements, together with new rows of the roofline.
        points = roofline_under(model, frames[MEASUREMENTS.table_name].lazy(), COUNTED_WORK.empty().lazy())
        frames[ROOFLINE.table_name] = points.collect()
        if frames[MEASUREMENTS.table_name]["layer_path"].count():
            from kernalyse.services.analyzer.queries.registry import resolve_table
            from kernalyse.services.analyzer.queries.run_tables import (
                StoreSource,  # with every analysis, which a command that lists runs does without
            )

            layers = resolve_table(LAYER_ROOFLINE, StoreSource(store, [commit.run_id])).sort("event_index").collect()
            frames[LAYER_ROOFLINE.table_name] = layers.filter(pl.col("event_index") >= commit.first_event_index)
    return {name: frame for name, frame in frames.items() if frame.height > 0}


def _ceiling_frames(store: Store, run_id: str) -> Frames:
    from kernalyse.services.analyzer.queries.registry import resolve_table
    from kernalyse.services.analyzer.queries.run_tables import StoreSource  # as above

    source = StoreSource(store, [run_id])
    return {table.table_name: resolve_table(table, source).sort("event_index").collect() for table in (CEILINGS, ROOFLINE, LAYER_ROOFLINE)}


def _stored_frames(store: Store, run_id: str, first: int, end: int) -> Frames:
    tables = [table for table in (*WATCHED_TABLES, SAMPLES) if table is not CEILINGS]
    frames = {
        table.table_name: store.read(table, [run_id], first, end).sort("event_index", maintain_order=True).collect() for table in tables
    }
    return _cut({**frames, **_ceiling_frames(store, run_id)}, first, end)


def _cut(frames: Frames, first: int, end: int | None) -> Frames:
    """Return the rows between two event indexes, of frames in order of event_index."""
    cut = {}
    for name, frame in frames.items():
        index = frame["event_index"].drop_nulls()
        missing = frame.height - index.len()
        start = index.search_sorted(first) if first > 0 else 0
        stop = index.len() if end is None else index.search_sorted(end)
        part = frame.slice(missing + start, stop - start)
        if part.height > 0:
            cut[name] = part
    return cut


def _merged(segments: Sequence[Segment]) -> Frames:
    names = dict.fromkeys(name for segment in segments for name in segment.frames)
    return {name: pl.concat([segment.frames[name] for segment in segments if name in segment.frames]) for name in names}


def _encode(frames: Frames) -> tuple[TableChunk, ...]:
    return tuple(chunk for name, frame in frames.items() for chunk in chunks(name, frame))
