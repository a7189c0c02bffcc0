"""A stretch of a trace: kernels, copies, ranges and calls one by one where there are few, how busy each pixel is where there are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import holoviews as hv
import numpy as np
import numpy.typing as npt
import polars as pl
from bokeh.models import ColumnDataSource, CustomJSHover, HoverTool

from kernalyse.services.ui.charts.elements import Columns, Hatched, empty_columns, frame_options, text_column, tick_formatter
from kernalyse.services.ui.charts.timeline_rows import (
    BAR,
    DEVICE_TRACKS,
    GAP_NUMBERS,
    GAP_TEXTS,
    HATCHES,
    LANE,
    MUTED_CODE,
    PATTERNS,
    QUAD,
    RANGE_CODE,
    REASON_PATTERNS,
    REASONS,
    Looks,
    TimelineRows,
    category_code,
    codes_of,
    name_code,
    reason_colors,
    short_name,
)
from kernalyse.services.ui.data.filters import is_wanted
from kernalyse.services.ui.theme import Palette

ROW_PX: Final = 24
WIDE_PX: Final = 5
"""What is narrower has neither a pattern nor an outline: these would be all that is seen of it."""

LABEL_PX: Final = 34
CHARACTER_PX: Final = 6.3
"""Of the names' font, on average: a longer name is cut."""

_SHAPE: Final = (*QUAD, "color", "fill_alpha", "name", "row", "start", "duration")
PIXEL_NUMBERS: Final = (*_SHAPE, "busy", "begun")
EVENT_NUMBERS: Final = _SHAPE
EVENT_TEXTS: Final = ("detail",)
DETAILED: Final = ("kernels", "calls")
"""Tracks whose hovers tell more than name and time."""

LABEL_NUMBERS: Final = ("x", "y")
LABEL_TEXTS: Final = ("text",)
LINK_NUMBERS: Final = ("x0", "y0", "x1", "y1")
LAYERS: Final = ("gaps", "pixels", "events", *HATCHES, "names", "links", "chosen", "stretch")
NO_COLUMNS: Final[dict[str, Columns]] = {layer: empty_columns(QUAD) for layer in (*HATCHES, "chosen", "stretch")} | {
    "gaps": empty_columns(GAP_NUMBERS, GAP_TEXTS),
    "pixels": empty_columns(PIXEL_NUMBERS),
    "events": empty_columns(EVENT_NUMBERS, EVENT_TEXTS),
    "names": empty_columns(LABEL_NUMBERS, LABEL_TEXTS),
    "links": empty_columns(LINK_NUMBERS),
}
"""Of a chart that shows nothing, by layer."""

_DURATION_JS: Final = """
const size = Math.abs(value)
const [factor, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"]
return String(parseFloat((value / factor).toPrecision(4))) + " " + unit
"""
_MOMENT_JS: Final = """
const digits = Math.round(value).toString().replace(/\\B(?=(\\d{3})+$)/g, "\\u202f")
return digits + " ns"
"""
TIME_TICKS: Final = """
const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : Math.abs(tick) || 1
const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]
const [factor, unit] = units.find(([size]) => step >= size * 0.0009) ?? [1, "ns"]
const places = Math.min(3, Math.max(0, Math.ceil(-Math.log10(step / factor) - 1e-6)))
const [whole, rest] = (tick / factor).toFixed(places).split(".")
return whole.replace(/\\B(?=(\\d{3})+$)/g, "\\u202f") + (rest ? "." + rest : "") + " " + unit
"""
"""As many digits as tell two neighbours apart, however far into the session they are."""


# ---------------------------------------------------------------- columns


@dataclass(frozen=True, slots=True)
class DrawnTile:
    """placed: rows of the tile with the row that each is drawn in, for clicks. names: by the codes of column name.

    numbers: of each of events, by track of DETAILED: launch_index or call_index, -1 of what is of another track.
    """

    pixels: Columns
    events: Columns
    names: tuple[str, ...]
    placed: pl.DataFrame
    numbers: Mapping[str, npt.NDArray[np.int32]]

    def spans(self, max_length: int) -> tuple[tuple[str, int, int], ...]:
        """Track, first and last number of those that are of one, where there are at most so many from one to the other."""
        known = ((track, numbers[numbers >= 0]) for track, numbers in self.numbers.items())
        return tuple((track, int(of.min()), int(of.max())) for track, of in known if of.size and int(np.ptp(of)) < max_length)


def no_tile() -> DrawnTile:
    return DrawnTile(NO_COLUMNS["pixels"], NO_COLUMNS["events"], (), pl.DataFrame(), {})


def no_gaps() -> Columns:
    return NO_COLUMNS["gaps"]


@dataclass(frozen=True, slots=True)
class HoverTexts:
    """By the codes of columns name and row."""

    names: Sequence[str] = ()
    rows: Sequence[str] = ()


NO_TEXTS: Final = HoverTexts()


def drawn_tile(tile: pl.DataFrame, rows: TimelineRows, looks: Looks, pixel_ns: float) -> DrawnTile:
    """Bars of a tile.

    Args:
        tile: rows of table timeline.
        pixel_ns: length of a pixel on the screen; what is shorter is drawn as wide as one.
    """
    placed = _shown(tile, looks).join(rows.places, on=LANE, how="inner", nulls_equal=True, maintain_order="left")
    if placed.is_empty():
        return no_tile()
    name_codes, names = _coded(placed["name"])
    placed = placed.with_columns(name_code=name_codes)
    colors = _colors(placed, names, looks)
    is_pixel = placed["row_index"].is_null().to_numpy()
    duration_ns = placed["duration_ns"].to_numpy().astype(np.float64)
    is_wide = ~is_pixel & (duration_ns >= WIDE_PX * pixel_ns)
    start_ns = placed["start_ns"].to_numpy().astype(np.float64)
    row = placed["row"].to_numpy().astype(np.float64)
    height = np.where(is_pixel, np.clip(placed["busy_ratio"].to_numpy(), 0.0, 1.0), 1.0) * (BAR[1] - BAR[0])
    track = placed["track"].to_numpy()
    shape: Columns = {
        "left": start_ns,
        "right": start_ns + np.maximum(duration_ns, pixel_ns),
        "bottom": row + BAR[1],
        "top": row + BAR[1] - np.maximum(height, 0.08),
        "color": colors,
        "fill_alpha": np.select(
            [track == "ranges", track == "calls"], [np.where(placed["depth"].fill_null(0).to_numpy() % 2, 0.24, 0.38), 0.55], 0.75
        ),
        "name": placed["name_code"].to_numpy(),
        "row": row.astype(np.int32),
        "start": start_ns,
        "duration": duration_ns,
    }
    pixels = {name: column[~is_wide] for name, column in shape.items()}
    pixels["busy"] = placed["busy_ratio"].to_numpy()[~is_wide] * 100
    pixels["begun"] = placed["begun_count"].to_numpy()[~is_wide]
    events = {name: column[is_wide] for name, column in shape.items()}
    events["detail"] = text_column([""] * len(events["left"]))
    row_index = placed["row_index"].fill_null(-1).to_numpy()
    numbers = {name: np.where(track == name, row_index, -1).astype(np.int32)[is_wide] for name in DETAILED}
    return DrawnTile(pixels, events, tuple(names.to_list()), placed, numbers)


def _shown(tile: pl.DataFrame, looks: Looks) -> pl.DataFrame:
    """Without kernels and copies of hidden categories; what threads did has none."""
    if not looks.hidden:
        return tile
    hidden = [word for word in tile["category"].unique().to_list() if category_code(word) in looks.hidden]
    return tile.filter(~pl.col("track").is_in(DEVICE_TRACKS) | ~pl.col("category").is_in(hidden, nulls_equal=True))


def _coded(texts: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Each text once, and its place there for each row."""
    known = texts.fill_null("")
    once = known.unique(maintain_order=True)
    return known.cast(pl.Enum(once)).to_physical().cast(pl.Int32), once


def _colors(placed: pl.DataFrame, names: pl.Series, looks: Looks) -> Any:
    """A code of codes_of for each row."""
    word_codes, words = _coded(placed["category"])
    codes = np.array([category_code(word) for word in words.to_list()], dtype=np.int32)[word_codes.to_numpy()]
    name = placed["name_code"].to_numpy()
    if looks.by_name:
        codes = np.array([name_code(text) for text in names.to_list()], dtype=np.int32)[name]
    else:
        codes = np.where(placed["track"].is_in(DEVICE_TRACKS).to_numpy(), codes, RANGE_CODE)
    if looks.part:
        is_left_out = ~is_wanted(names, looks.part).to_numpy()
        codes = np.where(is_left_out[name], MUTED_CODE, codes)
    return codes.astype(np.int32)


def label_columns(drawn: DrawnTile, view_start_ns: float, view_end_ns: float, pixel_ns: float) -> Columns:
    """Names within the bars that have room for them, from where the bar is first seen."""
    events = drawn.events
    left, right = np.maximum(events["left"], view_start_ns), np.minimum(events["right"], view_end_ns)
    room_px = (right - left) / pixel_ns
    shown = np.flatnonzero(room_px >= LABEL_PX)
    short = {code: short_name(drawn.names[code]) for code in set(events["name"][shown].tolist())}
    texts = [_cut(short[code], int((room - 6) / CHARACTER_PX)) for code, room in zip(events["name"][shown], room_px[shown], strict=True)]
    return {
        "x": left[shown] + 3 * pixel_ns,
        "y": (events["bottom"][shown] + events["top"][shown]) / 2,
        "text": text_column(texts),
    }


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(length - 1, 1)] + "…"


def hatch_columns(drawn: DrawnTile, gaps: Columns, looks: Looks) -> dict[str, Columns]:
    """Patterns of wide bars by their category, and of gaps by their reason: what lies over them in each layer of HATCHES."""
    found: dict[str, Columns] = {}
    for hatch in HATCHES:
        codes = [code for code, pattern in enumerate(PATTERNS) if pattern == hatch and not looks.by_name]
        reasons = [code for code, pattern in enumerate(REASON_PATTERNS) if pattern == hatch]
        of_events, of_gaps = np.isin(drawn.events["color"], codes), np.isin(gaps["color"], reasons)
        found[hatch] = {name: np.concatenate([drawn.events[name][of_events], gaps[name][of_gaps]]) for name in QUAD}
    return found


def with_details(drawn: DrawnTile, details: Mapping[str, Mapping[int, str]]) -> Columns:
    """Its events, with what hovers tell of launches and calls. details: by track, by number of it."""
    texts = [""] * len(drawn.events["left"])
    for track, numbers in drawn.numbers.items():
        of_track = details.get(track, {})
        texts = [of_track.get(number, text) for number, text in zip(numbers.tolist(), texts, strict=True)]
    return drawn.events | {"detail": text_column(texts)}


def chosen_columns(
    rows: TimelineRows, event: Mapping[str, Any] | None, call: Mapping[str, Any] | None = None, work: Mapping[str, Any] | None = None
) -> tuple[Columns, Columns]:
    """An outline around the event, and a line from a call to what it started, where these have rows.

    Args:
        event: its row of kernel_launches, memory_ops, ranges or api_calls, with its track.
        call, work: the event, and what started it or what it started; None: not known.
    """
    outline, link = empty_columns(QUAD), empty_columns(LINK_NUMBERS)
    row = None if event is None else _row_of(event, rows)
    if event is None or row is None:
        return outline, link
    start_ns = float(event["start_ns"])
    outline = {
        "left": np.array([start_ns]),
        "bottom": np.array([row + 0.95]),
        "right": np.array([start_ns + max(event["duration_ns"] or 0, 0)]),
        "top": np.array([row + 0.05]),
    }
    if call is not None and work is not None:
        tail, head = rows.call_rows.get((call["process_id"], call["thread_id"])), _row_of(work, rows)
        if tail is not None and head is not None:
            ends = (float(call["start_ns"]), tail + 0.5, float(work["start_ns"]), head + 0.5)
            link = {name: np.array([end]) for name, end in zip(LINK_NUMBERS, ends, strict=True)}
    return outline, link


def _row_of(event: Mapping[str, Any], rows: TimelineRows) -> float | None:
    """None: it is folded away."""
    own = ("process_id", "device_index", "stream_index") if event["track"] in DEVICE_TRACKS else ("process_id", "thread_id", "depth")
    lane = {name: event.get(name) if name in ("track", *own) else None for name in LANE}
    wanted = pl.DataFrame([lane], schema={name: rows.places.schema[name] for name in LANE})
    found = wanted.join(rows.places, on=LANE, how="inner", nulls_equal=True)["row"]
    return None if found.is_empty() else float(found[0])


def stretch_columns(stretch: tuple[float, float] | None, rows: TimelineRows) -> Columns:
    if stretch is None:
        return empty_columns(QUAD)
    sides = zip(QUAD, (stretch[0], float(len(rows.rows)), stretch[1], 0.0), strict=True)
    return {name: np.array([value], dtype=np.float64) for name, value in sides}


def overview_columns(tile: pl.DataFrame, rows: TimelineRows) -> Columns:
    """How busy each device is over the whole trace, one above the other; without devices, where outermost ranges are, or calls."""
    is_of_device = tile["track"] == "kernels"
    is_outermost = (tile["track"] == "ranges") & (tile["depth"].fill_null(0) == 0)
    part = tile.filter(is_of_device if is_of_device.any() else is_outermost if is_outermost.any() else tile["track"] == "calls")
    keys = ("process_id", "device_index") if is_of_device.any() else ("process_id", "thread_id")
    order = rows.device_rows if is_of_device.any() else rows.thread_rows
    places = {key: place for place, key in enumerate(order)}
    place = np.array([places.get(key, 0) for key in zip(part[keys[0]], part[keys[1]], strict=True)], dtype=np.float64)
    count = max(len(places), 1)
    start_ns = part["start_ns"].to_numpy().astype(np.float64)
    bottom = (place + 0.94) / count
    return {
        "left": start_ns,
        "right": start_ns + part["duration_ns"].to_numpy().astype(np.float64),
        "bottom": bottom,
        "top": bottom - np.clip(part["busy_ratio"].to_numpy(), 0.0, 1.0) * 0.88 / count,
    }


# ---------------------------------------------------------------- elements


def _options(palette: Palette, height_px: int) -> dict[str, Any]:
    return frame_options(palette, height_px) | {"default_tools": [], "toolbar": None, "xlabel": "", "ylabel": "", "invert_yaxis": True}


def _hover(tooltips: Sequence[tuple[str, str]], names: ColumnDataSource, rows: ColumnDataSource) -> HoverTool:
    of_texts: dict[str, Any] = {
        "@name": CustomJSHover(args={"texts": names}, code="return texts.data.text[value] ?? ''"),
        "@row": CustomJSHover(args={"texts": rows}, code="return texts.data.text[value] ?? ''"),
        "@start": CustomJSHover(code=_MOMENT_JS),
        "@duration": CustomJSHover(code=_DURATION_JS),
    }
    return HoverTool(tooltips=list(tooltips), formatters=of_texts, point_policy="follow_mouse")


def timeline_chart(palette: Palette, shown: Mapping[str, Columns] = NO_COLUMNS, texts: HoverTexts = NO_TEXTS) -> hv.Overlay:
    """Layers of LAYERS, in that order.

    Args:
        shown: columns of those that are not empty.
        texts: in two sources that the tools refer to.
    """
    given = {**NO_COLUMNS, **shown}
    names, rows = (ColumnDataSource({"text": list(of_field)}) for of_field in (texts.names, texts.rows))
    start = ("start", "@start{custom}")
    colors = {"cmap": codes_of(palette), "clim": (0, MUTED_CODE), "color": "color", "fill_alpha": "fill_alpha"}
    gap_hover = _hover(
        (("no kernel for", "@duration{custom}"), start, ("why", "@reason"), ("call", "@call"), ("before", "@before"), ("after", "@after")),
        names,
        rows,
    )
    pixel_hover = _hover(
        (
            ("mostly", "@name{custom}"),
            ("busy", "@busy{0.0} % of @duration{custom}"),
            ("begun here", "@begun"),
            start,
            ("row", "@row{custom}"),
        ),
        names,
        rows,
    )
    event_hover = _hover(
        (("name", "@name{custom}"), ("took", "@duration{custom}"), start, ("row", "@row{custom}"), ("details", "@detail")), names, rows
    )
    kdims = list(QUAD)
    gaps = hv.Rectangles(given["gaps"], kdims, [*GAP_NUMBERS[4:], *GAP_TEXTS]).opts(
        color="color", cmap=list(reason_colors(palette)), clim=(0, len(REASONS) - 1), fill_alpha=0.28, line_width=0, tools=[gap_hover],
    )  # fmt: skip
    pixels = hv.Rectangles(given["pixels"], kdims, list(PIXEL_NUMBERS[4:])).opts(line_width=0, tools=[pixel_hover], **colors)
    events = hv.Rectangles(given["events"], kdims, [*EVENT_NUMBERS[4:], *EVENT_TEXTS]).opts(
        line_color=palette.surface, line_width=0.8, tools=[event_hover], **colors
    )
    labels = hv.Labels(given["names"], list(LABEL_NUMBERS), list(LABEL_TEXTS)).opts(
        text_font_size="11px", text_align="left", text_baseline="middle", text_color=palette.text
    )
    links = hv.Segments(given["links"], list(LINK_NUMBERS)).opts(color=palette.bad, line_width=1.4)
    chosen = hv.Rectangles(given["chosen"], kdims).opts(fill_alpha=0, line_color=palette.text, line_width=2)
    stretch = hv.Rectangles(given["stretch"], kdims).opts(color=palette.accent, fill_alpha=0.12, line_color=palette.accent)
    hatches = hv.Overlay(
        [hv.Rectangles(given[hatch], kdims).opts(fill_alpha=0, line_width=0, hooks=[Hatched(hatch, palette.surface)]) for hatch in HATCHES]
    )
    return (gaps * pixels * events * hatches * labels * links * chosen * stretch).opts(**_options(palette, ROW_PX), xaxis=None, yaxis=None)


def ruler_chart(palette: Palette) -> hv.Element:
    """The time axis alone; it stays in sight while rows are scrolled."""
    return hv.Rectangles(empty_columns(QUAD), list(QUAD)).opts(
        **_options(palette, 32), xaxis="top", yaxis=None, xformatter=tick_formatter(TIME_TICKS)
    )


def overview_chart(palette: Palette) -> hv.Element:
    """All of the trace; a tool on it moves the window."""
    return hv.Rectangles(empty_columns(QUAD), list(QUAD)).opts(
        **_options(palette, 46), xaxis=None, yaxis=None, color=palette.accent, fill_alpha=0.7, line_width=0, ylim=(0, 1)
    )
