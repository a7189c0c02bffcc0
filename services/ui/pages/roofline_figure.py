"""The empty roofline that Live and Roofline begin with."""

from __future__ import annotations

from typing import Final

import holoviews as hv

from kernalyse.services.ui.charts import roofline
from kernalyse.services.ui.charts.elements import Columns, empty_columns
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.theme import Palette


def no_points() -> Columns:
    return empty_columns(roofline.POINT_NUMBERS, roofline.POINT_TEXTS)


def _roofline(palette: Palette, height_px: int, has_rings: bool) -> hv.Overlay:
    """has_rings: a layer for those around chosen points."""
    no_ceilings = empty_columns(roofline.CEILING_NUMBERS, roofline.CEILING_TEXTS)
    span = roofline.Span(*roofline.NO_POINT_SPAN)
    rings = roofline.no_ring() if has_rings else None
    return roofline.roofline_chart(no_points(), no_ceilings, span, palette, height_px, rings)


LIVE_ROOFLINE: Final = EmptyChart(_roofline, 320, False)
ROOFLINE: Final = EmptyChart(_roofline, 520, True)
