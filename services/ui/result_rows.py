"""What tables of results show of each point of a roofline."""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from kernalyse.services.ui.charts.roofline_points import IDENTITY
from kernalyse.services.ui.diagnosis import point_key


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
