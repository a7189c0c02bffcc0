"""A run while it goes on: samples, its place under the roofline, its machine, its log and its results."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from markupsafe import Markup

from kernalyse.services.core.model import Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import roofline, strips, telemetry
from kernalyse.services.ui.components.base import Component, Text, card, html, joined
from kernalyse.services.ui.components.chart import ChartCard, LegendEntry, hidden_names, hideable, series_key
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.components.roofline import LIVE_ROOFLINE
from kernalyse.services.ui.components.table import Results
from kernalyse.services.ui.data.live_points import MAX_RESULT_ROWS, LivePoints, rows_but
from kernalyse.services.ui.data.memory import NewRows, RunMemory, StripsChange, StripsPosition
from kernalyse.services.ui.data.sample_strips import LayerChange, LayerPosition
from kernalyse.services.ui.theme import CATEGORIES, SYMBOLS, Palette, style_of
from kernalyse.services.ui.view import LiveView

if TYPE_CHECKING:
    import holoviews as hv

    from kernalyse.services.ui.tab import Context

MAX_LOG_LINES: Final = 200
MAX_NEW_READINGS: Final = 20
"""Looked at for the newest of each kind: one reading of the host and one of each device come together."""

READING_S: Final = 1.0
"""Between two changes of what is read word by word."""

RESULTS_S: Final = 2.0
"""Between two changes of the table of results, which costs as much as all charts."""

SHORTEST_SPAN_MS: Final = 10_000
KEPT_READINGS: Final = 7_200
"""Of each line, in each tab: those of an hour."""
DASH_SYMBOLS: Final = {"solid": "━", "dashed": "╍", "dotted": "┅"}


def _empty_strips(palette: Palette) -> hv.Overlay:
    return strips.strip_chart(strips.no_samples(), strips.no_samples(), *strips.no_medians(), palette)


def _empty_telemetry(palette: Palette) -> hv.Overlay:
    return telemetry.telemetry_chart({line: telemetry.no_line() for line in telemetry.LINES}, palette)


STRIPS: Final = RenderedChart(_empty_strips)
TELEMETRY: Final = RenderedChart(_empty_telemetry)


class Reader:
    """How far a component has read the tables of the run that it shows."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def new_rows(self, memory: RunMemory, table_name: str) -> NewRows:
        """Return the rows that have come since the last time."""
        new = memory.since(table_name, self._positions.get(table_name, 0))
        self._positions[table_name] = new.position
        return new

    def forget(self, *table_names: str) -> None:
        """Read these tables from their beginning again; without names all of them."""
        for name in table_names or tuple(self._positions):
            self._positions.pop(name, None)

    @property
    def positions(self) -> tuple[tuple[str, int], ...]:
        return tuple(self._positions.items())


class LiveRun(Component):
    """The run that a page shows, with its configurations.

    Attributes:
        memory: what is known of it; None: there is no run.
        shown: which run, which state of it and what is hidden of it; charts begin anew with another.
        labels: of its configurations, by their index; colors the same.
    """

    def __init__(self, context: Context, view: LiveView) -> None:
        super().__init__(context)
        self.view = view
        self.memory: RunMemory | None = None
        self.shown: tuple[str, int, tuple[str, ...]] | None = None
        self._update_count = -1
        self._reader = Reader()
        self._forget()

    def _forget(self) -> None:
        self._reader.forget()
        self.labels: list[str] = []
        self.categories: set[str] = set()
        self.hidden_indexes: frozenset[int] = frozenset()
        self.colors = strips.configuration_colors((), self.context.palette)

    @property
    def run(self) -> Run | None:
        """The run as the later of two streams tells of it: a final state, else the further progress. Its own ends with it."""
        memory, overview = self.memory, self.context.overview
        if memory is None:
            return None
        listed = next((run for run in overview.runs if run.run_id == memory.run_id), None)
        told = (listed, memory.run) if listed is not None and listed.state.is_final else (memory.run, listed)
        known = [run for run in told if run is not None]
        return max(
            known,
            key=lambda run: (run.state.is_final, run.is_settled, run.start_time is not None, run.completed_configuration_count),
            default=None,
        )

    def update(self) -> None:
        if self._update_count == self.context.update_count:
            return
        self._update_count = self.context.update_count
        memories = self.context.memories(self.context.shown_run_ids()[:1])
        self.memory = memories[0] if memories else None
        shown = None if self.memory is None else (self.memory.run_id, self.memory.state_count, tuple(self.view.hidden))
        if shown != self.shown:
            self.shown = shown
            self._forget()
        if self.memory is not None:
            self._read_configurations(self.memory)

    def _read_configurations(self, memory: RunMemory) -> None:
        new = self._reader.new_rows(memory, "configurations").frame
        if new is None:
            return
        known_count = len(self.labels)
        categories = new["category"].to_list()
        self.labels = self.labels + new["label"].to_list()
        self.categories |= {category for category in categories if category is not None}
        hidden = hidden_names({category for category in categories if category}, self.view.hidden)
        if hidden:
            self.hidden_indexes |= {known_count + place for place, category in enumerate(categories) if category in hidden}
        self.colors = np.concatenate([self.colors[:known_count], strips.configuration_colors(categories, self.context.palette)])


class LiveChart(Component):
    """A chart of the run, drawn anew for another one and continued for the same."""

    def __init__(self, context: Context, view: LiveView, run: LiveRun | None) -> None:
        super().__init__(context)
        self.view = view
        self.run = run or LiveRun(context, view)
        self.reader = Reader()
        self._shown: tuple[str, int, tuple[str, ...]] | None = None
        self._is_empty = False

    def update(self) -> None:
        self.run.update()
        if self.run.shown != self._shown or not self._is_empty:
            self.reader.forget()
            is_other = self._shown is None or self.run.shown is None or self._shown[:2] != self.run.shown[:2]
            self._shown, self._is_empty = self.run.shown, True
            self.clear(is_other=is_other)
        if self.run.memory is not None:
            self.read(self.run.memory)

    def clear(self, *, is_other: bool) -> None:
        """Draw nothing. is_other: what comes next is another run, or the same one begun anew."""
        raise NotImplementedError

    def read(self, memory: RunMemory) -> None:
        """Draw what has come since the last time."""
        raise NotImplementedError


class SamplesChart(LiveChart):
    """A strip for each configuration, a dot for each timed launch."""

    def __init__(self, context: Context, view: LiveView, run: LiveRun | None = None) -> None:
        super().__init__(context, view, run)
        self.figure = Figure("samples", STRIPS, context.palette, ("finished", "samples", "intervals", "medians"))
        self._card = ChartCard("Samples", self.figure)
        self.layout = self._card.layout

    def clear(self, *, is_other: bool) -> None:
        self._strips: StripsChange | None = None
        self._strip_step = 1  # medians of one configuration of so many are drawn
        self._duration_span: tuple[float, float] | None = None
        self._labels: list[str] = []
        self._noted_time = -math.inf
        if is_other:
            self.figure.forget_moves()
        medians, intervals = strips.no_medians()
        for layer, columns in zip(
            ("finished", "samples", "medians", "intervals"), (strips.no_samples(), strips.no_samples(), medians, intervals), strict=True
        ):
            self.figure.replace(layer, columns)

    def read(self, memory: RunMemory) -> None:
        self._name_configurations()
        self._read_measurements(memory)
        self._read_samples(memory)
        run, now = self.run.run, time.monotonic()
        is_over = run is not None and run.state.is_final
        if is_over or now >= self._noted_time + READING_S:
            self._noted_time = now
            self._card.note.show(self._note(is_over=is_over))

    def _name_configurations(self) -> None:
        if self.run.labels is self._labels:
            return
        self._labels = self.run.labels
        self.figure.name_ticks(strips.tick_labels(self._labels))
        shown = [index for index in range(len(self._labels)) if index not in self.run.hidden_indexes] or [0, len(self._labels) - 1]
        self.figure.follow("x", shown[0] - 0.5, shown[-1] + 0.5)

    def _read_measurements(self, memory: RunMemory) -> None:
        step, hidden = memory.strip_step, self.run.hidden_indexes
        if step != self._strip_step:
            self._strip_step = step
            self.reader.forget("measurements")
        new = self.reader.new_rows(memory, "measurements")
        if new.frame is None:
            return
        shown = rows_but(new.frame.filter(pl.col("configuration_index") % step == 0), hidden)
        draw = self.figure.stream if new.begin else self.figure.replace
        for layer, columns_of in (("medians", strips.median_columns), ("intervals", strips.interval_columns)):
            draw(layer, memory.made.get((layer, new.span, step, hidden), partial(columns_of, shown)))

    def _read_samples(self, memory: RunMemory) -> None:
        before = self._strips.position if self._strips else StripsPosition()
        self._strips = memory.strips_since(before)
        self._draw_samples("finished", self._strips.finished, (before.finished, self._strips.position.finished), memory)
        self._draw_samples("samples", self._strips.live, (before.live, self._strips.position.live), memory)

    def _draw_samples(self, layer: str, change: LayerChange | None, span: tuple[LayerPosition, LayerPosition], memory: RunMemory) -> None:
        if change is None:
            return
        rows, colors = change.rows, self.run.colors
        if self.run.hidden_indexes:
            rows = rows.chosen(~np.isin(rows.configuration_index, list(self.run.hidden_indexes)))
        make = partial(strips.sample_columns, rows, colors)
        columns = memory.made.get((self.run.shown, layer, span, self.context.palette, len(colors)), make)
        if change.is_new:
            self.figure.replace(layer, columns)
        elif len(columns["x"]):
            self.figure.stream(layer, columns)
        found, old = strips.duration_range(columns), self._duration_span
        # Grows only, and by steps: an axis that moves with every sample cannot be read.
        if found is not None and (old is None or found[0] < old[0] or found[1] > old[1]):
            self._duration_span = found if old is None else (min(found[0], old[0]), max(found[1], old[1]))
            self.figure.follow("y", *self._duration_span)

    def _note(self, *, is_over: bool) -> str:
        if self._strips is None or not self._strips.sample_count:
            return "this run has no samples" if is_over else "one strip a configuration, one dot a launch, the bar is the median"
        text = f"{theme.count(self._strips.sample_count)} samples"
        if self._strips.drawn_count < self._strips.sample_count:
            text += f", {theme.count(self._strips.drawn_count)} drawn"
        return f"{text}; ▼ outlier, ✕ discarded while the clock was throttled"


class LiveRoofline(LiveChart):
    """Each configuration of the run under the ceilings of its device, as it is finished."""

    def __init__(self, context: Context, view: LiveView, run: LiveRun | None = None) -> None:
        super().__init__(context, view, run)
        self.figure = Figure("live_roofline", LIVE_ROOFLINE, context.palette, ("ceilings", "names", "points"))
        self.points = LivePoints()
        self._card = ChartCard("Roofline", self.figure)
        self.layout = self._card.layout

    def clear(self, *, is_other: bool) -> None:
        self.points = LivePoints()
        self._ceilings: pl.DataFrame | None = None
        self._dtypes: tuple[str, ...] = ()
        self._shown_ceilings: tuple[roofline.CeilingRow, ...] = ()
        self._span: roofline.Span | None = None
        if is_other:
            self.figure.forget_moves()
        self.figure.replace("points", self.points.points)
        self._draw_ceilings(has_new=True)
        self._told: object = None

    def read(self, memory: RunMemory) -> None:
        new = self.reader.new_rows(memory, "roofline")
        known = self.reader.new_rows(memory, "ceilings")
        if known.frame is not None:
            before = None if known.is_restart else self._ceilings
            self._ceilings = known.frame if before is None else pl.concat([before, known.frame], how="vertical_relaxed")
        if new.frame is not None:
            self._draw_points(new, memory)
        if new.frame is not None or known.frame is not None:
            self._draw_ceilings(has_new=known.frame is not None)
        told = (new.position, known.position, len(self.run.labels))
        if told != self._told:
            self._told = told
            self._card.note.show(self._note())
            self._card.show_legend(self._entries(), **roofline.marks_of(self.points.points))

    def _draw_points(self, new: NewRows, memory: RunMemory) -> None:
        self.points = self.points.and_new(new, self.context.palette, self.run.hidden_indexes, memory)
        if self.points.added is not None:
            self.figure.stream("points", self.points.added)
        else:
            self.figure.replace("points", self.points.points)

    def _draw_ceilings(self, *, has_new: bool) -> None:
        dtypes = tuple(sorted(self.points.dtypes))
        if has_new or dtypes != self._dtypes:
            self._dtypes, self._shown_ceilings = dtypes, roofline.shown_ceilings(self._ceilings, dtypes)
        span = roofline.span_of(self.points.points, self._shown_ceilings)
        if not has_new and span == self._span:
            return
        self._span = span
        lines = roofline.ceiling_columns(self._shown_ceilings, span, self.context.palette)
        self.figure.replace("ceilings", lines)
        self.figure.replace("names", roofline.label_columns(lines))
        self.figure.follow("x", span.x_start, span.x_end)
        self.figure.follow("y", span.y_start, span.y_end)

    def _entries(self) -> list[LegendEntry]:
        present = self.run.categories
        names = [*(name for name in CATEGORIES if name in present), *sorted(present - set(CATEGORIES))]
        styles = [(name, style_of(name, CATEGORIES, self.context.palette)) for name in names]
        return hideable([LegendEntry(name, style.color, SYMBOLS[style.marker]) for name, style in styles], self.view.hidden)

    def _note(self) -> str:
        rows = self.points.rows
        if rows is None:
            return ""
        missing_count = rows_but(rows, self.run.hidden_indexes).height - self.points.count
        parts = [f"Ridge of {name}: {theme.intensity(value)}." for name, value in roofline.ridges(self._shown_ceilings)]
        if missing_count:
            parts.append(f"{missing_count} without a flop count cannot be placed here; byte rates are under Results.")
        if self.points.drawn_count < self.points.count:
            parts.append(f"{theme.count(self.points.drawn_count)} of {theme.count(self.points.count)} points drawn.")
        parts.append(self.points.note)
        if self._ceilings is None:
            parts.append("No ceiling of this device is known yet.")
        return " ".join(part for part in parts if part)


class TelemetryChart(LiveChart):
    """What is busy and how hot while the run lasts, and tiles with the newest readings."""

    def __init__(self, context: Context, view: LiveView, run: LiveRun | None = None) -> None:
        super().__init__(context, view, run)
        self.figure = Figure("telemetry", TELEMETRY, context.palette, telemetry.LINES)
        self._tiles = Text(classes=("tiles",))
        self._card = ChartCard("Telemetry", self.figure, self._tiles)
        self.layout = self._card.layout

    def clear(self, *, is_other: bool) -> None:
        self._present: set[str] = set()  # lines with readings
        self._span: tuple[float, float] | None = None  # of their times
        self._newest: dict[bool, dict[str, Any]] = {}  # True: of the host, False: of the device
        if is_other:
            self.figure.forget_moves()
        for line in telemetry.LINES:
            self.figure.replace(line, telemetry.no_line())
        hidden = self.view.hidden
        self.figure.hide([line for line in telemetry.LINES if series_key(telemetry.TITLES[line]) in hidden])

    def read(self, memory: RunMemory) -> None:
        new = self.reader.new_rows(memory, "telemetry")
        if new.frame is None:
            return
        self._newest |= memory.made.get(("readings", new.span), partial(_newest_readings, new.frame))
        for line in telemetry.LINES:
            columns = memory.made.get((line, new.span), partial(telemetry.line_columns, new.frame, line))
            if new.is_restart:
                self.figure.replace(line, columns)
            elif len(columns["time"]):
                self.figure.stream(line, columns, KEPT_READINGS)
            if len(columns["time"]):
                first, last = float(columns["time"][0]), float(columns["time"][-1])
                self._present.add(line)
                self._span = (first, last) if self._span is None else (min(self._span[0], first), max(self._span[1], last))
        if self._span is not None:
            start, end = telemetry.shown_span(*self._span)
            self.figure.follow("x", start, max(end, start + SHORTEST_SPAN_MS))
        self._card.show_legend(self._entries(self.view.hidden))
        self._tiles.show(self._told())

    def _entries(self, hidden: Collection[str]) -> list[LegendEntry]:
        lines = [line for line in telemetry.LINES if line in self._present]
        colors = {line: telemetry.line_color(line, self.context.palette) for line in lines}
        return hideable([LegendEntry(telemetry.TITLES[line], colors[line], DASH_SYMBOLS[telemetry.DASHES[line]]) for line in lines], hidden)

    def _told(self) -> str:
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
            ("Also on the device", device.get("other_processes"), str),
        )
        tile = '<div class="tile"><span>{}</span><strong>{}</strong></div>'
        return joined(html(tile, name, show(value)) for name, value, show in figures if value not in (None, ""))


class Log(LiveChart):
    """The newest lines of the run's log."""

    def __init__(self, context: Context, view: LiveView, run: LiveRun | None = None) -> None:
        super().__init__(context, view, run)
        self._text = Text(classes=("log",))
        self.layout = card(Text(html("<h2>Log</h2>")), self._text)

    def clear(self, *, is_other: bool) -> None:
        self._lines: list[Markup] = []
        self._text.show(html('<p class="empty">No log lines.</p>'))

    def read(self, memory: RunMemory) -> None:
        new = self.reader.new_rows(memory, "log_lines").frame
        if new is None:
            return
        self._lines = [*self._lines, *(_log_line(row) for row in new.tail(MAX_LOG_LINES).to_dicts())][-MAX_LOG_LINES:]
        self._text.show(html('<div class="lines" tabindex="0" aria-label="Log lines"><div>{}</div></div>', joined(self._lines)))


class LiveResults(Component):
    """The newest results of the run."""

    def __init__(self, context: Context, chart: LiveRoofline) -> None:
        super().__init__(context)
        self._chart = chart
        self._results = Results()
        self._note = Text(classes=("note",))
        self._rows: object = self
        self._shown_run: object = None
        self._shown_time = -math.inf
        self.layout = card(Text(html("<h2>Results</h2>")), self._note, self._results.table)

    def update(self) -> None:
        points, run, now = self._chart.points, self._chart.run.run, time.monotonic()
        rows = points.rows
        is_same = self._shown_run == self._chart.run.shown  # another run's results must not stand under its name
        is_going_on = is_same and rows is not None and run is not None and not run.state.is_final
        if rows is self._rows or (is_going_on and now < self._shown_time + RESULTS_S):
            return
        self._rows, self._shown_run, self._shown_time = rows, self._chart.run.shown, now
        self._results.show_results(points.newest_results, with_run=False)
        is_cut = rows is not None and rows.height > MAX_RESULT_ROWS
        self._note.show(f"the newest {MAX_RESULT_ROWS} of {theme.count(rows.height)}" if rows is not None and is_cut else "")


def _newest_readings(new: pl.DataFrame) -> dict[bool, dict[str, Any]]:
    """True: of the host, False: of the device."""
    return {row["device_id"] is None: row for row in new.tail(MAX_NEW_READINGS).to_dicts()}


def _log_line(row: dict[str, Any]) -> Markup:
    moment = datetime.fromtimestamp(row["event_unix_ns"] / 1e9, UTC).strftime("%H:%M:%S")
    line = '<div class="line {}"><time>{}</time><span class="source">{}</span><span class="text">{}</span></div>'
    return html(line, row["level"].lower(), moment, row["source"], row["line"])
