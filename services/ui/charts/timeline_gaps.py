"""Gaps between the kernels of a device, each in the row of its device and in the colour of its reason."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from kernalyse.services.ui.charts.elements import Columns, text_column
from kernalyse.services.ui.charts.timeline_looks import REASON_TITLES, REASONS, short_name
from kernalyse.services.ui.charts.timeline_rows import BAR, QUAD, TimelineRows

GAP_NUMBERS: Final = (*QUAD, "color", "start", "duration")
GAP_TEXTS: Final = ("reason", "before", "after", "call")


def gap_columns(gaps: pl.DataFrame, rows: TimelineRows) -> Columns:
    """Gaps in the row of their device. gaps: rows of table gaps."""
    row_of = [rows.device_rows.get(key) for key in zip(gaps["process_id"], gaps["device_index"], strict=True)]
    kept = gaps.filter(pl.Series([row is not None for row in row_of], dtype=pl.Boolean))
    row = np.array([row for row in row_of if row is not None], dtype=np.float64)
    reasons = [REASONS.index(reason) if reason in REASONS else len(REASONS) - 1 for reason in kept["reason"].to_list()]
    start_ns = kept["start_ns"].to_numpy().astype(np.float64)
    duration_ns = kept["duration_ns"].to_numpy().astype(np.float64)

    def text(name: str) -> Any:
        return text_column(short_name(value) if value else "–" for value in kept[name].to_list())

    return {
        "left": start_ns,
        "right": start_ns + duration_ns,
        "bottom": row + BAR[1],
        "top": row + BAR[0],
        "color": np.array(reasons, dtype=np.int32),
        "start": start_ns,
        "duration": duration_ns,
        "reason": text_column(REASON_TITLES[REASONS[code]] for code in reasons),
        "before": text("kernel_before"),
        "after": text("kernel_after"),
        "call": text("call"),
    }
