"""The table of results that Live and Roofline share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import Markup

from kernalyse.services.core.disturbance import DISTURBED_SYMBOL
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.roofline_points import VERIFICATION_TEXTS
from kernalyse.services.ui.components.table import Column, Rows
from kernalyse.services.ui.components.text import html
from kernalyse.services.ui.result_rows import ResultRow

RESULT_COLUMNS: Final = (
    Column("Run", 90),
    Column("Configuration"),
    Column("Median", 95, is_number=True),
    Column("Flop rate", 110, is_number=True),
    Column("Byte rate", 100, is_number=True),
    Column("Intensity", 110, is_number=True),
    Column("Efficiency", 120, is_number=True),
    Column("Bound", 150),
    Column("Result", 190),
)
NO_RESULTS: Final = "Results appear here as soon as something has been measured, or a trace read in which the work of kernels is known."
REMEMBERED_ROW_COUNT: Final = 4_096
"""Rows kept as HTML: tabs of one run show the same ones again and again."""


class Results(Rows):
    """Rows of the table roofline in words.

    Args:
        choose: called with the key of a point whose row somebody clicks on; None: points cannot be chosen.
    """

    def __init__(self, choose: Callable[[str], None] | None = None) -> None:
        self._choose = choose
        self._points: list[str] = []
        super().__init__(
            RESULT_COLUMNS, NO_RESULTS, None if choose is None else self._choose_row, hidden_columns=["Run", "Result"], css_classes=["results"]
        )

    def show_results(self, rows: Iterable[ResultRow], *, with_run: bool, chosen: str = "") -> None:
        """Show the rows. chosen: key of the point that is marked."""
        listed = list(rows)
        with_result = any(
            row.verification_state or row.is_implausible or row.disturbance for row in listed
        )  # a trace has nothing to say of it
        hidden = [title for title, is_shown in (("Run", with_run), ("Result", with_result)) if not is_shown]
        if hidden != self.table.hidden_columns:
            self.table.hidden_columns = hidden
        self._points = [row.point for row in listed]
        self.show([(theme.short_run_id(row.run_id), self._name(row), *_cells(row._replace(point=""))) for row in listed])
        self.choose(self._points.index(chosen) if chosen and chosen in self._points else None)

    def _choose_row(self, place: int) -> None:
        if self._choose is not None and place < len(self._points):
            self._choose(self._points[place])

    def _name(self, row: ResultRow) -> Markup:
        if self._choose is None or not row.point:
            return html('<span title="{0}">{0}</span>', row.label)
        return html('<a href="?{0}" data-toggle class="choose" title="{1}">{1}</a>', urlencode({"point": row.point}), row.label)


@lru_cache(REMEMBERED_ROW_COUNT)
def _cells(row: ResultRow) -> tuple[Any, ...]:
    median = theme.duration(row.duration_median_ns)
    if row.duration_median_ns is None and row.duration_mean_ns is not None:
        median = html('<span title="no median came with the file">mean {}</span>', theme.duration(row.duration_mean_ns))
    return (
        median,
        theme.flop_rate(row.achieved_flop_per_s, row.dtype),
        theme.byte_rate(row.achieved_bytes_per_s),
        theme.intensity(row.intensity_flop_per_byte),
        efficiency_cell(row.efficiency_ratio),
        html("{}", row.efficiency_category or row.bound or theme.UNKNOWN),
        _result(row),
    )


def efficiency_cell(ratio: float | None) -> Markup:
    """Return a ratio with a bar of its length."""
    if ratio is None:
        return Markup(theme.UNKNOWN)
    bar = '<span class="meter" aria-hidden="true"><span style="width:{:.0f}%"></span></span>{}'
    return html(bar, min(ratio * 100, 100), theme.percent(ratio))


def _result(row: ResultRow) -> Markup:
    said = html("{}", VERIFICATION_TEXTS.get(row.verification_state, row.verification_state) or "")
    if row.verification_state == "FAILED":
        said = html('<span class="problem">{}</span>', said)
    if row.is_implausible:
        mark = ' <strong class="problem">{} implausible</strong><span class="why">{}</span>'
        said += html(mark, theme.IMPLAUSIBLE_SYMBOL, row.implausible_reason or "")
    if row.disturbance:
        said += html(' <strong class="problem">{} disturbed</strong><span class="why">{}</span>', DISTURBED_SYMBOL, row.disturbance)
    return said
