"""A tree of layers as an icicle: a box for each layer, as wide as its time, the layers inside of it below."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import holoviews as hv
import numpy as np
import polars as pl
from bokeh.models import HoverTool

from kernalyse.services.core.formatting import relative_layer_name
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, empty_columns, frame_options, ramp, tick_formatter
from kernalyse.services.ui.theme import Palette, style_of

LayerColor = Literal["efficiency", "bound", "category"]

BOX_NUMBERS: Final = ("left", "bottom", "right", "top", "fill_alpha")
FIGURES: Final = ("time", "share", "launches", "flop", "bytes", "intensity", "achieved", "roof")
BOX_TEXTS: Final = ("color", "name", *FIGURES)
NAME_NUMBERS: Final = ("x", "y")
NAME_TEXTS: Final = ("shown", "text_color")

MIN_WIDTH_PX: Final = 1.5
"""Layers that are narrower are drawn as one with their neighbours: finer boxes would be too small to hit, and too many to draw."""

MAX_LEVEL_COUNT: Final = 14
"""Levels drawn at once; more would leave a row no room for text. A click shows deeper ones."""

MIN_LEVEL_COUNT: Final = 5
CHARACTER_PX: Final = 6.4  # of text of 11 px, a little more than the mean
PADDING_PX: Final = 9.0
MIN_SHOWN_CHARACTERS: Final = 4
MAX_HOVER_NAME_LENGTH: Final = 160
DIMMED_ALPHA: Final = 0.22
EFFICIENCY_STEPS: Final = (
    (0.1, "under 10 %"),
    (0.25, "10 to 25 %"),
    (0.5, "25 to 50 %"),
    (0.75, "50 to 75 %"),
    (float("inf"), "75 % and more"),
)
RAMP_PLACES: Final = (0.16, 0.36, 0.56, 0.78, 1.0)
BOUNDS: Final = ("memory", "compute")
NOT_KNOWN: Final = "not known"


@dataclass(frozen=True, slots=True)
class Icicle:
    """What is drawn. placed: layer_path, level, left, right of each box; those drawn as one have no path."""

    boxes: Columns
    names: Columns
    placed: pl.DataFrame
    span_ns: float
    level_count: int

    def path_at(self, x_ns: float, y: float) -> str | None:
        """Layer at a place of the figure."""
        at = (pl.col("level") == int(np.floor(-y))) & (pl.col("left") <= x_ns) & (pl.col("right") > x_ns)
        found = self.placed.filter(at)["layer_path"].drop_nulls()
        return None if found.is_empty() else str(found[0])


def inside(tree: pl.DataFrame, layer_path: str) -> pl.DataFrame:
    """Rows of the layer and all those inside of it, with level from 0; of no layer all, the outermost at level 0."""
    level = tree.filter(pl.col("layer_path") == layer_path if layer_path else pl.col("parent_path").is_null())
    levels: list[pl.DataFrame] = []
    while level.height and len(levels) < MAX_LEVEL_COUNT:
        levels.append(level.with_columns(level=pl.lit(len(levels))))
        level = tree.join(level.select(parent_path="layer_path"), on="parent_path", how="semi")
    return pl.concat(levels) if levels else tree.clear().with_columns(level=pl.lit(0))


def icicle(
    tree: pl.DataFrame,
    layer_path: str,
    color_by: LayerColor,
    palette: Palette,
    width_px: float,
    highlighted: frozenset[str] | None = None,
    hidden: Collection[str] = (),
) -> Icicle:
    """Boxes and names of the layer and of those inside of it.

    Args:
        tree: rows of table layer_tree of one run and variant.
        layer_path: layer that is as wide as the figure; empty: all of them are.
        width_px: of the figure, which names have to fit into.
        highlighted: paths of layers that stay bright, and with them those around; None: all do.
        hidden: what the colours of boxes say that are left out, see `legend_of`; those inside of them stay where they are.
    """
    rows = inside(tree, layer_path).with_columns(time_ns=pl.col("duration_sum_ns").fill_null(0).clip(lower_bound=0).cast(pl.Float64))
    span_ns = float(rows.filter(level=0)["time_ns"].sum())
    if span_ns <= 0:
        return Icicle(no_boxes(), no_names(), rows.clear().select("layer_path", "level", left=0.0, right=0.0), 1.0, 1)
    placed = _placed(rows, span_ns * MIN_WIDTH_PX / width_px)
    level_count = max(MIN_LEVEL_COUNT, 1 + max(placed["level"].to_list()))
    placed = placed.with_columns(meaning=pl.Series(meanings(placed, color_by))).filter(~pl.col("meaning").is_in(list(hidden)))
    places = placed.select("layer_path", "level", "left", "right")
    if placed.is_empty():
        return Icicle(no_boxes(), no_names(), places, span_ns, level_count)
    known = colors_of(categories_of(tree), color_by, palette)
    colors = [known.get(meaning, palette.grid) for meaning in placed["meaning"].to_list()]
    bright = _bright(tree, highlighted)
    is_dim = [] if bright is None else [path not in bright for path in placed["layer_path"].to_list()]
    alphas = np.ones(placed.height) if bright is None else np.where(is_dim, DIMMED_ALPHA, 1.0)
    levels = placed["level"].to_numpy().astype(np.float64)
    boxes: Columns = {
        "left": placed["left"].to_numpy(),
        "bottom": -levels - 1,
        "right": placed["right"].to_numpy(),
        "top": -levels,
        "fill_alpha": alphas,
        "color": np.array(colors),
        **_hover_columns(placed),
    }
    names = _name_columns(placed, colors, color_by, width_px / span_ns)
    return Icicle(boxes, names, places, span_ns, level_count)


def _placed(rows: pl.DataFrame, min_width_ns: float) -> pl.DataFrame:
    """Rows with left and right, those that are too narrow as one with their neighbours in the same layer."""
    levels: list[pl.DataFrame] = []
    around = pl.DataFrame({"parent_path": [None], "left_of": [0.0]}, schema={"parent_path": pl.String, "left_of": pl.Float64})
    siblings = pl.col("parent_path")
    for level in range(MAX_LEVEL_COUNT):
        found = rows.filter(level=level)
        if level == 0:
            found = found.with_columns(parent_path=pl.lit(None, dtype=pl.String))
        found = found.join(around, on="parent_path", nulls_equal=True).sort("left_of", "order_index", "layer_path")
        if found.is_empty():
            break
        is_narrow = pl.col("time_ns") < min_width_ns
        found = (
            found.with_columns(left=pl.col("left_of") + (pl.col("time_ns").cum_sum() - pl.col("time_ns")).over(siblings))
            .with_columns(run=pl.when(is_narrow).then((~is_narrow).cum_sum()).otherwise(-1 - pl.int_range(pl.len())))
            .group_by("parent_path", "run", maintain_order=True)
            .agg(
                *(pl.when(pl.len() == 1).then(pl.col(name).first()).alias(name) for name in _KEPT),
                pl.col("time_ns", "launch_count").sum(),
                pl.when(pl.col("share_ratio").count() > 0).then(pl.col("share_ratio").sum()),
                pl.col("left").first(),
                merged_count=pl.len(),
            )
            .with_columns(right=pl.col("left") + pl.col("time_ns"), level=pl.lit(level))
            .filter(pl.col("time_ns") > 0)
        )
        levels.append(found.drop("run"))
        around = found.filter(pl.col("time_ns") >= min_width_ns).select(parent_path="layer_path", left_of="left")
    return pl.concat(levels)


_KEPT: Final = (
    *("layer_path", "layer", "flop", "bytes", "intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s"),
    *("attainable_flop_per_s", "efficiency_ratio", "bound", "category"),
)
CHARTED: Final = (*_KEPT, "parent_path", "order_index", "duration_sum_ns", "launch_count", "share_ratio")
"""Columns of table layer_tree that are drawn."""


def categories_of(tree: pl.DataFrame) -> tuple[str, ...]:
    """Those that take most time first: the palette is short."""
    own = tree.filter(pl.col("category").is_not_null()).group_by("category").agg(pl.col("duration_sum_ns").sum())
    return tuple(own.sort("duration_sum_ns", "category", descending=[True, False])["category"].to_list())


def step_colors(palette: Palette) -> tuple[str, ...]:
    """Of EFFICIENCY_STEPS: the darker, the nearer to the roof; on dark ground the brighter."""
    colors = ramp(palette.surface, palette.accent)
    return tuple(colors[round(place * (len(colors) - 1))] for place in RAMP_PLACES)


def meanings(rows: pl.DataFrame, color_by: LayerColor) -> list[str]:
    """What the colour of each row says. rows: with efficiency_ratio, bound and category."""
    if color_by == "efficiency":
        steps = map(_step, rows["efficiency_ratio"].to_list())
        return [NOT_KNOWN if step is None else EFFICIENCY_STEPS[step][1] for step in steps]
    return [NOT_KNOWN if value is None else str(value) for value in rows[color_by].to_list()]


def colors_of(categories: Sequence[str], color_by: LayerColor, palette: Palette) -> Mapping[str, str]:
    """By what they say, in the order of a legend; what is not known is grey."""
    if color_by == "efficiency":
        known = dict(zip((name for _, name in EFFICIENCY_STEPS), step_colors(palette), strict=True))
    else:
        values = BOUNDS if color_by == "bound" else tuple(categories)
        known = {value: style_of(value, values, palette).color for value in values}
    return {**known, NOT_KNOWN: palette.grid}


def _step(ratio: float | None) -> int | None:
    """Place in EFFICIENCY_STEPS."""
    if ratio is None or math.isnan(ratio):
        return None
    return next(place for place, (limit, _) in enumerate(EFFICIENCY_STEPS) if ratio < limit or math.isinf(limit))


def legend_of(tree: pl.DataFrame, color_by: LayerColor, palette: Palette) -> list[tuple[str, str]]:
    """Names and colours that occur."""
    present = set(meanings(tree, color_by))
    if present <= {NOT_KNOWN}:
        return []
    return [entry for entry in colors_of(categories_of(tree), color_by, palette).items() if entry[0] in present]


def _bright(tree: pl.DataFrame, highlighted: frozenset[str] | None) -> frozenset[str] | None:
    if highlighted is None:
        return None
    parents = dict(tree.select("layer_path", "parent_path").iter_rows())
    found: set[str] = set()
    for path in highlighted:
        current: str | None = path
        while current is not None and current not in found:
            found.add(current)
            current = parents.get(current)
    return frozenset(found)


def _hover_columns(placed: pl.DataFrame) -> Columns:
    rows = placed.to_dicts()
    return {
        "name": np.array([_hover_name(row) for row in rows]),
        "time": np.array([theme.duration(row["time_ns"]) for row in rows]),
        "share": np.array([theme.percent(row["share_ratio"]) for row in rows]),
        "launches": np.array([theme.count(row["launch_count"]) for row in rows]),
        "flop": np.array([theme.si(row["flop"], "flop") for row in rows]),
        "bytes": np.array([theme.memory(row["bytes"]) for row in rows]),
        "intensity": np.array([theme.intensity(row["intensity_flop_per_byte"]) for row in rows]),
        "achieved": np.array(
            [f"{theme.flop_rate(row['achieved_flop_per_s'])}, {theme.byte_rate(row['achieved_bytes_per_s'])}" for row in rows]
        ),
        "roof": np.array([_roof(row) for row in rows]),
    }


def _hover_name(row: dict[str, object]) -> str:
    if row["layer_path"] is None:
        return f"{row['merged_count']} smaller layers"
    name = str(row["layer"])
    return name if len(name) <= MAX_HOVER_NAME_LENGTH else f"{name[: MAX_HOVER_NAME_LENGTH - 1]}…"


def _roof(row: dict[str, object]) -> str:
    if row["efficiency_ratio"] is None:
        return theme.UNKNOWN
    attainable = theme.flop_rate(row["attainable_flop_per_s"])  # type: ignore[arg-type]
    return f"{attainable}, {row['bound'] or theme.UNKNOWN} bound, reached to {theme.percent(row['efficiency_ratio'])}"  # type: ignore[arg-type]


def _name_columns(placed: pl.DataFrame, colors: list[str], color_by: LayerColor, px_per_ns: float) -> Columns:
    """Texts of the boxes that they fit into: the name, and where there is room the time and what the colour says."""
    shown: list[tuple[float, float, str, str]] = []
    for row, color in zip(placed.to_dicts(), colors, strict=True):
        room = int(((row["right"] - row["left"]) * px_per_ns - PADDING_PX) / CHARACTER_PX)
        text = "" if row["layer_path"] is None else _fitting(row, room, color_by)
        if text:
            shown.append((row["left"] + PADDING_PX / 2 / px_per_ns, -row["level"] - 0.5, text, _readable_on(color)))
    if not shown:
        return no_names()
    xs, ys, texts, text_colors = zip(*shown, strict=True)
    return {"x": np.array(xs), "y": np.array(ys, dtype=np.float64), "shown": np.array(texts), "text_color": np.array(text_colors)}


def _fitting(row: dict[str, object], room: int, color_by: LayerColor) -> str:
    name = relative_layer_name(str(row["layer"]), row["parent_path"])  # type: ignore[arg-type]
    time = theme.duration(row["time_ns"])  # type: ignore[arg-type]
    told = row["efficiency_ratio"] if color_by == "efficiency" else row[color_by]
    word = "" if told is None else theme.percent(told) if color_by == "efficiency" else str(told)  # type: ignore[arg-type]
    for parts in ((name, time, word), (name, word), (name,)):
        text = " · ".join(part for part in parts if part)
        if len(text) <= room:
            return text
    return f"{name[: room - 1]}…" if room >= MIN_SHOWN_CHARACTERS else ""


def _readable_on(color: str) -> str:
    """Dark or light text, whichever stands out more."""
    red, green, blue = (_linear(int(color[place : place + 2], 16) / 255) for place in (1, 3, 5))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    dark, light = ("#10161f", "#ffffff")
    return dark if (luminance + 0.05) / 0.055 > 1.05 / (luminance + 0.05) else light


def _linear(part: float) -> float:
    """Of a part of an sRGB colour, as WCAG's contrast has it."""
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def no_boxes() -> Columns:
    return empty_columns(BOX_NUMBERS, BOX_TEXTS)


def no_names() -> Columns:
    return empty_columns(NAME_NUMBERS, NAME_TEXTS)


def icicle_chart(boxes: Columns, names: Columns, palette: Palette, height_px: int = 300) -> hv.Overlay:
    """Input: those of an Icicle, or none."""
    rectangles = hv.Rectangles(boxes, ["left", "bottom", "right", "top"], ["fill_alpha", *BOX_TEXTS]).opts(
        color="color",
        fill_alpha="fill_alpha",
        line_color=palette.surface,
        line_width=1,
        default_tools=["save"],
        tools=[HoverTool(tooltips=[("", "@name"), *((figure, f"@{figure}") for figure in FIGURES)])],
    )
    texts = hv.Labels(names, ["x", "y"], ["shown", "text_color"]).opts(
        default_tools=["save"], text_color="text_color", text_font_size="11px", text_align="left", text_baseline="middle"
    )
    return hv.Overlay([rectangles, texts]).opts(
        hv.opts.Overlay(
            **{**frame_options(palette, height_px), "show_grid": False},
            xlim=(0, 1e6),
            ylim=(-MIN_LEVEL_COUNT, 0),
            xlabel="Time in all",
            ylabel="",
            yaxis=None,
            active_tools=[],
            default_tools=["save"],
            xformatter=tick_formatter(theme.DURATION_TICKS),
        )
    )
