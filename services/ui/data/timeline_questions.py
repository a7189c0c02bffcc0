"""Stretches of a trace's time, what the Timeline page asks of the analyzer about them, and how it understands the answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import polars as pl

from kernalyse.services.core.errors import NotFoundError
from kernalyse.services.core.model import Filter, FilterOperator, SortKey, TableQuery
from kernalyse.services.ui.charts.timeline_rows import LANE
from kernalyse.services.ui.data.client import AnalyzerClient

TEXT: Final = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")
MARGIN_RATIO: Final = 0.25
"""Of the view, on both sides of it: what a tile has beyond it, so that a drag shows something before the next one is there."""

MIN_LENGTH_NS: Final = 20
SHARPNESS_RATIO: Final = 0.7
"""A tile with fewer pixels than that for those of the screen looks coarse."""


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Nanoseconds since the start of the session; the end is after the start."""

    start_ns: int
    end_ns: int

    @classmethod
    def of(cls, text: str) -> Self | None:
        """From "start..end"; None: it is no window."""
        found = TEXT.fullmatch(text)
        if found is None or int(found[2]) <= int(found[1]):
            return None
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.start_ns}..{self.end_ns}"

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns

    def within(self, other: TimeWindow) -> bool:
        return other.start_ns <= self.start_ns and self.end_ns <= other.end_ns

    def clipped(self, other: TimeWindow) -> TimeWindow:
        """The part in the other; where there is none, the other."""
        start, end = max(self.start_ns, other.start_ns), min(self.end_ns, other.end_ns)
        return TimeWindow(start, end) if end > start else other

    def widened(self, ratio: float) -> TimeWindow:
        """By that part of its length on both sides."""
        margin = max(int(self.length_ns * ratio), 1)
        return TimeWindow(self.start_ns - margin, self.end_ns + margin)

    def around(self, start_ns: int, end_ns: int) -> TimeWindow:
        """As long as this one, with that in its middle; longer where it would not fit."""
        length = max(self.length_ns, (end_ns - start_ns) * 2, MIN_LENGTH_NS)
        start = (start_ns + end_ns - length) // 2
        return TimeWindow(start, start + length)


@dataclass(frozen=True, slots=True)
class TileRequest:
    """A window and the pixels that its length is drawn with."""

    window: TimeWindow
    pixel_count: int

    @classmethod
    def for_view(cls, view: TimeWindow, whole: TimeWindow, pixel_count: int) -> Self:
        """pixel_count: of the view."""
        window = view.widened(MARGIN_RATIO).clipped(whole)
        return cls(window, max(1, round(pixel_count * window.length_ns / view.length_ns)))

    @property
    def pixel_ns(self) -> float:
        return self.window.length_ns / self.pixel_count

    def serves(self, view: TimeWindow, whole: TimeWindow, pixel_ns: float) -> bool:
        """Whether the view needs no other tile."""
        return view.clipped(whole).within(self.window) and self.pixel_ns * SHARPNESS_RATIO <= max(pixel_ns, 1.0)


OUTLINE_PIXEL_COUNT: Final = 1_000
MAX_GAP_COUNT: Final = 1_500
MIN_GAP_PX: Final = 4
MAX_DETAILED_COUNT: Final = 4_000
"""Launches and calls whose details are fetched for hovers; where more are in sight a hover tells their name and time."""

MAX_SUMMARY_ROWS: Final = 200
WORKED_OUT_TIMEOUT_S: Final = 900.0
"""Of what the analyzer works out once for a trace: ten million kernels take it half a minute, on a busy machine longer."""

TABLE_OF_TRACK: Final = {"kernels": "kernel_launches", "memory": "memory_ops", "ranges": "ranges", "calls": "api_calls"}
NUMBER_OF_TRACK: Final = {"kernels": "launch_index", "memory": "op_index", "ranges": "range_index", "calls": "call_index"}
GAP_COLUMNS: Final = ("process_id", "device_index", "start_ns", "duration_ns", "reason", "kernel_before", "kernel_after", "call")


@dataclass(frozen=True, slots=True)
class Outline:
    """What is asked of a trace once. tile: all of it, in OUTLINE_PIXEL_COUNT pixels."""

    run_id: str
    tile: pl.DataFrame
    lanes: pl.DataFrame
    devices: pl.DataFrame
    processes: pl.DataFrame

    @property
    def whole(self) -> TimeWindow:
        if self.tile.is_empty():
            return TimeWindow(0, 1)
        start_ns, end_ns = self.tile.select(pl.col("start_ns").min(), end=(pl.col("start_ns") + pl.col("duration_ns")).max()).row(0)
        return TimeWindow(start_ns, max(end_ns, start_ns + 1))


@dataclass(frozen=True, slots=True)
class Tile:
    """rows: of table timeline. is_exact: everything in the window is there one by one."""

    run_id: str
    request: TileRequest
    rows: pl.DataFrame
    is_exact: bool

    def serves(self, run_id: str, view: TimeWindow, whole: TimeWindow, pixel_ns: float) -> bool:
        if self.run_id != run_id:
            return False
        if self.is_exact:
            return view.clipped(whole).within(self.request.window)
        return self.request.serves(view, whole, pixel_ns)


@dataclass(frozen=True, slots=True)
class Match:
    """One event of those whose name was searched. index: among them, from 0; count: of them."""

    index: int
    count: int
    text: str  # see event_of
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Event:
    """One kernel, copy, range or call with all that its table says.

    layer: its name. call: what started it. work: what it started, the first of work_count.
    """

    track: str
    row: dict[str, Any]
    name: str
    layer: str = ""
    call: Event | None = None
    work: Event | None = None
    work_count: int = 0

    @property
    def text(self) -> str:
        """See event_of."""
        return f"{self.track}.{self.row[NUMBER_OF_TRACK[self.track]]}"

    @property
    def other(self) -> Event | None:
        """On the other side of its launch."""
        return self.call or self.work

    @property
    def start_ns(self) -> int:
        return int(self.row["start_ns"])

    @property
    def end_ns(self) -> int:
        return self.start_ns + max(int(self.row["duration_ns"] or 0), 0)


def event_of(text: str) -> tuple[str, int] | None:
    """From "kernels.17": track and row of its table; None: it is no event."""
    track, _, number = text.partition(".")
    return (track, int(number)) if track in TABLE_OF_TRACK and number.isdecimal() and len(number) < 12 else None


class TimelineQuestions:
    """Of one analyzer. Every method raises KernalyseError."""

    def __init__(self, client: AnalyzerClient) -> None:
        self._client = client

    async def outline(self, run_id: str) -> Outline:
        query = TableQuery("timeline", (run_id,), pixel_count=OUTLINE_PIXEL_COUNT)
        tile = (await self._client.table(query, WORKED_OUT_TIMEOUT_S)).rows
        devices, processes = [await self._client.run_table(name, (run_id,)) for name in ("trace_devices", "trace_processes")]
        return Outline(run_id, tile, tile.select(LANE).unique(maintain_order=True), devices, processes)

    async def tile(self, run_id: str, request: TileRequest) -> Tile:
        window = request.window
        query = TableQuery(
            "timeline", (run_id,), window_start_ns=window.start_ns, window_end_ns=window.end_ns, pixel_count=request.pixel_count
        )
        rows = (await self._client.table(query)).rows
        return Tile(run_id, request, rows, rows["row_index"].null_count() == 0)

    async def gaps(self, run_id: str, request: TileRequest) -> pl.DataFrame:
        """Those of the window that are long enough to be seen, longest first."""
        longest_first = (SortKey("duration_ns", True),)
        longest = await self._client.table(
            TableQuery("gaps", (run_id,), limit=1, columns=("duration_ns",), order_by=longest_first), WORKED_OUT_TIMEOUT_S
        )
        reach_ns = int(longest.rows["duration_ns"][0]) if longest.rows.height else 0
        filters = (
            Filter("start_ns", str(request.window.start_ns - reach_ns), FilterOperator.GREATER_EQUAL),
            Filter("start_ns", str(request.window.end_ns), FilterOperator.LESS),
            Filter("duration_ns", str(max(1, int(request.pixel_ns * MIN_GAP_PX))), FilterOperator.GREATER_EQUAL),
        )
        query = TableQuery("gaps", (run_id,), filters=filters, order_by=longest_first, limit=MAX_GAP_COUNT, columns=GAP_COLUMNS)
        found = (await self._client.table(query)).rows
        return found.filter(pl.col("start_ns") + pl.col("duration_ns") > request.window.start_ns)

    async def summary(self, run_id: str, window: TimeWindow) -> pl.DataFrame:
        """Table window_summary: devices, then what took longest."""
        query = TableQuery(
            "window_summary", (run_id,), window_start_ns=window.start_ns, window_end_ns=window.end_ns, limit=MAX_SUMMARY_ROWS
        )
        return (await self._client.table(query, WORKED_OUT_TIMEOUT_S)).rows

    # ------------------------------------------------------------ names

    async def match_count(self, run_id: str, filters: tuple[Filter, ...]) -> int:
        return (await self._client.table(TableQuery("timeline_matches", (run_id,), filters=filters, limit=1))).total_row_count

    async def match_after(self, run_id: str, filters: tuple[Filter, ...], start_ns: int) -> Match | None:
        """The first that starts no earlier; where there is none, the first of all."""
        query = TableQuery("timeline_matches", (run_id,), filters=filters, window_start_ns=start_ns, limit=1)
        found = await self._client.table(query)
        if found.rows.is_empty():
            return await self.match_at(run_id, filters, 0)
        return _match(found.rows, found.rows["match_index"][0] + found.total_row_count)

    async def match_at(self, run_id: str, filters: tuple[Filter, ...], index: int) -> Match | None:
        """The one with that index, counted round and round; None: nothing matches."""
        count = await self.match_count(run_id, filters)
        if count == 0:
            return None
        found = await self._client.table(TableQuery("timeline_matches", (run_id,), filters=filters, offset=index % count, limit=1))
        return _match(found.rows, count)

    async def match_of(self, run_id: str, filters: tuple[Filter, ...], event: Event, row_index: int) -> int | None:
        """Index of an event among those that match."""
        query = TableQuery("timeline_matches", (run_id,), filters=filters, window_start_ns=event.start_ns, window_end_ns=event.start_ns + 1)
        found = (await self._client.table(query)).rows.filter(pl.col("row_index") == row_index, pl.col("track") == event.track)
        return None if found.is_empty() else int(found["match_index"][0])

    # ------------------------------------------------------------ events

    async def event(self, run_id: str, text: str) -> Event:
        """text: see event_of. Raises NotFoundError: there is none of that number."""
        wanted = event_of(text)
        rows = [] if wanted is None else await self._row(run_id, TABLE_OF_TRACK[wanted[0]], wanted[1])
        if wanted is None or not rows or rows[0]["start_ns"] is None:
            raise NotFoundError(f"event {text} of run {run_id}", found="none", expected="a number of one", remedy="Choose one by a click.")
        event = await self._named(run_id, wanted[0], rows[0])
        match event.track:
            case "kernels":
                index = event.row["range_index"]
                layers = [] if index is None else await self._row(run_id, "ranges", index)
                layer = await self._name(run_id, layers[0]["name_index"]) if layers else ""
                return replace(event, layer=layer, call=await self._call_of(run_id, event.row["api_call_index"]))
            case "memory":
                calls, _ = await self._of_correlation(run_id, "api_calls", event.row)
                return replace(event, call=await self._named(run_id, "calls", calls[0]) if calls else None)
            case "calls":
                return await self._with_work(run_id, event)
        return event

    async def _named(self, run_id: str, track: str, row: dict[str, Any]) -> Event:
        if track == "memory":
            return Event(track, row, " ".join(word for word in (row["kind"], row["direction"]) if word))
        return Event(track, row, await self._name(run_id, row["name_index"]))

    async def _call_of(self, run_id: str, index: int | None) -> Event | None:
        rows = [] if index is None else await self._row(run_id, "api_calls", index)
        return await self._named(run_id, "calls", rows[0]) if rows else None

    async def _with_work(self, run_id: str, call: Event) -> Event:
        """With the first kernel that the call launched; it has launched none: the first copy or fill."""
        launched = (Filter("api_call_index", str(call.row["call_index"])),)
        found = await self._client.table(TableQuery("kernel_launches", (run_id,), filters=launched, limit=1))
        track, rows, count = "kernels", found.rows.to_dicts(), found.total_row_count
        if not rows:
            track, (rows, count) = "memory", await self._of_correlation(run_id, "memory_ops", call.row)
        return replace(call, work=await self._named(run_id, track, rows[0]), work_count=count) if rows else call

    async def _of_correlation(self, run_id: str, table_name: str, row: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
        """The first row of the table that bears the same process and correlation id, and how many do."""
        if row["correlation_id"] is None or row["process_id"] is None:
            return [], 0
        filters = tuple(Filter(name, str(row[name])) for name in ("correlation_id", "process_id"))
        found = await self._client.table(TableQuery(table_name, (run_id,), filters=filters, limit=1))
        return found.rows.to_dicts(), found.total_row_count

    async def _row(self, run_id: str, table_name: str, number: int) -> list[dict[str, Any]]:
        return (await self._client.table(TableQuery(table_name, (run_id,), offset=number, limit=1))).rows.to_dicts()

    async def _name(self, run_id: str, number: int | None) -> str:
        rows = [] if number is None else await self._row(run_id, "trace_names", number)
        return str(rows[0]["name"]) if rows else ""

    async def details(self, run_id: str, spans: Sequence[tuple[str, int, int]]) -> dict[str, dict[int, str]]:
        """What a hover tells of launches and calls, by track, by number. spans: see DrawnTile."""
        of_track = {"kernels": self._launch_details, "calls": self._call_details}
        return {track: await of_track[track](run_id, first, last) for track, first, last in spans}

    async def _call_details(self, run_id: str, first: int, last: int) -> dict[int, str]:
        columns = ("call_index", "correlation_id", "return_value")
        query = TableQuery("api_calls", (run_id,), offset=first, limit=last - first + 1, columns=columns)
        rows = (await self._client.table(query)).rows
        return {row["call_index"]: _call_detail(row) for row in rows.iter_rows(named=True)}

    async def _launch_details(self, run_id: str, first: int, last: int) -> dict[int, str]:
        columns = (
            "launch_index",
            "stream_index",
            "correlation_id",
            "range_index",
            *(f"{kind}_{axis}" for kind in ("grid", "block") for axis in "xyz"),
        )
        query = TableQuery("kernel_launches", (run_id,), offset=first, limit=last - first + 1, columns=columns)
        rows = (await self._client.table(query)).rows
        layers = await self._layers(run_id, rows["range_index"].drop_nulls())
        return {row["launch_index"]: _detail(row, layers) for row in rows.to_dicts()}

    async def _layers(self, run_id: str, range_index: pl.Series) -> dict[int, str]:
        """Names of ranges by number, where they lie close enough to each other to be fetched together."""
        first, last = (range_index.min(), range_index.max()) if range_index.len() else (0, -1)
        if not isinstance(first, int) or not isinstance(last, int) or not 0 <= last - first <= 4 * MAX_DETAILED_COUNT:
            return {}
        query = TableQuery("ranges", (run_id,), offset=first, limit=last - first + 1, columns=("range_index", "name_index"))
        ranges = (await self._client.table(query)).rows.filter(pl.col("range_index").is_in(range_index.unique().implode()))
        numbers = ranges["name_index"].unique().to_list()
        names = dict(zip(numbers, await asyncio.gather(*(self._name(run_id, number) for number in numbers[:64])), strict=False))
        return {number: names.get(name, "") for number, name in ranges.select("range_index", "name_index").iter_rows()}


def _match(rows: pl.DataFrame, count: int) -> Match:
    row = rows.row(0, named=True)
    return Match(
        row["match_index"], count, f"{row['track']}.{row['row_index']}", row["start_ns"], row["start_ns"] + max(row["duration_ns"], 0)
    )


def _call_detail(row: dict[str, Any]) -> str:
    parts = [f"correlation {row['correlation_id']}"] if row["correlation_id"] is not None else []
    return " · ".join(parts if row["return_value"] is None else [*parts, f"returned {row['return_value']}"])


def _detail(row: dict[str, Any], layers: dict[int, str]) -> str:
    parts = [f"stream {row['stream_index']}"] if row["stream_index"] is not None else []
    for kind in ("grid", "block"):
        if row[f"{kind}_x"] is not None:
            parts.append(f"{kind} " + "×".join(str(row[f"{kind}_{axis}"] or 1) for axis in "xyz"))
    if row["correlation_id"] is not None:
        parts.append(f"correlation {row['correlation_id']}")
    layer = layers.get(row["range_index"], "")
    return " · ".join([*parts, f"in {layer}"] if layer else parts)
