"""The rows of a timeline and how they look: devices with streams, threads with ranges and calls, gaps, their colours and names."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from kernalyse.services.ui.charts.elements import Columns, text_column
from kernalyse.services.ui.theme import Palette

CATEGORIES: Final = ("matmul", "attention", "convolution", "normalization", "elementwise", "copy", "communication", "other")
PATTERNS: Final = (None, "/", "\\", "-", ".", "|", "x", None)
PATTERN_SYMBOLS: Final = ("■", "▨", "▧", "▤", "▒", "▥", "▩", "□")
"""For each of CATEGORIES: of wide bars, and in the legend."""

CATEGORY_OF_WORD: Final[dict[str, str]] = {
    "softmax": "normalization",
    "pooling": "normalization",
    "reduction": "normalization",
    "loss": "normalization",
    "mixture of experts": "matmul",
    "fft": "convolution",
    "position embedding": "elementwise",
    "quantization": "elementwise",
    "optimizer": "elementwise",
    "random number": "elementwise",
    "indexing": "copy",
    "sort": "copy",
}
"""Words of table timeline that are no category of the chart's own: it has no more colours than can be told apart."""

CATEGORY_TITLES: Final[dict[str, str]] = {
    "normalization": "normalization, reduction",
    "copy": "copy, indexing",
    "elementwise": "elementwise",
}

REASONS: Final = ("memory", "sync", "api_call", "host_busy", "launch_latency", "unknown")
REASON_PATTERNS: Final = ("|", "x", "/", "-", ".", None)
HATCHES: Final = ("/", "\\", "-", ".", "|", "x")
"""A layer for each: the browser makes a pattern anew for every bar where the bars of one layer have several (7 ms each)."""

REASON_SYMBOLS: Final = ("▥", "▩", "▨", "▤", "▒", "□")
REASON_TITLES: Final[dict[str, str]] = {
    "memory": "copying",
    "sync": "host waited",
    "api_call": "host in calls",
    "host_busy": "host busy",
    "launch_latency": "launch latency",
    "unknown": "not known why",
}


def codes_of(palette: Palette) -> list[str]:
    """Colours by code: categories, then ranges of even and odd depth, then what a search or a filter leaves out."""
    return [*palette.series[: len(CATEGORIES) - 1], palette.muted, palette.muted, palette.muted, palette.grid]


RANGE_CODE: Final = len(CATEGORIES)
MUTED_CODE: Final = RANGE_CODE + 2


def category_code(word: str | None) -> int:
    category = CATEGORY_OF_WORD.get(word or "", word or "other")
    return CATEGORIES.index(category) if category in CATEGORIES else CATEGORIES.index("other")


def name_code(name: str) -> int:
    """The same in every trace, so that a kernel keeps its colour from one run to the next."""
    return zlib.crc32(name.encode()) % (len(CATEGORIES) - 1)


_HIDDEN: Final = re.compile(r"\(anonymous namespace\)::|<?unnamed>::|^void\s+")


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces, arguments: what there is room for in a bar. Other names stay."""
    plain = _HIDDEN.sub("", name)
    head = re.split(r"[<(]", plain, maxsplit=1)[0]
    if head == plain or " " in head.strip():
        return plain.strip()
    return head.rpartition("::")[2] or plain


@dataclass(frozen=True, slots=True)
class Looks:
    """by_name: kernels are coloured by name, else by category. part: of names, or one in quotes; others are drawn muted. Empty: none is.

    hidden: codes of categories without bars.
    """

    by_name: bool = False
    part: str = ""
    hidden: frozenset[int] = frozenset()


def reason_colors(palette: Palette) -> tuple[str, ...]:
    return *(palette.series[place] for place in (5, 1, 3, 2, 4)), palette.muted


def category_title(category: str) -> str:
    return CATEGORY_TITLES.get(category, category)


def gap_title(reason: str) -> str:
    return f"gap: {REASON_TITLES[reason]}"


def legend_entries(palette: Palette, reasons: Collection[str], *, by_name: bool = False) -> list[tuple[str, str, str]]:
    """Name, colour and character of categories of kernels, unless these are coloured by name, and of those reasons that occur."""
    colors, gap_colors = codes_of(palette), reason_colors(palette)
    categories = [(category_title(category), colors[code], PATTERN_SYMBOLS[code]) for code, category in enumerate(CATEGORIES)]
    gaps = [(gap_title(reason), gap_colors[code], REASON_SYMBOLS[code]) for code, reason in enumerate(REASONS) if reason in reasons]
    return gaps if by_name else categories + gaps


LANE: Final = ("track", "process_id", "device_index", "stream_index", "thread_id", "depth")
"""What tells the lanes of table timeline apart."""

MAX_OPEN_ROW_COUNT: Final = 44
"""Threads past it are folded until somebody opens them: more rows do not fit on a screen."""

QUAD: Final = ("left", "bottom", "right", "top")
BAR: Final = (0.12, 0.88)
"""Of a row's height, from its top."""

TRACKS: Final = {"kernels": 0, "memory": 1, "ranges": 2, "calls": 3}
TRACK_TITLES: Final = {"kernels": "kernels", "memory": "copies", "calls": "API calls"}
DEVICE_TRACKS: Final = ("kernels", "memory")


@dataclass(frozen=True, slots=True)
class Row:
    """group_id: set where it heads a group, which its button folds."""

    title: str
    is_head: bool
    group_id: str = ""
    is_folded: bool = False


@dataclass(frozen=True, slots=True)
class TimelineRows:
    """rows: from the top. places: lanes with the row that they are drawn in; lanes that are folded away are not in it.

    device_rows: the head of each process and device, where its gaps are drawn. thread_rows: the head of each process and thread;
    call_rows: where its calls are drawn, if they are folded away its head.
    """

    rows: tuple[Row, ...]
    places: pl.DataFrame
    device_rows: dict[tuple[int | None, int | None], int]
    thread_rows: dict[tuple[int | None, int | None], int]
    call_rows: dict[tuple[int | None, int | None], int]


@dataclass(frozen=True, slots=True)
class _Group:
    group_id: str
    title: str
    lanes: tuple[dict[str, Any], ...]
    is_device: bool
    key: tuple[int | None, int | None]

    @property
    def open_row_count(self) -> int:
        """A device has a row of its own over its streams; the head of a thread is its outermost ranges, without any its calls."""
        return len(self.lanes) + self.is_device


def timeline_rows(lanes: pl.DataFrame, devices: pl.DataFrame, processes: pl.DataFrame, toggled: Collection[str] = ()) -> TimelineRows:
    """Which lane is drawn in which row.

    Args:
        lanes: columns LANE, a row for each lane of the trace.
        devices, processes: of tables trace_devices and trace_processes.
        toggled: groups that somebody folded, or opened where they are folded by themselves.
    """
    rows: list[Row] = []
    places: list[dict[str, Any]] = []
    heads: dict[bool, dict[tuple[int | None, int | None], int]] = {True: {}, False: {}}
    open_row_count = 0
    for group in _groups(lanes, devices, processes):
        is_small = open_row_count + group.open_row_count <= MAX_OPEN_ROW_COUNT
        is_folded = (is_small or group.is_device) == (group.group_id in toggled)
        open_row_count += 1 if is_folded else group.open_row_count
        head = len(rows)
        heads[group.is_device][group.key] = head
        rows.append(Row(group.title, True, group.group_id if len(group.lanes) > 1 or group.is_device else "", is_folded))
        for place, lane in enumerate(group.lanes):
            if is_folded:
                if lane["track"] == "kernels" or (not group.is_device and place == 0):
                    places.append(lane | {"row": head})
            elif not group.is_device and place == 0:
                places.append(lane | {"row": head})
            else:
                places.append(lane | {"row": len(rows)})
                rows.append(Row(_title(lane), False))
    schema: dict[str, Any] = {**{name: lanes.schema[name] for name in LANE}, "row": pl.Int32}
    call_rows = heads[False] | {(place["process_id"], place["thread_id"]): place["row"] for place in places if place["track"] == "calls"}
    return TimelineRows(tuple(rows), pl.DataFrame(places, schema=schema), heads[True], heads[False], call_rows)


def _title(lane: dict[str, Any]) -> str:
    if lane["track"] == "calls":
        return TRACK_TITLES["calls"]
    if lane["track"] == "ranges":
        return f"depth {lane['depth']}" if lane["depth"] is not None else "ranges"
    stream = "no stream" if lane["stream_index"] is None else f"stream {lane['stream_index']}"
    return f"{stream} · {TRACK_TITLES[lane['track']]}"


def _groups(lanes: pl.DataFrame, devices: pl.DataFrame, processes: pl.DataFrame) -> list[_Group]:
    """Process by process in order of rank: devices first, then threads, those with most nested ranges first."""
    device_names = {(row["process_id"], row["device_index"]): row["device_name"] for row in devices.to_dicts()}
    process_of = {row["process_id"]: row for row in processes.to_dicts()}
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for lane in lanes.select(LANE).to_dicts():
        is_device = lane["track"] in DEVICE_TRACKS
        found.setdefault((is_device, lane["process_id"], lane["device_index"] if is_device else lane["thread_id"]), []).append(lane)
    process_count = len({process_id for _, process_id, _ in found})

    def order(entry: tuple[tuple[Any, ...], list[dict[str, Any]]]) -> tuple[Any, ...]:
        (is_device, process_id, number), of_group = entry
        rank = process_of.get(process_id, {}).get("rank_index")
        small = -1 if number is None else number
        return rank is None, rank, process_id is None, process_id, not is_device, 0 if is_device else -len(of_group), small

    groups = []
    for (is_device, process_id, number), of_group in sorted(found.items(), key=order):
        within = sorted(of_group, key=lambda lane: (lane["stream_index"] or 0, TRACKS[lane["track"]], lane["depth"] or 0))
        of_process = "" if process_count < 2 else f" · {_process_title(process_id, process_of.get(process_id, {}))}"
        if is_device:
            name = device_names.get((process_id, number)) or ""
            is_cpu = name.startswith("CPU")  # a program without a GPU: its operators stand where kernels would
            kind = "CPU" if is_cpu else "Device" if number is None else f"GPU {number}"
            title = kind + of_process + (f" · {name}" if name not in ("", kind) else "")
        else:
            title = "Ranges" if number is None else f"Thread {number}"
            if within[0]["track"] == "calls":
                title += f" · {TRACK_TITLES['calls']}"
            title += of_process
        group_id = f"{'d' if is_device else 't'}{process_id}.{number}"
        groups.append(_Group(group_id, title, tuple(within), is_device, (process_id, number)))
    return groups


def _process_title(process_id: int | None, process: dict[str, Any]) -> str:
    if process.get("rank_index") is not None:
        return f"rank {process['rank_index']}"
    system_id = process.get("system_process_id")
    return f"process {process_id if system_id is None else system_id}"


GAP_NUMBERS: Final = (*QUAD, "color", "start", "duration")
GAP_TEXTS: Final = ("reason", "before", "after", "call")


def gap_columns(gaps: pl.DataFrame, rows: TimelineRows) -> Columns:
    """Gaps in the row of their device. gaps: rows of table gaps."""
    row_of = [rows.device_rows.get(key) for key in zip(gaps["process_id"], gaps["device_index"], strict=True)]
    kept = gaps.filter(pl.Series([row is not None for row in row_of], dtype=pl.Boolean))
    row = np.array([row for row in row_of if row is not None], dtype=np.float64)
    reasons = [REASONS.index(reason) if reason in REASONS else len(REASONS) - 1 for reason in kept["reason"].to_list()]
    start_ns = kept["start_ns"].to_numpy().astype(np.float64)
    duration_ns = kept["duration_ns"].to_numpy().astype(np.float64)

    def text(name: str) -> Any:
        return text_column(short_name(value) if value else "–" for value in kept[name].to_list())

    return {
        "left": start_ns,
        "right": start_ns + duration_ns,
        "bottom": row + BAR[1],
        "top": row + BAR[0],
        "color": np.array(reasons, dtype=np.int32),
        "start": start_ns,
        "duration": duration_ns,
        "reason": text_column(REASON_TITLES[REASONS[code]] for code in reasons),
        "before": text("kernel_before"),
        "after": text("kernel_after"),
        "call": text("call"),
    }
