"""The empty roofline that Live and Roofline begin with."""

from __future__ import annotations

from functools import cache

from services.ui.charts import roofline
from services.ui.charts.elements import Columns, empty_columns
from services.ui.live_figure import Prototype
from services.ui.theme import Palette


def no_points() -> Columns:
    return empty_columns(roofline.POINT_NUMBERS, roofline.POINT_TEXTS)


@cache
def roofline_prototype(palette: Palette, height_px: int, *, has_rings: bool = False) -> Prototype:
    """has_rings: a layer for those around chosen points."""
    no_ceilings = empty_columns(roofline.CEILING_NUMBERS, roofline.CEILING_TEXTS)
    span = roofline.Span(*roofline.NO_POINT_SPAN)
    rings = roofline.no_ring() if has_rings else None
    return Prototype(roofline.roofline_chart(no_points(), no_ceilings, span, palette, height_px, rings))
