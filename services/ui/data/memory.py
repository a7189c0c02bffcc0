"""What the dashboard has received, kept so that a new page starts at once and a slow one catches up.

One thread writes (the client's), another reads (the pages'); each object has a lock that is held for list work only.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import polars as pl

from kernalyse.services.core.model import HardwareKey, NodeStatus, NodeTelemetry, Run, Telemetry
from kernalyse.services.core.telemetry_history import TelemetryHistory
from kernalyse.services.ui.data.sample_strips import NOTHING_DRAWN, LayerChange, LayerPosition, SampleStrips

Made = TypeVar("Made")

REMEMBERED_COUNT: Final = 128
"""Pages of one run are a few updates apart at most, and an update makes about ten things."""


class MadeOnce:
    """The newest results by what they were made of. For one thread: that of the pages.

    Args:
        remembered_count: results kept; a few of what is made of all rows, else a long run would be held a hundred times over.
    """

    def __init__(self, remembered_count: int = REMEMBERED_COUNT) -> None:
        self._remembered_count = remembered_count
        self._made: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """key: of everything that the result depends on. Nobody changes the result."""
        if key not in self._made:
            self._made[key] = make()
            if len(self._made) > self._remembered_count:
                self._made.popitem(last=False)
        return cast(Made, self._made[key])


ROW_LIMITS: Final[dict[str, int]] = {"telemetry": 20_000, "log_lines": 5_000}
"""Newest rows kept of a table that grows without end. Of samples only what is drawn is kept (see SampleStrips)."""

MAX_FRAMES: Final = 64
"""Frames of a table before half of them are joined into one. A frame of one row and fifty columns takes 27 KB."""


FIRST_RUN_COUNT: Final = 100
"""Of a stream's first response, see WatchNodes; where it tells of fewer runs there are no others."""


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows after a position. frame: None when there are none. is_restart: rows in between are gone, start over."""

    frame: pl.DataFrame | None
    begin: int
    position: int
    is_restart: bool = False

    @property
    def span(self) -> tuple[int, int]:
        """Positions before and after."""
        return self.begin, self.position


class TableMemory:
    """The newest rows of one table, in order of arrival. A position counts the rows that ever arrived before it."""

    def __init__(self, row_limit: int | None = None) -> None:
        self._row_limit = row_limit
        self._frames: deque[pl.DataFrame] = deque()
        self._end = 0
        self._kept = 0
        self._newest: NewRows | None = None  # pages ask for the same rows one after the other

    @property
    def dropped_row_count(self) -> int:
        return self._end - self._kept

    def append(self, frame: pl.DataFrame) -> None:
        if frame.is_empty():
            return
        self._frames.append(frame)
        self._end += frame.height
        self._kept += frame.height
        while self._row_limit is not None and len(self._frames) > 1 and self._kept - self._frames[0].height >= self._row_limit:
            self._kept -= self._frames.popleft().height
        if len(self._frames) > MAX_FRAMES:
            # The newer half stays in pieces, so that dropping old rows still drops little at a time.
            older = [self._frames.popleft() for _ in range(MAX_FRAMES // 2)]
            self._frames.appendleft(pl.concat(older, how="vertical_relaxed", rechunk=True))  # else they all stay as they were

    def replace(self, frame: pl.DataFrame) -> None:
        """Other rows in the place of all: who has read some starts over."""
        self._frames.clear()
        self._newest, self._kept = None, 0
        self._end += 1  # a place that nobody can have read up to, even where there are no rows
        self.append(frame)

    def since(self, position: int) -> NewRows:
        """Rows from the position on."""
        if position >= self._end:
            return NewRows(None, position, self._end)
        if self._newest is None or self._newest.span != (position, self._end):
            self._newest = self._rows_since(position)
        return self._newest

    def _rows_since(self, position: int) -> NewRows:
        is_restart = 0 < position < self.dropped_row_count
        wanted = self._end - max(position, self.dropped_row_count)
        if not wanted:
            return NewRows(None, position, self._end, is_restart)
        pieces: list[pl.DataFrame] = []
        missing = wanted
        for frame in reversed(self._frames):
            pieces.append(frame.tail(missing) if frame.height > missing else frame)
            missing -= pieces[-1].height
            if missing <= 0:
                break
        return NewRows(pl.concat(reversed(pieces), how="vertical_relaxed"), position, self._end, is_restart)

    def all(self) -> pl.DataFrame | None:
        return self.since(0).frame


@dataclass(frozen=True, slots=True)
class StripsPosition:
    """How far a page has drawn the strips."""

    live: LayerPosition = NOTHING_DRAWN
    finished: LayerPosition = NOTHING_DRAWN


@dataclass(frozen=True, slots=True)
class StripsChange:
    """What a page has to draw anew of the strips; None: the layer stays as it is."""

    live: LayerChange | None
    finished: LayerChange | None
    position: StripsPosition
    sample_count: int
    drawn_count: int


class RunMemory:
    """One run as WatchRun has told it so far."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.lock = threading.Lock()
        self._run: Run | None = None
        self._problem = ""
        self._tables: dict[str, TableMemory] = {}
        self._strips = SampleStrips()
        self._configuration_count = 0
        self.next_event_index = 0
        self.is_complete = False
        self.state_count = 0  # other for another state of what the run was read from
        self.made = MadeOnce()  # of its new rows, by the pages
        self.made_of_all = MadeOnce(4)  # of all its rows, by the pages

    def receive(self, run: Run | None, frames: dict[str, pl.DataFrame], next_event_index: int) -> None:
        with self.lock:
            self._run = run or self._run
            self._problem = ""
            self.next_event_index = max(self.next_event_index, next_event_index)
            for name, frame in frames.items():
                if name != "samples":
                    self._table(name).append(frame)
            self._extend_strips(frames)

    def _extend_strips(self, frames: dict[str, pl.DataFrame]) -> None:
        if "configurations" in frames:
            self._configuration_count += frames["configurations"].height
        if "samples" in frames:
            self._strips.add(frames["samples"])
        for name in ("measurements", "failures"):
            if name in frames:
                self._strips.finish(frames[name]["configuration_index"].to_list(), self._configuration_count)

    @property
    def strip_step(self) -> int:
        """One strip of so many is drawn."""
        return self._strips.strip_step

    def strips_since(self, position: StripsPosition) -> StripsChange:
        with self.lock:
            live, live_position = self._strips.live.since(position.live)
            finished, finished_position = self._strips.finished.since(position.finished)
            now = StripsPosition(live_position, finished_position)
            return StripsChange(live, finished, now, self._strips.sample_count, self._strips.drawn_count)

    def replace(self, frames: dict[str, pl.DataFrame], next_event_index: int) -> None:
        """Tables worked out anew, when everything before next_event_index had arrived; what has come since stays."""
        with self.lock:
            self._problem = ""
            for name, frame in frames.items():
                known = self._table(name).all()
                later = frame.clear() if known is None else known.filter(pl.col("event_index") >= next_event_index)
                self._table(name).replace(pl.concat([frame, later], how="vertical_relaxed"))

    def end(self, problem: str) -> None:
        """There is no such run any more. problem: why, one sentence."""
        self.start_over()
        with self.lock:
            self._problem = problem
            self.is_complete = True

    def start_over(self) -> None:
        """Another state of what the run was read from takes its place: its rows come again, all of them."""
        with self.lock:
            for table in self._tables.values():
                table.replace(pl.DataFrame())
            self._run, self._problem = None, ""
            self._strips, self._configuration_count = SampleStrips(), 0
            self.next_event_index, self.is_complete = 0, False
            self.state_count += 1

    def fail(self, problem: str) -> None:
        with self.lock:
            self._problem = problem

    @property
    def run(self) -> Run | None:
        return self._run

    @property
    def hardware_keys(self) -> set[HardwareKey]:
        """Of the devices that its points are held against: those of its node, and those that it alone knows."""
        with self.lock:
            run, ceilings = self._run, self._table("roofline").all()
        of_run = () if ceilings is None else ceilings["device_id"].drop_nulls().unique().to_list()
        devices = {*of_run, *([run.device_id] if run is not None and run.device_id is not None else [])}
        owners = [("", self.run_id), *([(run.node_id, "")] if run is not None and run.node_id else [])]
        return {HardwareKey(node_id, device_id, run_id) for device_id in devices for node_id, run_id in owners}

    @property
    def problem(self) -> str:
        """Why nothing more arrives, one sentence. Empty: it does."""
        return self._problem

    def since(self, table_name: str, position: int) -> NewRows:
        with self.lock:
            return self._table(table_name).since(position)

    def table(self, table_name: str) -> pl.DataFrame | None:
        return self.since(table_name, 0).frame

    def _table(self, name: str) -> TableMemory:
        return self._tables.setdefault(name, TableMemory(ROW_LIMITS.get(name)))


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """The nodes and runs at one moment. runs: newest first. problem: why the analyzer does not answer, or empty.

    progress_unix_s: when each run's count of completed configurations was last seen to change, by run_id.
    """

    nodes: tuple[NodeStatus, ...] = ()
    runs: tuple[Run, ...] = ()
    problem: str = ""
    is_known: bool = False  # the first answer has come
    revision: int = 0  # counts up when the same questions have other answers: by ceilings, thresholds, other rows, or a new stream
    progress_unix_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def reach(self) -> Hashable:
        """Changes when the analyzer or a node is there again, which may answer what could not be answered."""
        return (self.revision, *((status.address, status.health) for status in self.nodes))


@dataclass(slots=True)
class NodesMemory:
    """All nodes and runs as WatchNodes has told them so far."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    _nodes: dict[str, NodeStatus] = field(default_factory=dict)
    _runs: dict[str, Run] = field(default_factory=dict)
    _telemetry: TelemetryHistory = field(default_factory=TelemetryHistory)
    _revision: int = 0
    _problem: str = ""
    _is_known: bool = False
    _progress_unix_s: dict[str, float] = field(default_factory=dict)
    _overview: Overview | None = None  # None: something has changed since the last one

    def receive(
        self, nodes: tuple[NodeStatus, ...], runs: tuple[Run, ...], telemetry: tuple[NodeTelemetry, ...], is_first: bool
    ) -> tuple[str, ...]:
        """Answers with runs that were deleted while no stream told of it.

        Args:
            is_first: a new stream's first response, which holds every node and the newest runs.
        """
        with self.lock:
            if nodes or runs or is_first or self._problem:
                self._overview = None
            self._problem, self._is_known = "", True
            gone = self._missing_among(runs) if is_first else ()
            if is_first:
                self._nodes.clear()
            self._nodes.update((node.address, node) for node in nodes)
            for run in runs:
                self._receive_run(run)
            for reading in telemetry:
                self._telemetry.add(reading)
        return gone

    def _receive_run(self, run: Run) -> None:
        known = self._runs.get(run.run_id)
        if run.state.is_final:
            self._progress_unix_s.pop(run.run_id, None)
        elif known is None or known.completed_configuration_count != run.completed_configuration_count:
            self._progress_unix_s[run.run_id] = time.time()
        self._runs[run.run_id] = run

    def _missing_among(self, newest: tuple[Run, ...]) -> tuple[str, ...]:
        """Runs that would be among the newest if they were still there."""
        told = {run.run_id for run in newest}
        oldest = min((run.create_time for run in newest), default=None) if len(newest) >= FIRST_RUN_COUNT else None
        known = (run for run in self._runs.values() if run.run_id not in told)
        return tuple(run.run_id for run in known if oldest is None or run.create_time > oldest)

    def forget(self, address: str) -> None:
        """The node has been removed."""
        with self.lock:
            self._overview = None
            self._nodes.pop(address, None)

    def forget_run(self, run_id: str) -> None:
        """The run has been deleted."""
        with self.lock:
            self._overview = None
            self._runs.pop(run_id, None)
            self._progress_unix_s.pop(run_id, None)

    def count_up(self) -> None:
        """Questions that were answered have other answers from now on."""
        with self.lock:
            self._overview = None
            self._revision += 1

    def fail(self, problem: str) -> None:
        with self.lock:
            self._overview = None
            self._problem = problem

    def overview(self) -> Overview:
        """The same object as long as nothing has changed."""
        with self.lock:
            if self._overview is None:
                runs = sorted(self._runs.values(), key=lambda run: run.create_time, reverse=True)
                told = (tuple(self._nodes.values()), tuple(runs), self._problem, self._is_known, self._revision)
                self._overview = Overview(*told, progress_unix_s=dict(self._progress_unix_s))
            return self._overview

    def newest_telemetry(self, node_id: str) -> tuple[Telemetry, ...]:
        """The last reading of the host and of each device."""
        with self.lock:
            found = (self._telemetry.newest(node_id, device_id) for device_id in self._telemetry.device_ids(node_id))
            return tuple(reading.telemetry for reading in found if reading is not None)

    def telemetry(self, node_id: str) -> tuple[Telemetry, ...]:
        """Of the last hour, in order of time within each device."""
        with self.lock:
            return tuple(reading.telemetry for reading in self._telemetry.readings(node_id))
