"""Ceilings of a roofline as lines and their names: those of the memory level it is drawn at, and of the source that is chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from kernalyse.services.core.disturbance import DISTURBED_SYMBOL, is_busy
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, empty_columns, text_column
from kernalyse.services.ui.theme import Palette

LEVEL_TITLES: Final = {"dram": "DRAM", "l2": "L2 cache", "l1": "L1 cache"}
"""What the chart calls the memories it draws a slope for; a CPU's last-level cache counts as L2."""


@dataclass(frozen=True, slots=True)
class Span:
    """What both axes show: intensity in flop/B, rate in flop/s."""

    x_start: float
    x_end: float
    y_start: float
    y_end: float


LevelChoice = Literal["auto", "dram", "l2", "l1", "all"]

LEVEL_CHOICES: Final[dict[LevelChoice, str]] = {
    "auto": "automatic",
    "dram": "DRAM",
    "l2": "L2 cache",
    "l1": "L1 cache",
    "all": "all, side by side",
}
_KEY: Final = ["run_id", "configuration_index", "of_trace"]
_KERNEL_OF_TRACE: Final = ("label", "path", "device_id")
_LAYER_OF_TRACE: Final = ("label", "source")

KNOWN_BY: Final = (
    "Bytes of caches are known to hardware counters alone: kernalyse bench --counters, or, of a trace, "
    "kernalyse import TRACE --counters REPORT."
)


def at_level(rows: pl.DataFrame, counted: pl.DataFrame | None, level: LevelChoice) -> pl.DataFrame:
    """Points of the level: as hardware counters counted its bytes, else those of the table roofline whose bytes came from there.

    Args:
        rows: table roofline or layer_roofline, each configuration once.
        counted: table counted_roofline or counted_layer_roofline of the same runs, with a row for each level; None: not known.
        level: "auto": rows as they are; "all": every level that was counted, and the others as they are.
    """
    if level == "auto":
        return rows
    if counted is None or counted.is_empty():
        return rows if level == "all" else rows.filter(pl.col("memory_level") == level)
    of_level = counted if level == "all" else counted.filter(pl.col("memory_level") == level)
    of_level, keyed = _with_keys(of_level), _with_keys(rows)
    of_level = of_level.join(keyed.select(_KEY), on=_KEY, how="semi", nulls_equal=True, maintain_order="left")
    others = keyed.join(of_level.select(_KEY), on=_KEY, how="anti", nulls_equal=True, maintain_order="left")
    kept = others if level == "all" else others.filter(pl.col("memory_level") == level)
    # Counted rows have not all columns that the page adds to the others.
    return pl.concat([of_level, kept], how="diagonal_relaxed").select(rows.columns)


def _with_keys(rows: pl.DataFrame) -> pl.DataFrame:
    """A point of a trace is of no configuration. One of a sweep may have another path by counters than by formula, and so may a layer."""
    names = _LAYER_OF_TRACE if "layer" in rows.columns else _KERNEL_OF_TRACE
    return rows.with_columns(of_trace=pl.when(pl.col("configuration_index").is_null()).then(pl.struct(names)))


def drawn_levels(level: LevelChoice, rows: pl.DataFrame | None) -> tuple[str, ...]:
    """Memories whose slopes are drawn."""
    if level == "all":
        return tuple(LEVEL_TITLES)
    if level != "auto":
        return (level,)
    has_l1 = rows is not None and bool((rows["memory_level"] == "l1").any())
    return ("dram", "l2", "l1") if has_l1 else ("dram", "l2")


def level_note(level: LevelChoice, missing_count: int, asking: bool) -> str:
    """What to know of the points at this level; empty without any."""
    if level == "auto":
        return ""
    if asking:
        return "Asking for what hardware counters say of each level…"
    if level == "all":
        return (
            "Each kernel or layer with counters has a point for each memory level, at one height: the nearer its own ceiling, the more "
            "that level limits it."
        )
    if not missing_count:
        return ""
    title = LEVEL_TITLES[level]
    known = "" if level == "dram" else f" {KNOWN_BY}"
    return f"{missing_count} not shown: their bytes at {title} are not known.{known}"


CeilingChoice = Literal["best", "datasheet", "clock", "measured"]

BEST: Final[CeilingChoice] = "best"
CEILING_CHOICES: Final[dict[CeilingChoice, str]] = {
    "best": "best known",
    "datasheet": "datasheet",
    "clock": "at the clock",
    "measured": "measured",
}
_COMPUTE_SOURCES: Final[dict[CeilingChoice, tuple[str, ...]]] = {
    "best": ("user", "measured", "datasheet", "clock"),
    "datasheet": ("datasheet",),
    "clock": ("clock",),
    "measured": ("measured",),
}
_MEMORY_SOURCES: Final = {**_COMPUTE_SOURCES, "clock": ("clock", "datasheet", "measured")}
"""The SM clock says nothing of device memory: the analyzer takes the datasheet's there, else the measured one."""


def sources_of(choice: CeilingChoice, unit: str) -> tuple[str, ...]:
    """Those that count for ceilings of this unit, the first that knows one before the others."""
    return (_MEMORY_SOURCES if unit == "bytes_per_s" else _COMPUTE_SOURCES)[choice]


def held_against(rows: pl.DataFrame, choice: CeilingChoice) -> pl.DataFrame:
    """Rows of the table roofline with efficiency, its category, bound, attainable rate and source by the ceilings of the choice.

    Of the two ceilings only the one that binds is known then.
    """
    if choice == BEST:
        return rows
    efficiency, bound = pl.col(f"efficiency_{choice}_ratio"), pl.col(f"bound_{choice}")
    attainable = pl.col("achieved_flop_per_s") / efficiency
    return rows.with_columns(
        efficiency_ratio=efficiency,
        efficiency_category=pl.col(f"efficiency_category_{choice}"),
        attainable_flop_per_s=attainable,
        bound=bound,
        compute_ceiling_flop_per_s=pl.when(bound == "compute").then(attainable),
        memory_ceiling_bytes_per_s=pl.when(bound == "memory").then(attainable / pl.col("intensity_flop_per_byte")),
        ridge_flop_per_byte=pl.lit(None, dtype=pl.Float64),
        ceiling_source=pl.when(efficiency.is_not_null()).then(pl.lit(choice)),
    )


def at_clock_of(ceilings: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The table ceilings with those of source "clock" at the highest SM clock that the rows of the table roofline ran at.

    The highest one: no point that is below its own ceiling is drawn above that of another.
    """
    clock_hz = highest_clock_hz(rows)
    if clock_hz is None:
        return ceilings
    follows = (pl.col("source") == "clock") & pl.col("clock_hz").is_not_null()
    return ceilings.with_columns(
        value=pl.when(follows).then(pl.col("value") * (clock_hz / pl.col("clock_hz"))).otherwise("value"),
        clock_hz=pl.when(follows).then(pl.lit(clock_hz)).otherwise("clock_hz"),
    )


def highest_clock_hz(rows: pl.DataFrame) -> int | None:
    """None: no row knows its SM clock."""
    clocks = rows["sm_clock_hz"].drop_nulls()
    return None if clocks.is_empty() else int(clocks.cast(pl.Int64).sort()[-1])


def choice_note(choice: CeilingChoice, rows: pl.DataFrame, has_ceilings: bool) -> str:
    """What to know of ceilings of this choice; has_ceilings: whether any of it are drawn."""
    if not has_ceilings:
        return (
            ""
            if choice == BEST
            else f"No ceilings of this device are known from this source ({CEILING_CHOICES[choice]}): efficiencies are unknown."
        )
    clock_hz = highest_clock_hz(rows)
    if choice == "clock" and clock_hz is not None:
        return f"Compute ceilings are those at {theme.frequency(clock_hz)}, the highest clock of the points; each is held against its own."
    return "Compute ceilings are those at the maximum clock: no point knows its own." if choice == "clock" else ""


CEILING_NUMBERS: Final = ("x0", "y0", "x1", "y1", "line_width")
CEILING_TEXTS: Final = ("color", "line_dash", "name", "value", "source", "device", "note")

CLOSE_RATIO: Final = 1.3
"""Lines closer than this lie within the height of a name: a sixth of a decade's 90 to 150 pixels."""

LEVEL_DASHES: Final = {"dram": "solid", "l2": "dotted", "l1": "dotdash"}
FARTHEST_FIRST: Final = tuple(LEVEL_TITLES)
DRAWN_LEVELS: Final = ("dram", "l2")
"""Slopes that are drawn when nobody asks for others."""

ROOF_NAME_RATIO: Final = 2.5  # of its height, which a roof's name takes below it at most
SLOPE_NAME_PLACES: Final = (0.5, 0.66)  # further down a phone has no room to the left of a slope
LONG_SLOPE_NAME_PLACE: Final = 0.78  # nor below this for a name with BUSY_MARK in it
RIGHT_NAME_PLACE: Final = 0.6  # of the axis, 0 its left end; further right a phone has no room for a name
NAME_HEIGHT_RATIO: Final = 1.4
"""What a name covers of the axis where a decade takes 80 pixels, as five of them do on a phone; of more decades names would touch."""

MAX_NAME_COUNT: Final = 2  # of roofs at one height
MAX_DEVICE_LENGTH: Final = 24
BUSY: Final = f" {DISTURBED_SYMBOL} busy"
BUSY_MARK: Final = f" {DISTURBED_SYMBOL}"
"""Beside the value of a ceiling that other programs on the host may have lowered."""

Floats = npt.NDArray[np.float64]
CeilingRow = dict[str, Any]
"""A row of the table ceilings with is_preferred (see shown_ceilings)."""


def shown_ceilings(
    ceilings: pl.DataFrame | None, dtypes: tuple[str, ...], choice: CeilingChoice = BEST, levels: Sequence[str] = DRAWN_LEVELS
) -> tuple[CeilingRow, ...]:
    """The newest memory and compute ceilings of the table, each with is_preferred: of the source that counts most.

    Args:
        ceilings: the table of that name, or None. Its device_id tells devices apart and names them.
        dtypes: compute ceilings to show; empty: all there are.
        choice: sources that may be preferred.
        levels: memories to show.
    """
    if ceilings is None or ceilings.is_empty():
        return ()
    kept = ceilings.filter(
        (pl.col("value") > 0)
        & pl.col("value").is_finite()
        & (
            pl.col("ceiling_name").is_in(list(levels))
            | ((pl.col("unit") == "flop_per_s") & (pl.lit(not dtypes) | pl.col("ceiling_name").is_in(dtypes)))
        )
    ).unique(subset=["device_id", "ceiling_name", "unit", "path", "source"], keep="last", maintain_order=True)
    rows: list[CeilingRow] = kept.to_dicts()
    is_known = choice == BEST or any(row["source"] == choice for row in rows)  # else nothing is held against what it borrows
    best: dict[tuple[str, ...], str] = {}
    for row in rows:
        sources = sources_of(choice, row["unit"])
        known = best.get(_ceiling_key(row))
        if is_known and row["source"] in sources and (known is None or sources.index(row["source"]) < sources.index(known)):
            best[_ceiling_key(row)] = row["source"]
    return tuple({**row, "is_preferred": best.get(_ceiling_key(row)) == row["source"]} for row in rows)


def _ceiling_key(row: CeilingRow) -> tuple[str, ...]:
    return (row["device_id"], row["unit"], row["ceiling_name"], row["path"])


def devices_of(rows: Sequence[CeilingRow]) -> tuple[str, ...]:
    """Those that have a ceiling, in their order."""
    return tuple(dict.fromkeys(row["device_id"] for row in rows))


def ceiling_columns(rows: Sequence[CeilingRow], span: Span, palette: Palette) -> Columns:
    """One line a ceiling: a slope for each memory up to the highest compute ceiling of its device, and a flat line for each dtype.

    A flat line begins where the steepest slope of its source reaches it. What is preferred is drawn solid, dotted for the
    L2 cache and dot-dashed for the L1 unless it is the only memory shown; the others dashed. Of several devices each has a colour
    of its own, and its name at its lines.
    """
    if not rows:
        return empty_columns(CEILING_NUMBERS, CEILING_TEXTS)
    devices = devices_of(rows)
    shown_levels = {row["ceiling_name"] for row in rows if row["unit"] == "bytes_per_s"}
    lines: list[dict[str, Any]] = []
    for place, device in enumerate(devices):
        color = palette.muted if len(devices) == 1 else palette.series[place % len(palette.series)]
        of_device = [row for row in rows if row["device_id"] == device]
        lines += _device_lines(of_device, span, color, has_device=len(devices) > 1, has_one_level=len(shown_levels) == 1)
    names = (*CEILING_NUMBERS, *CEILING_TEXTS)
    return {name: np.array([line[name] for line in lines]) for name in names}


def _device_lines(rows: Sequence[CeilingRow], span: Span, color: str, *, has_device: bool, has_one_level: bool) -> list[dict[str, Any]]:
    slopes = [row for row in rows if row["unit"] == "bytes_per_s"]
    roofs = [row for row in rows if row["unit"] == "flop_per_s"]
    lines: list[dict[str, Any]] = []
    for row in slopes:
        peak = max(
            (roof["value"] for roof in roofs if roof["source"] == row["source"]), default=max((r["value"] for r in roofs), default=None)
        )
        x_end = span.x_end if peak is None else min(span.x_end, peak / row["value"])
        dash = "solid" if has_one_level else LEVEL_DASHES[row["ceiling_name"]]
        ends = (span.x_start, span.x_start * row["value"]), (x_end, x_end * row["value"])
        lines.append(_line(row, *ends, color, dash, has_device=has_device))
    for row in roofs:
        steepest = max((slope["value"] for slope in slopes if slope["source"] == row["source"]), default=None)
        steepest = max((slope["value"] for slope in slopes), default=None) if steepest is None else steepest
        x_start = span.x_start if steepest is None else max(span.x_start, row["value"] / steepest)
        lines.append(_line(row, (x_start, row["value"]), (span.x_end, row["value"]), color, "solid", has_device=has_device))
    return lines


def _line(
    row: CeilingRow, start: tuple[float, float], end: tuple[float, float], color: str, dash: str, *, has_device: bool
) -> dict[str, Any]:
    is_memory = row["unit"] == "bytes_per_s"
    name = LEVEL_TITLES[row["ceiling_name"]] if is_memory else f"{row['ceiling_name']}{' tensor' if row['path'] == 'tensor' else ''}"
    return {
        "x0": start[0],
        "y0": start[1],
        "x1": end[0],
        "y1": end[1],
        "line_width": 2.0 if row["is_preferred"] else 1.2,
        "color": color,
        "line_dash": dash if row["is_preferred"] else "dashed",
        "name": f"{row['device_id'][:MAX_DEVICE_LENGTH]} {name}" if has_device else name,
        "value": (theme.byte_rate(row["value"]) if is_memory else theme.flop_rate(row["value"], row["ceiling_name"]))
        + (BUSY if is_busy(row["host_busy_ratio"]) else ""),
        "source": row["source"] + (f" ({row['confidence']} confidence)" if row["confidence"] else ""),
        "device": row["device_id"],
        "note": row["note"] or "",
    }


def label_columns(ceilings: Columns) -> Columns:
    """A name for each ceiling that counts: flat ones at their right end, slopes near their middle.

    The steepest slope has its name on the left, the others on the right, each below that of the next steeper one, so that close ones do
    not cover each other's. A name that a line close by would strike through goes to the other side of its own line, or past the other
    slope. Roofs of one height have one name together, and one close below another has its name below the other's.
    """
    named, texts = _names_of(ceilings)
    x0, y0, x1, y1 = (ceilings[name][named] for name in ("x0", "y0", "x1", "y1"))
    is_flat = y0 == y1
    steepness = np.where(is_flat, 0.0, y0 / x0)
    is_right = ~is_flat & (steepness < steepness.max(initial=0.0))
    all_flat = ceilings["y0"] == ceilings["y1"]
    roofs, slopes = ceilings["y0"][all_flat], (ceilings["y0"] / ceilings["x0"])[~all_flat]
    roof_y, is_below = _roof_names(np.where(is_flat, y0, np.nan), roofs)
    is_long = np.array([BUSY_MARK in text for text in texts], bool)
    lowest = min(roofs.min(initial=np.inf), np.where(is_below, roof_y, np.inf).min(initial=np.inf))
    slope_place = np.maximum(_place_below(lowest, y0, y1), np.where(is_long, LONG_SLOPE_NAME_PLACE, 0.0))
    close_slopes = [slopes[(slopes <= own) & (slopes * CLOSE_RATIO > own)].min(initial=own) for own in steepness]
    past = np.where(is_right, close_slopes, steepness)
    x_start, x_end = ceilings["x0"].min(initial=np.inf), ceilings["x1"].max(initial=0.0)
    highest = np.where(is_right, past * x_start ** (1 - RIGHT_NAME_PLACE) * x_end**RIGHT_NAME_PLACE, np.inf)
    slope_y = np.minimum(y0 ** (1 - slope_place) * y1**slope_place, highest)
    slope_y = _each_below_the_next_steeper(slope_y, np.where(is_right, steepness, np.nan))
    return {
        "x": np.where(is_flat, x1, slope_y / np.where(is_flat, 1.0, past)),
        "y": np.where(is_flat, roof_y, slope_y),
        "text": text_column(texts),
        "text_align": np.where(is_right, "left", "right"),
        "text_baseline": np.where(is_right | is_below, "top", "bottom"),
    }


def _roof_names(y: Floats, roofs: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Where flat lines have their names, and whether these hang below: under another roof close by, and under its name.

    Args:
        y: heights of the lines with a name; NaN: no flat one.
        roofs: heights of all flat lines.
    """
    place, is_below, lowest = y.copy(), np.zeros(len(y), bool), math.inf
    for row in _from_the_highest(y):
        is_close = bool(np.any((roofs > y[row]) & (roofs < y[row] * CLOSE_RATIO)))
        is_below[row] = is_close or y[row] * NAME_HEIGHT_RATIO > lowest
        place[row] = min(y[row], lowest) if is_below[row] else y[row]
        lowest = place[row] / NAME_HEIGHT_RATIO if is_below[row] else y[row]
    return place, is_below


def _each_below_the_next_steeper(y: Floats, steepness: Floats) -> Floats:
    """Where names right of slopes begin. steepness: NaN: no such slope."""
    place, lowest = y.copy(), math.inf
    for row in _from_the_highest(steepness):
        place[row] = min(y[row], lowest)
        lowest = place[row] / NAME_HEIGHT_RATIO
    return place


def _from_the_highest(values: Floats) -> list[int]:
    return [int(row) for row in np.argsort(-values, kind="stable") if not math.isnan(values[row])]


def _place_below(lowest_roof: float, y0: Floats, y1: Floats) -> Floats:
    """Where slopes have their names, 0 their lower and 1 their upper end: below the names of roofs, which may reach to the left of them."""
    with np.errstate(divide="ignore", invalid="ignore"):  # flat lines have no such place
        place = np.log(lowest_roof / ROOF_NAME_RATIO / y0) / np.log(y1 / y0)
    return np.clip(np.nan_to_num(place), *SLOPE_NAME_PLACES)


def _names_of(ceilings: Columns) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Lines that are named, by their position, and how."""
    together: dict[tuple[object, ...], list[int]] = {}
    for row, dash in enumerate(ceilings["line_dash"]):
        if dash != "dashed":
            is_flat = ceilings["y0"][row] == ceilings["y1"][row]
            together.setdefault((ceilings["device"][row], ceilings["y1"][row]) if is_flat else (row,), []).append(row)
    rows = list(together.values())
    texts = [_label([ceilings["name"][row] for row in same], ceilings["value"][same[0]]) for same in rows]
    return np.array([same[0] for same in rows], dtype=np.int64), texts


def _label(names: Sequence[str], value: str) -> str:
    """As short as it can be understood: below a chart on a phone there is more room than to the left of a slope."""
    return f" {_in_short([name.removesuffix(' cache') for name in names])} {value.replace(BUSY, BUSY_MARK)} "


def _in_short(names: Sequence[str]) -> str:
    """Two at most, the shortest, and how many more there are: the room is that of a phone."""
    shown = sorted(names, key=len)[:MAX_NAME_COUNT]
    return ", ".join(shown) + (f" +{len(names) - len(shown)}" if len(names) > len(shown) else "")


def ridges(rows: Sequence[CeilingRow]) -> tuple[tuple[str, float], ...]:
    """Ridge point in flop/B, against the farthest memory drawn, of each compute ceiling drawn solid, by name and device."""
    found = []
    for device in devices_of(rows):
        solid = [row for row in rows if row["is_preferred"] and row["device_id"] == device]
        slopes = {row["ceiling_name"]: row["value"] for row in solid if row["unit"] == "bytes_per_s"}
        slope = next((slopes[level] for level in FARTHEST_FIRST if level in slopes), None)
        prefix = f"{device} " if len(devices_of(rows)) > 1 else ""
        found += [] if slope is None else [
            (f"{prefix}{row['ceiling_name']}{' tensor' if row['path'] == 'tensor' else ''}", row["value"] / slope)
            for row in solid
            if row["unit"] == "flop_per_s"
        ]  # fmt: skip
    return tuple(found)
