"""What a run measured, beside the same of earlier runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import holoviews as hv
import polars as pl

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import history
from kernalyse.services.ui.charts.elements import tick_formatter
from kernalyse.services.ui.charts.names import elided
from kernalyse.services.ui.report.document import Chart
from kernalyse.services.ui.theme import LIGHT

METRIC: Final = "duration_median_ns"
MAX_TITLE_LENGTH: Final = 60
MAX_TICK_COUNT: Final = 12
MIN_JUDGED_RUNS: Final = 6  # the analyzer's
JUDGED: Final = "Dashed: levels, with the band that 95 % of such runs lie in."
NOT_JUDGED: Final = "Dashed: the mean. Fewer than six runs cannot tell noise from a change."


def history_charts(rows: pl.DataFrame) -> Iterator[Chart]:
    """A chart for each series. rows: of table history, series after series, each oldest first; none where nothing has a history."""
    if rows.is_empty():
        return
    parts = rows.partition_by("series", maintain_order=True)
    for number, part in enumerate(parts):
        points, whiskers = history.point_columns(part, METRIC, "runs", LIGHT), history.whisker_columns(part, "runs")
        bands, levels = history.level_columns(part, "runs")
        x, y = history.span_of(points, whiskers, bands, "runs")
        names = history.run_names(part)
        step = math.ceil(len(names) / MAX_TICK_COUNT)
        shown = {"bands": bands, "levels": levels, "whiskers": whiskers, "runs": points}
        element = history.history_chart(LIGHT, shown, 300).opts(
            hv.opts.Overlay(
                xlim=x,
                ylim=y,
                xlabel="Runs up to this one, by commit",
                xticks=[(place, name) for place, name in names.items() if (len(names) - 1 - place) % step == 0],
                xformatter=tick_formatter(theme.PLAIN_TICKS),
            )
        )
        note = _history_note(part, len(parts) if number == 0 else 1)
        yield Chart(f"History of {elided(part['label'][0], MAX_TITLE_LENGTH)}", element, "wide", note)


def _history_note(part: pl.DataFrame, chart_count: int) -> str:
    """chart_count: that it speaks for."""
    notes = [JUDGED if part.height >= MIN_JUDGED_RUNS else NOT_JUDGED]
    changes = part.filter(pl.col("verdict").is_not_null())
    if changes.height:
        notes.append("▼ a regression, ▲ an improvement; hollow: not confirmed yet.")
        notes.append(f"The last: {changes['reason'][-1]}")
    notes += [note] if (note := disturbance_note(part["disturbance"])) else []
    if chart_count > 1:
        notes.append(f"Of what earlier runs have too, these {chart_count} changed most of late, or else take longest.")
    return " ".join(notes)
