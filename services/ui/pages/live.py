"""The Live page: a run while it goes on, its samples, its place under the roofline, its machine and its log."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import holoviews as hv
import numpy as np
import polars as pl

from kernalyse.services.core.model import Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import roofline, strips
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.legend import LegendEntry, hidden_names, hideable, legend_fragment
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.live_points import LivePoints, rows_but
from kernalyse.services.ui.live_telemetry import LiveTelemetry
from kernalyse.services.ui.memory import NewRows, Overview, RunMemory, StripsChange, StripsPosition
from kernalyse.services.ui.pages.results import result_rows, results_fragment
from kernalyse.services.ui.pages.roofline_figure import LIVE_ROOFLINE
from kernalyse.services.ui.pages.shell import MAX_LISTED_RUNS, PageBase, fragment, node_cards, run_card
from kernalyse.services.ui.sample_strips import LayerChange, LayerPosition
from kernalyse.services.ui.state import Page, ViewState, to_query
from kernalyse.services.ui.theme import CATEGORIES, SYMBOLS, Palette, style_of

MAX_LOG_LINES: Final = 200
MAX_RESULT_ROWS: Final = 30
MAX_SHOWN_FAILURES: Final = 5


@EmptyChart
def _strips_chart(palette: Palette) -> hv.Overlay:
    return strips.strip_chart(strips.no_samples(), strips.no_samples(), *strips.no_medians(), palette)


class LivePage(PageBase):
    page: Page = "live"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, state)
        self.samples = LiveFigure("samples", _strips_chart, self.palette, ("finished", "samples", "intervals", "medians"))
        self.roofline = LiveFigure("roofline", LIVE_ROOFLINE, self.palette, ("ceilings", "names", "points"))
        self.telemetry = LiveTelemetry(self.palette)
        self._cancelling = ""
        self._cards_made_for: object = None
        self._cards: dict[str, str] = {}
        self._made_for: object = None
        self._made: dict[str, str] = {}
        self._forget()

    def _forget(self) -> None:
        """Nothing of a run is on the page."""
        self._shown: tuple[str, int, tuple[str, ...]] | None = None  # run, which state of it, and what is hidden of it
        self._positions: dict[str, int] = {}
        self._labels: list[str] = []  # of configurations, by their index
        self._categories: set[str | None] = set()
        self._hidden_indexes: frozenset[int] = frozenset()  # of configurations whose category is hidden
        self._colors = strips.configuration_colors((), self.palette)  # of configurations, by their index
        self._strips: StripsChange | None = None
        self._strip_step = 1  # medians of one configuration of so many are drawn
        self._duration_span: tuple[float, float] | None = None
        self._points = LivePoints()
        self._ceilings: pl.DataFrame | None = None
        self._dtypes: tuple[str, ...] = ()
        self._shown_ceilings: tuple[roofline.CeilingRow, ...] = ()
        self._span: roofline.Span | None = None
        self._log: list[dict[str, str]] = []
        self._failures: list[dict[str, Any]] = []

    def roots(self) -> dict[str, Any]:
        return {"samples": self.samples.figure, "roofline": self.roofline.figure, "telemetry": self.telemetry.chart.figure}

    def handle(self, name: str, value: str) -> Any:
        match name:
            case "cancel":
                self._cancelling = value
                return self._cancel(value)
            case "delete":
                return self._delete(value)
            case "annotate":
                fields = {str(field): str(text) for field, text in dict(json.loads(value)).items()}
                return self.client.annotate_run(fields.get("run_id", ""), tags_of(fields.get("tags", "")), fields.get("notes", "").strip())
            case _:
                return super().handle(name, value)

    async def _cancel(self, run_id: str) -> None:
        try:
            await self.client.cancel_run(run_id)
        except BaseException:
            self._cancelling = ""
            raise

    async def _delete(self, run_id: str) -> None:
        await self.client.delete_run(run_id)
        self.state = replace(self.state, runs=())

    # ------------------------------------------------------------ one update

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        memories = self.memories(self.shown_run_ids(overview)[:1])
        memory = memories[0] if memories else None
        # A click in a legend makes the page read the run from its beginning: an update has nothing to look up.
        shown = None if memory is None else (memory.run_id, memory.state_count, self.state.hidden)
        if self._shown != shown:
            self._clear_charts(is_other=shown is None or self._shown is None or self._shown[:2] != shown[:2])
            self.telemetry.hide(self.state.hidden)
            self._shown = shown
        if memory is not None:
            self._take_in(memory)
        run = self._newest_run(memory, overview)
        return {
            **self._card_fragments(run, memory, overview),
            "samples_note": self._samples_note(is_over=run is not None and run.state.is_final),
            **self._table_fragments(memory),
        }

    def _card_fragments(self, run: Run | None, memory: RunMemory | None, overview: Overview) -> dict[str, str]:
        """Of runs, nodes and the run shown: made anew when one of them has changed, and each second for times and readings."""
        now_unix_s = time.time()
        problem = memory.problem if memory else ""
        told = (overview, run, problem, self.state, self._cancelling, self._points.count > 0, len(self._failures), int(now_unix_s))
        if told != self._cards_made_for:
            self._cards_made_for = told
            self._cards = {
                "runs": self._runs_fragment(overview, run, now_unix_s),
                "nodes": fragment("node_cards.html", nodes=node_cards(overview, self.client), is_known=overview.is_known),
                "run": self._run_fragment(run, memory, overview, now_unix_s),
            }
        return self._cards

    def _table_fragments(self, memory: RunMemory | None) -> dict[str, str]:
        """Those that change with other rows than samples; made anew only then, for samples come ten times a second."""
        arrived = (
            self._shown,
            *(self._positions.get(name) for name in ("configurations", "roofline", "ceilings", "telemetry", "log_lines")),
        )
        if arrived != self._made_for:
            self._made_for = arrived
            self._made = memory.made.get((arrived, self.palette), self._made_fragments) if memory else self._made_fragments()
        return self._made

    def _made_fragments(self) -> dict[str, str]:
        return {
            "legend": self._legend(),
            "roofline_note": self._roofline_note(),
            "telemetry_legend": self.telemetry.legend(self.state.hidden),
            "tiles": self.telemetry.tiles(),
            "log": fragment("log.html", lines=self._log),
            **self._results(),
        }

    def _clear_charts(self, *, is_other: bool) -> None:
        """is_other: what is drawn next is another run, or the same one begun anew."""
        self._forget()
        if is_other:
            for figure in (self.samples, self.roofline, self.telemetry.chart):
                figure.forget_moves()
        medians, intervals = strips.no_medians()
        for layer in ("finished", "samples"):
            self.samples.replace(layer, strips.no_samples())
        self.samples.replace("medians", medians)
        self.samples.replace("intervals", intervals)
        self.roofline.replace("points", self._points.points)
        self._draw_ceilings(has_new=True)
        self.telemetry.clear()

    def _new_rows(self, memory: RunMemory, table_name: str) -> NewRows:
        new = memory.since(table_name, self._positions.get(table_name, 0))
        self._positions[table_name] = new.position
        return new

    def _take_in(self, memory: RunMemory) -> None:
        self._take_in_configurations(memory)
        self._take_in_measurements(memory)
        self._take_in_failures(memory)
        self._take_in_samples(memory)
        self._take_in_roofline(memory)
        self.telemetry.take_in(self._new_rows(memory, "telemetry"), memory.made)
        self._take_in_log(memory)

    def _take_in_configurations(self, memory: RunMemory) -> None:
        new = self._new_rows(memory, "configurations").frame
        if new is None:
            return
        known_count = len(self._labels)
        self._labels += new["label"].to_list()
        categories = new["category"].to_list()
        self._categories |= set(categories)
        hidden = hidden_names({category for category in categories if category}, self.state.hidden)
        if hidden:
            self._hidden_indexes |= {known_count + place for place, category in enumerate(categories) if category in hidden}
        self._colors = np.concatenate([self._colors[:known_count], strips.configuration_colors(categories, self.palette)])
        self.samples.name_ticks(strips.tick_labels(self._labels))
        indexes = range(len(self._labels))
        shown = [index for index in indexes if index not in self._hidden_indexes] if self._hidden_indexes else indexes
        self.samples.follow("x", (shown or indexes)[0] - 0.5, (shown or indexes)[-1] + 0.5)

    def _take_in_measurements(self, memory: RunMemory) -> None:
        step = memory.strip_step
        if step != self._strip_step:
            self._strip_step = step
            self._positions.pop("measurements", None)
        new = self._new_rows(memory, "measurements")
        if new.frame is None:
            return
        shown = rows_but(new.frame.filter(pl.col("configuration_index") % step == 0), self._hidden_indexes)
        draw = self.samples.stream if new.begin else self.samples.replace
        for layer, columns_of in (("medians", strips.median_columns), ("intervals", strips.interval_columns)):
            draw(layer, memory.made.get((layer, new.span, step, self._hidden_indexes), partial(columns_of, shown)))

    def _take_in_failures(self, memory: RunMemory) -> None:
        new = self._new_rows(memory, "failures").frame
        if new is not None:
            self._failures += new.select("label", "message").to_dicts()

    def _take_in_samples(self, memory: RunMemory) -> None:
        before = self._strips.position if self._strips else StripsPosition()
        self._strips = memory.strips_since(before)
        self._draw_samples("finished", self._strips.finished, (before.finished, self._strips.position.finished), memory)
        self._draw_samples("samples", self._strips.live, (before.live, self._strips.position.live), memory)

    def _draw_samples(self, layer: str, change: LayerChange | None, span: tuple[LayerPosition, LayerPosition], memory: RunMemory) -> None:
        if change is None:
            return
        rows = change.rows
        if self._hidden_indexes:
            rows = rows.chosen(~np.isin(rows.configuration_index, list(self._hidden_indexes)))
        make = partial(strips.sample_columns, rows, self._colors)
        columns = memory.made.get((self._shown, layer, span, self.palette, len(self._colors)), make)
        if change.is_new:
            self.samples.replace(layer, columns)
        elif len(columns["x"]):
            self.samples.stream(layer, columns)
        found, old = strips.duration_range(columns), self._duration_span
        # Grows only, and by steps: an axis that moves with every sample cannot be read.
        if found is not None and (old is None or found[0] < old[0] or found[1] > old[1]):
            self._duration_span = found if old is None else (min(found[0], old[0]), max(found[1], old[1]))
            self.samples.follow("y", *self._duration_span)

    def _take_in_roofline(self, memory: RunMemory) -> None:
        new = self._new_rows(memory, "roofline")
        known = self._new_rows(memory, "ceilings")
        ceilings = known.frame
        if ceilings is not None:
            before = None if known.is_restart else self._ceilings
            self._ceilings = ceilings if before is None else pl.concat([before, ceilings], how="vertical_relaxed")
        if new.frame is not None:
            self._draw_points(new, memory)
        if new.frame is not None or ceilings is not None:
            self._draw_ceilings(has_new=ceilings is not None)

    def _draw_points(self, new: NewRows, memory: RunMemory) -> None:
        self._points = self._points.and_new(new, self.palette, self._hidden_indexes, memory)
        if self._points.added is not None:
            self.roofline.stream("points", self._points.added)
        else:
            self.roofline.replace("points", self._points.points)

    def _draw_ceilings(self, *, has_new: bool) -> None:
        dtypes = tuple(sorted(self._points.dtypes))
        if has_new or dtypes != self._dtypes:
            self._dtypes, self._shown_ceilings = dtypes, roofline.shown_ceilings(self._ceilings, dtypes)
        span = roofline.span_of(self._points.points, self._shown_ceilings)
        if not has_new and span == self._span:
            return
        self._span = span
        lines = roofline.ceiling_columns(self._shown_ceilings, span, self.palette)
        self.roofline.replace("ceilings", lines)
        self.roofline.replace("names", roofline.label_columns(lines))
        self.roofline.follow("x", span.x_start, span.x_end)
        self.roofline.follow("y", span.y_start, span.y_end)

    def _take_in_log(self, memory: RunMemory) -> None:
        new = self._new_rows(memory, "log_lines").frame
        if new is not None:
            self._log = [*self._log, *(_log_line(row) for row in new.tail(MAX_LOG_LINES).to_dicts())][-MAX_LOG_LINES:]

    # ------------------------------------------------------------ fragments

    @staticmethod
    def _newest_run(memory: RunMemory | None, overview: Overview) -> Run | None:
        """Of the two streams' words, the later: a final state, else the further progress. The run's own stream ends with the run."""
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

    def _runs_fragment(self, overview: Overview, shown: Run | None, now_unix_s: float) -> str:
        newest = [shown if shown is not None and run.run_id == shown.run_id else run for run in overview.runs[:MAX_LISTED_RUNS]]
        runs = [
            {"card": run_card(run, overview, now_unix_s), "href": f"/live?{to_query(replace(self.state, runs=(run.run_id,)))}"}
            for run in newest
        ]
        hidden_count = max(0, len(overview.runs) - MAX_LISTED_RUNS)
        return fragment(
            "runs.html",
            runs=runs,
            selected=() if shown is None else (shown.run_id,),
            action="run",
            is_known=overview.is_known,
            hidden_count=hidden_count,
            with_node=len(overview.nodes) > 1,
        )

    def _run_fragment(self, run: Run | None, memory: RunMemory | None, overview: Overview, now_unix_s: float) -> str:
        if run is None and memory is not None and memory.problem:
            return fragment("missing.html", problem=memory.problem)
        if run is None and (memory is not None or not overview.is_known):
            return fragment("missing.html", problem="")
        card = None if run is None else run_card(run, overview, now_unix_s)
        names = {device.device_id: device.name for status in overview.nodes if status.node for device in status.node.devices}
        return fragment(
            "run.html",
            card=card,
            has_points=self._points.count > 0,
            device_name=names.get(card.device_id or "", card.device_id) if card else None,
            stream_problem=memory.problem if memory else "",
            failures=self._failures[:MAX_SHOWN_FAILURES],
            hidden_failure_count=max(0, len(self._failures) - MAX_SHOWN_FAILURES),
            is_cancelling=card is not None and self._cancelling == card.run_id,
        )

    def _legend(self) -> str:
        present = {category for category in self._categories if category is not None}
        names = [*(name for name in CATEGORIES if name in present), *sorted(present - set(CATEGORIES))]
        styles = [(name, style_of(name, CATEGORIES, self.palette)) for name in names]
        entries = [LegendEntry(name, style.color, SYMBOLS[style.marker]) for name, style in styles]
        return legend_fragment(hideable(entries, self.state.hidden), **roofline.marks_of(self._points.points))

    def _samples_note(self, *, is_over: bool) -> str:
        if self._strips is None or not self._strips.sample_count:
            if is_over:
                return "this run has no samples"
            return "one strip a configuration, one dot a launch, the bar is the median"
        text = f"{theme.count(self._strips.sample_count)} samples"
        if self._strips.drawn_count < self._strips.sample_count:
            text += f", {theme.count(self._strips.drawn_count)} drawn"
        return f"{text}; ▼ outlier, ✕ discarded while the clock was throttled"

    def _roofline_note(self) -> str:
        rows = self._points.rows
        if rows is None:
            return ""
        missing_count = rows_but(rows, self._hidden_indexes).height - self._points.count
        parts = [f"Ridge of {name}: {theme.intensity(value)}." for name, value in roofline.ridges(self._shown_ceilings)]
        if missing_count:
            parts.append(f"{missing_count} without a flop count cannot be placed here; byte rates are under Results.")
        if self._points.drawn_count < self._points.count:
            parts.append(f"{theme.count(self._points.drawn_count)} of {theme.count(self._points.count)} points drawn.")
        parts.append(roofline.over_ceiling_note(rows))
        if self._ceilings is None:
            parts.append("No ceiling of this device is known yet.")
        return " ".join(parts)

    def _results(self) -> dict[str, str]:
        rows = self._points.rows
        note = f"the newest {MAX_RESULT_ROWS} of {theme.count(rows.height)}" if rows is not None and rows.height > MAX_RESULT_ROWS else ""
        newest = [] if rows is None else reversed(result_rows(rows.tail(MAX_RESULT_ROWS)))
        return {
            "results": results_fragment(newest, with_run=False),
            "results_note": note,
        }


def tags_of(text: str) -> tuple[str, ...]:
    """Of a list with commas; each once, in its order."""
    return tuple(dict.fromkeys(tag for part in text.split(",") if (tag := part.strip())))


def _log_line(row: dict[str, Any]) -> dict[str, str]:
    moment = datetime.fromtimestamp(row["event_unix_ns"] / 1e9, UTC).strftime("%H:%M:%S")
    return {"time": moment, "level": row["level"], "source": row["source"], "text": row["line"]}
