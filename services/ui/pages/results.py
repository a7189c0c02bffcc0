"""The table of results that Live and Roofline share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import polars as pl
from markupsafe import Markup

from kernalyse.services.core.disturbance import DISTURBED_SYMBOL
from kernalyse.services.ui.charts.roofline_points import IDENTITY, VERIFICATION_TEXTS
from kernalyse.services.ui.diagnosis import point_key
from kernalyse.services.ui.pages.shell import fragment

REMEMBERED_ROW_COUNT: Final = 4_096
"""Rows kept as HTML: pages of one run show the same ones again and again, and making one takes a tenth of a millisecond."""


class ResultRow(NamedTuple):
    """What is shown of a row of the table roofline."""

    run_id: str
    label: str
    duration_median_ns: float | None
    duration_mean_ns: float | None
    dtype: str | None
    achieved_flop_per_s: float | None
    achieved_bytes_per_s: float | None
    intensity_flop_per_byte: float | None
    efficiency_ratio: float | None
    efficiency_category: str | None
    bound: str | None
    verification_state: str | None
    is_implausible: bool | None
    implausible_reason: str | None
    disturbance: str | None
    point: str = ""  # see point_key; empty: it cannot be chosen


_COLUMNS: Final = ResultRow._fields[:-1]


def result_rows(roofline: pl.DataFrame, *, with_points: bool = False) -> list[ResultRow]:
    """Of rows of the table roofline, in their order. with_points: a click on one chooses its point."""
    rows = [ResultRow(*values) for values in roofline.select(_COLUMNS).iter_rows()]
    if not with_points:
        return rows
    keys = [point_key(row) for row in roofline.select(*IDENTITY).iter_rows(named=True)]
    return [row._replace(point=key) for row, key in zip(rows, keys, strict=True)]


def results_fragment(rows: Iterable[ResultRow], *, with_run: bool, chosen: str = "") -> str:
    """chosen: key of the point that is marked."""
    shown = list(rows)
    with_result = any(row.verification_state or row.is_implausible or row.disturbance for row in shown)  # a trace has nothing to say of it
    made = [_row(row, with_run, with_result, bool(chosen) and row.point == chosen) for row in shown]
    return fragment("results.html", rows=made, with_run=with_run, with_result=with_result)


@lru_cache(REMEMBERED_ROW_COUNT)
def _row(row: ResultRow, with_run: bool, with_result: bool, is_chosen: bool) -> Markup:
    return fragment(
        "result_row.html",
        row=row,
        with_run=with_run,
        with_result=with_result,
        is_chosen=is_chosen,
        verification=VERIFICATION_TEXTS,
        disturbed=DISTURBED_SYMBOL,
    )
