"""The table of results that Live and Roofline share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import polars as pl
from markupsafe import Markup

from services.ui.charts.roofline import VERIFICATION_TEXTS
from services.ui.pages.shell import fragment

REMEMBERED_ROW_COUNT: Final = 4_096
"""Rows kept as HTML: pages of one run show the same ones again and again, and making one takes a tenth of a millisecond."""


class ResultRow(NamedTuple):
    """What is shown of a row of the table roofline."""

    run_id: str
    label: str
    duration_median_ns: float | None
    duration_mean_ns: float | None
    achieved_flop_per_s: float | None
    achieved_bytes_per_s: float | None
    intensity_flop_per_byte: float | None
    efficiency_ratio: float | None
    bound: str | None
    verification_state: str | None
    is_implausible: bool | None
    implausible_reason: str | None


def result_rows(roofline: pl.DataFrame) -> list[ResultRow]:
    """Of rows of the table roofline, in their order."""
    return [ResultRow(*values) for values in roofline.select(ResultRow._fields).iter_rows()]


def results_fragment(rows: Iterable[ResultRow], *, with_run: bool) -> str:
    return fragment("results.html", rows=[_row(row, with_run) for row in rows], with_run=with_run)


@lru_cache(REMEMBERED_ROW_COUNT)
def _row(row: ResultRow, with_run: bool) -> Markup:
    return Markup(fragment("result_row.html", row=row, with_run=with_run, verification=VERIFICATION_TEXTS))
