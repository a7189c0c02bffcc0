"""The legend of the Roofline page: its series as buttons and, where colour says how efficient points are, their shapes."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from kernalyse.services.ui.charts.roofline_points import point_style
from kernalyse.services.ui.legend import LegendEntry, hideable
from kernalyse.services.ui.pages.roofline_rows import Shown
from kernalyse.services.ui.theme import CATEGORIES, EFFICIENCY_CATEGORIES, FAILED_MARKERS, IMPLAUSIBLE_MARKER, SYMBOLS, Outline, Palette

NOT_KNOWN = "not known"


def legend_entries(shown: Shown, palette: Palette, hidden: Collection[str]) -> list[LegendEntry]:
    """hidden: keys of series that are not drawn."""
    present = set(shown.placeable[shown.column].unique().fill_null("").to_list())
    order = EFFICIENCY_CATEGORIES if shown.column == "efficiency_category" else shown.values
    names = [name for name in (*order, *sorted(present - set(order))) if name in present]
    if names == [""]:
        return []
    markers = _markers_of(shown)
    entries = hideable([_series_entry(name, shown, palette, markers) for name in names], hidden, names)
    if shown.column != "efficiency_category":
        return entries
    categories = shown.placeable["category"].drop_nulls().unique().to_list()
    shapes = [name for name in (*CATEGORIES, *sorted(set(categories) - set(CATEGORIES))) if name in categories]
    symbols = {name: SYMBOLS.get(markers.get(name, ""), SYMBOLS["circle"]) for name in shapes}
    return [*entries, *(LegendEntry(name, palette.muted, symbols[name], meaning="The shape of this kind") for name in shapes)]


def _series_entry(name: str, shown: Shown, palette: Palette, markers: dict[str, str]) -> LegendEntry:
    title = shown.run_titles.get(name, name) or NOT_KNOWN
    style = point_style(name, shown.column, shown.values, palette)
    if shown.column == "efficiency_category":
        return LegendEntry(title, style.color, Outline.of(name).symbol)
    return LegendEntry(title, style.color, SYMBOLS.get(markers.get(name, style.marker), SYMBOLS[style.marker]))


def _markers_of(shown: Shown) -> dict[str, str]:
    """The one shape of each series, and of each category, whose points all have the same, apart from what is marked as wrong."""
    rows = (
        shown.drawn.select(pl.col(shown.column).alias("series"), "category")
        .with_columns(pl.Series("marker", shown.points["marker"].tolist(), dtype=pl.String))
        .filter(~pl.col("marker").is_in([IMPLAUSIBLE_MARKER, *FAILED_MARKERS.values()]))
    )
    found: dict[str, str] = {}
    for column in ("category", "series"):
        for name, markers in rows.group_by(column).agg(pl.col("marker").unique()).iter_rows():
            if name is not None and len(markers) == 1:
                found[name] = markers[0]
    return found
