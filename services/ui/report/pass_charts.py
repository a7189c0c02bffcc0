"""Whole passes of a model: how long they take, how that spreads, and what memory they need."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import holoviews as hv
import polars as pl

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.models import Bar, bar_chart, line_chart
from kernalyse.services.ui.charts.passes import COLUMNS, PERCENTILES, Passes, passes_of
from kernalyse.services.ui.report.document import Chart, Key
from kernalyse.services.ui.theme import LIGHT, MARKERS, SYMBOLS


def pass_charts(rows: pl.DataFrame) -> Iterator[Chart]:
    """rows: of table models, of one run."""
    timed = rows if rows.is_empty() else rows.filter(pl.col("duration_median_ns") > 0)
    if timed.is_empty():
        return
    found = passes_of(timed.select(*COLUMNS, "duration_median_low_ns", "duration_median_high_ns"), {timed["run_id"][0]: ""})
    disturbed = disturbance_note(timed["disturbance"])
    note = f"Median of the passes; whiskers are its 95 % interval. {disturbed}".rstrip()
    medians = bar_chart(found.names, found.sides(_median), "median", LIGHT, ticks=theme.DURATION_TICKS)
    yield Chart("Latency of a pass", medians, note=note)
    rates = found.figures("tokens_per_s", lambda value: theme.si(value, "tokens/s"))
    if _is_known(rates):
        yield Chart("Throughput", bar_chart(found.names, rates, "tokens/s of the median", LIGHT), note=disturbed)
    yield _percentiles(found, disturbed)
    memory = found.figures("memory_bytes", theme.memory)
    if _is_known(memory):
        bars = bar_chart(found.names, memory, "device memory", LIGHT, ticks=theme.MEMORY_TICKS)
        yield Chart("Device memory", bars.opts(hv.opts.Overlay(yticks=_whole_bytes(memory))))


def _median(row: Mapping[str, Any]) -> Bar:
    low, high = row["duration_median_low_ns"], row["duration_median_high_ns"]
    text = f"{row['name']}: {theme.duration(row['duration_median_ns'])}, {theme.duration(low)} to {theme.duration(high)}"
    return Bar(row["duration_median_ns"], low, high, text)


def _is_known(sides: Sequence[Sequence[Bar | None]]) -> bool:
    return any(bar is not None for bars in sides for bar in bars)


def _whole_bytes(sides: Sequence[Sequence[Bar | None]]) -> list[int]:
    """Ticks at powers of two, or a few of one: decimal ones would be odd figures of KiB."""
    highest = max(bar.value for bars in sides for bar in bars if bar is not None)
    step = 2 ** max(0, math.ceil(math.log2(max(highest, 1) / 4)))
    return [step * place for place in range(int(highest / step) + 2)]


def _percentiles(found: Passes, disturbed: str) -> Chart:
    lines = found.percentiles()
    element = line_chart(tuple(PERCENTILES), lines, "time of a pass", LIGHT, 300, theme.DURATION_TICKS, theme.duration)
    key = [
        Key(line.name, LIGHT.series[place % len(LIGHT.series)], SYMBOLS[MARKERS[place % len(MARKERS)]]) for place, line in enumerate(lines)
    ]
    return Chart("Percentiles of a pass", element, note=f"From the shortest pass to the longest. {disturbed}".rstrip(), key=key)
