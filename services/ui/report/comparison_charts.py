"""Which charts a comparison of two runs has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from services.ui import theme
from services.ui.charts import roofline
from services.ui.charts.models import Bar, bar_chart
from services.ui.charts.stacks import Stretch, stacked_bars
from services.ui.report.document import Chart, Key
from services.ui.report.run_charts import MAX_BAR_COUNT, Tables, roofline_of
from services.ui.theme import LIGHT

MAX_SPEED_UP_COUNT: Final = 30
"""Configurations in one chart; the names of more cannot be read on a page."""


def comparison_charts(tables: Tables, run_id: str, baseline_run_id: str) -> list[Chart]:
    """Those that there are rows for.

    Args:
        tables: comparison, or kernel_comparison and layer_comparison; roofline and ceilings of both runs.
    """
    return [*_speed_ups(tables), *_changes(tables), *_rooflines(tables, {baseline_run_id: "before", run_id: "after"})]


def _speed_ups(tables: Tables) -> Iterator[Chart]:
    rows = tables.get("comparison", pl.DataFrame())
    if rows.is_empty():
        return
    matched = rows.filter(pl.col("duration_ratio") > 0).sort("duration_ratio")
    shown = matched.head(MAX_SPEED_UP_COUNT)
    if shown.is_empty():
        return
    names = [row["label"] for row in shown.iter_rows(named=True)]
    bars = [_speed_up(row) for row in shown.iter_rows(named=True)]
    note = "Time of the first run over that of the second: above 1 the second is faster. Whiskers are the interval of the ratio."
    rest = matched.height - shown.height
    if rest:
        note += f" The {shown.height} that gained most, of {matched.height}."
    element = bar_chart(names, [bars], "speed-up", LIGHT, 380, theme.RATIO_TICKS, base=1.0)
    yield Chart("Speed-up of each configuration", element, "wide", note)


def _speed_up(row: dict[str, Any]) -> Bar:
    """Durations' ratio turned round, and with it the ends of its interval."""
    low, high = row["duration_ratio_low"], row["duration_ratio_high"]
    verdict = str(row["verdict"] or "not judged").lower()
    text = f"{row['label']}: ×{1 / row['duration_ratio']:.3g}, {verdict}"
    return Bar(1 / row["duration_ratio"], 1 / high if high else None, 1 / low if low else None, text)


def _changes(tables: Tables) -> Iterator[Chart]:
    for table_name, name, title in (
        ("kernel_comparison", "kernel_name", "Kernels that changed most"),
        ("layer_comparison", "layer", "Layers that changed most"),
    ):
        rows = tables.get(table_name, pl.DataFrame())
        if rows.is_empty():
            continue
        shown = rows.with_columns(pl.col(name).fill_null("(outside of every one)")).head(MAX_BAR_COUNT // 2)
        names, stacks = [], []
        for row in shown.iter_rows(named=True):
            for place, (side, column) in enumerate((("before", "baseline_duration_sum_ns"), ("after", "duration_sum_ns"))):
                value = float(row[column] or 0)
                names.append(f"{side}: {row[name]}")
                stacks.append([Stretch(value, LIGHT.series[place], f"{row[name]}, {side}: {theme.duration(value)}")])
        key = [Key("before", LIGHT.series[0]), Key("after", LIGHT.series[1])]
        yield Chart(title, stacked_bars(names, stacks, "device time", LIGHT, theme.DURATION_TICKS), "wide", "Largest change first.", key)


def _rooflines(tables: Tables, sides: Mapping[str, str]) -> Iterator[Chart]:
    rows = tables.get("roofline", pl.DataFrame())
    if rows.is_empty():
        return
    newest = roofline.newest_rows(rows).with_columns(run_id=pl.col("run_id").replace(dict(sides))).sort("run_id", descending=True)
    if not roofline.drawable(newest).is_empty():
        yield roofline_of(newest, tables.get("ceilings", pl.DataFrame()), "Rooflines of both runs", "run_id")
