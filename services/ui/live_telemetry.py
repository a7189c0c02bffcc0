"""What a run's machine does meanwhile: a chart of what is busy and how hot, and tiles with the newest readings."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Final

import holoviews as hv
import polars as pl

from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import telemetry
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.legend import LegendEntry, hideable, legend_fragment, series_key
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.made_once import MadeOnce
from kernalyse.services.ui.memory import NewRows
from kernalyse.services.ui.pages.shell import fragment
from kernalyse.services.ui.theme import Palette

MAX_NEW_READINGS: Final = 20
"""Looked at for the newest of each kind: one reading of the host and one of each device come together."""

SHORTEST_SPAN_MS: Final = 10_000
KEPT_READINGS: Final = 7_200
"""Of each line, in each tab: those of an hour."""
SYMBOLS: Final = {"solid": "━", "dashed": "╍", "dotted": "┅"}


@EmptyChart
def _telemetry_chart(palette: Palette) -> hv.Overlay:
    return telemetry.telemetry_chart({line: telemetry.no_line() for line in telemetry.LINES}, palette)


class LiveTelemetry:
    """Of one tab."""

    def __init__(self, palette: Palette) -> None:
        self.chart = LiveFigure("telemetry", _telemetry_chart, palette, telemetry.LINES)
        self._palette = palette
        self._forget()

    def _forget(self) -> None:
        self._present: set[str] = set()  # lines with readings
        self._span: tuple[float, float] | None = None  # of their times
        self._newest: dict[bool, dict[str, Any]] = {}  # True: of the host, False: of the device

    def clear(self) -> None:
        """Nothing of a run is shown."""
        self._forget()
        for line in telemetry.LINES:
            self.chart.replace(line, telemetry.no_line())

    def take_in(self, new: NewRows, made: MadeOnce) -> None:
        """Rows of table telemetry. made: of the run's new rows, by any page."""
        if new.frame is None:
            return
        self._newest |= made.get(("readings", new.span), partial(_newest_readings, new.frame))
        for line in telemetry.LINES:
            columns = made.get((line, new.span), partial(telemetry.line_columns, new.frame, line))
            if new.is_restart:
                self.chart.replace(line, columns)
            elif len(columns["time"]):
                self.chart.stream(line, columns, KEPT_READINGS)
            if len(columns["time"]):
                self._take_in_times(line, float(columns["time"][0]), float(columns["time"][-1]))
        if self._span is not None:
            start, end = telemetry.shown_span(*self._span)
            self.chart.follow("x", start, max(end, start + SHORTEST_SPAN_MS))

    def _take_in_times(self, line: str, first: float, last: float) -> None:
        self._present.add(line)
        self._span = (first, last) if self._span is None else (min(self._span[0], first), max(self._span[1], last))

    def hide(self, keys: Collection[str]) -> None:
        """keys: of hidden series, see `legend.series_key`."""
        self.chart.hide([line for line in telemetry.LINES if series_key(telemetry.TITLES[line]) in keys])

    def legend(self, hidden: Collection[str]) -> str:
        entries = [
            LegendEntry(telemetry.TITLES[line], telemetry.line_color(line, self._palette), SYMBOLS[telemetry.DASHES[line]])
            for line in telemetry.LINES
            if line in self._present
        ]
        return legend_fragment(hideable(entries, hidden))

    def tiles(self) -> str:
        host, device = self._newest.get(True, {}), self._newest.get(False, {})
        figures = (
            ("Load", host.get("load_average"), theme.digits),
            ("Host memory", host.get("memory_used_bytes"), theme.memory),
            ("Device memory", device.get("memory_used_bytes"), theme.memory),
            ("Clock", device.get("clock_hz") or host.get("clock_hz"), theme.frequency),
            ("Memory clock", device.get("memory_clock_hz"), theme.frequency),
            ("Temperature", device.get("temperature_celsius") or host.get("temperature_celsius"), theme.temperature),
            ("Power", device.get("power_watts") or host.get("power_watts"), theme.power),
            ("Throttled by", device.get("throttle_reasons"), str),
        )
        tiles = [{"name": name, "value": show(value)} for name, value, show in figures if value not in (None, "")]
        return fragment("tiles.html", tiles=tiles)


def _newest_readings(new: pl.DataFrame) -> dict[bool, dict[str, Any]]:
    """True: of the host, False: of the device."""
    return {row["device_id"] is None: row for row in new.tail(MAX_NEW_READINGS).to_dicts()}
