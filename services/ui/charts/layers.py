"""Bars that lie, one for each name, and with them the time of each kind of layer, variants of a model beside each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

import holoviews as hv
import numpy as np
import polars as pl
from bokeh.models import HoverTool

from kernalyse.services.core.formatting import MODULE_PREFIX
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.elements import Columns, elided, empty_columns, frame_options, tick_formatter
from kernalyse.services.ui.theme import Palette, Ticks

BAR_HEIGHT: Final = 0.7  # of the distance between two names
ROW_PX: Final = 24
AXIS_PX: Final = 70


@dataclass(frozen=True, slots=True)
class Stretch:
    """Of one bar. text: what hovering over it says."""

    value: float
    color: str
    text: str


def stacked_bars(names: Sequence[str], stacks: Sequence[Sequence[Stretch]], label: str, palette: Palette, ticks: Ticks) -> hv.Overlay:
    """The first name on top.

    Args:
        stacks: stretches for every name, from the left; those without length are left out.
        label: of the axis.
    """
    rectangles = []
    longest = 0.0
    for place, stack in enumerate(stacks):
        y, end = len(names) - 1 - place, 0.0
        for stretch in stack:
            if stretch.value > 0:
                start, end = end, end + stretch.value
                rectangles.append((start, y - BAR_HEIGHT / 2, end, y + BAR_HEIGHT / 2, stretch.color, stretch.text))
        longest = max(longest, end)
    bars = hv.Rectangles(rectangles, vdims=["color", "text"]).opts(
        color="color", line_color=palette.surface, line_width=0.5, tools=[HoverTool(tooltips="@text")]
    )
    return hv.Overlay([bars]).opts(
        hv.opts.Overlay(
            **frame_options(palette, AXIS_PX + ROW_PX * max(2, len(names))),
            yticks=[(len(names) - 1 - place, elided(name)) for place, name in enumerate(names)],
            xlim=(0, longest * 1.04 or 1.0),
            ylim=(-0.6, max(1, len(names)) - 0.4),
            xlabel=label,
            ylabel="",
            xformatter=tick_formatter(ticks),
        )
    )


NUMBERS: Final = ("left", "bottom", "right", "top")
TEXTS: Final = ("color", "text")
MAX_KIND_COUNT: Final = 16
"""Those that take longest: names of more would not be readable under their bars."""

GROUP_WIDTH: Final = 0.72
BLOCK_NUMBER: Final = r"([._])\d+(\.|$)"
CALL_DETAILS: Final = r", (?:seq|op_id|sizes|input_op_ids) = .*$"  # that PyTorch's emit_nvtx adds to names
NAME_LENGTH: Final = 18


def kinds_of(layers: pl.DataFrame) -> pl.DataFrame:
    """Layers of all blocks together, by kind and variant, longest kind first.

    blocks.3.attn.qkv is of kind blocks.*.attn.qkv, Linear_7 of kind Linear_*.

    Args:
        layers: rows of table layers of one run.
    """
    time_ns = pl.col("duration_sum_ns")
    is_known = pl.col("efficiency_ratio").is_not_null()
    return (
        layers.drop_nulls("layer")
        .with_columns(
            kind=pl.col("layer").str.strip_prefix(MODULE_PREFIX).str.replace(CALL_DETAILS, "").str.replace_all(BLOCK_NUMBER, "${1}*${2}"),
            variant=pl.col("variant").fill_null(""),
        )
        .group_by("kind", "variant", maintain_order=True)
        .agg(
            time_ns.sum(),
            pl.col("share_ratio").sum(),
            pl.col("launch_count").sum(),
            pl.col("pass_duration_median_ns").first(),
            efficiency_ratio=(pl.col("efficiency_ratio") * time_ns).sum() / time_ns.filter(is_known).sum(),
        )
        .with_columns(pl.col("efficiency_ratio").fill_nan(None), longest_ns=time_ns.max().over("kind"))
        .sort("longest_ns", "kind", "variant", descending=[True, False, False])
    )


def variants_of(kinds: pl.DataFrame) -> tuple[str, ...]:
    """In the order of their names, which colours go by."""
    return tuple(kinds["variant"].unique().sort().to_list())


def bar_columns(kinds: pl.DataFrame, palette: Palette, hidden: Collection[str] = ()) -> tuple[Columns, dict[int, str]]:
    """One bar a kind and variant, and the names of the kinds by their place. Input: what `kinds_of` says. hidden: variants without bars."""
    shown = kinds.filter(~pl.col("variant").is_in(list(hidden)))
    names = shown["kind"].unique(maintain_order=True).to_list()[:MAX_KIND_COUNT]
    colors = dict(zip(variants_of(kinds), cycle(palette.series), strict=False))
    variants = variants_of(shown)
    if not names:
        return no_bars(), {}
    width = GROUP_WIDTH / len(variants)
    rows = shown.filter(pl.col("kind").is_in(names)).to_dicts()
    sides = [variants.index(row["variant"]) for row in rows]
    lefts = np.array([names.index(row["kind"]) - GROUP_WIDTH / 2 + side * width for row, side in zip(rows, sides, strict=True)])
    return {
        "left": lefts,
        "bottom": np.zeros(len(rows)),
        "right": lefts + width * 0.94,
        "top": np.array([float(row["duration_sum_ns"]) for row in rows]),
        "color": np.array([colors[row["variant"]] for row in rows]),
        "text": np.array([_text(row) for row in rows]),
    }, {place: _short(name) for place, name in enumerate(names)}


def no_bars() -> Columns:
    return empty_columns(NUMBERS, TEXTS)


def layer_chart(bars: Columns, palette: Palette, height_px: int = 300) -> hv.Overlay:
    """Input: what `bar_columns` says, or no bars."""
    rectangles = hv.Rectangles(bars, list(NUMBERS), ["color", "text"]).opts(
        color="color", line_color=None, tools=[HoverTool(tooltips="@text")]
    )
    return hv.Overlay([rectangles]).opts(
        hv.opts.Overlay(
            xlim=(-0.5, 0.5),
            ylim=(0, 1e6),
            xlabel="",
            ylabel="Time in all",
            xrotation=45,
            yformatter=tick_formatter(theme.DURATION_TICKS),
            **frame_options(palette, height_px),
        )
    )


def _text(row: dict[str, object]) -> str:
    variant = f" {row['variant']}" if row["variant"] else ""
    figures = (
        theme.duration(float(str(row["duration_sum_ns"]))),
        f"{theme.percent(row['share_ratio'])} of all layers",  # type: ignore[arg-type]
        f"{row['launch_count']} launches",
        f"{theme.percent(row['efficiency_ratio'])} of the roof",  # type: ignore[arg-type]
    )
    return f"{row['kind']}{variant}: {', '.join(figures)}"


def _short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else f"…{name[1 - NAME_LENGTH :]}"
