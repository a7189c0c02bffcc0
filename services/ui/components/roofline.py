"""The roofline of one or several runs: what it stands on, the chart, the table of its points, and the point that is chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import panel as pn
import polars as pl
from markupsafe import Markup

from kernalyse.services.core.model import Filter, ImportedTrace, LogLevel, Run, SortKey, TableQuery
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import roofline
from kernalyse.services.ui.charts.elements import Columns, empty_columns
from kernalyse.services.ui.charts.roofline import LEVEL_TITLES, MAX_DRAWN_POINTS, Span, near, point_style, thinned
from kernalyse.services.ui.charts.roofline_ceilings import choice_note, drawn_levels, level_note
from kernalyse.services.ui.components.base import Component, Text, card, field, html, joined, on_loop
from kernalyse.services.ui.components.chart import ChartCard, LegendEntry, hidden_names, hideable
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.components.filters import Filters
from kernalyse.services.ui.components.table import Results
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.client import TablePage
from kernalyse.services.ui.data.diagnosis import Diagnosis, diagnosis, point_key, rows_of_point
from kernalyse.services.ui.data.memory import RunMemory
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.data.roofline_rows import (
    COUNTED_TABLE_OF_POINTS,
    TABLE_OF_POINTS,
    HeldRows,
    OfRun,
    ResultRow,
    Shown,
    held_rows,
    named_ceilings,
    result_rows,
    rows_of_run,
)
from kernalyse.services.ui.theme import (
    CATEGORIES,
    EFFICIENCY_CATEGORIES,
    FAILED_MARKERS,
    IMPLAUSIBLE_MARKER,
    SYMBOLS,
    Outline,
    efficiency_style,
)
from kernalyse.services.ui.view import RooflineView

if TYPE_CHECKING:
    import holoviews as hv

    from kernalyse.services.ui.tab import Context
    from kernalyse.services.ui.theme import Palette


LONG_TITLE: Final = 120
"""Characters beyond which a title scrolls, and has to be reached by keyboard."""

GONE: Final = html(
    '<h2>Point not shown</h2><p class="empty">The chosen point is not among those of these runs and filters, or has not been read yet.</p>'
)


class PointPanel(Component):
    """What is known of the chosen point; it takes no room while there is none."""

    def __init__(self, context: Context, chart: RooflineChart) -> None:
        super().__init__(context)
        self._chart = chart
        self._occupancy: Question[pl.DataFrame] = Question(context.wake)
        self._made: object = None
        self._text = Text(classes=("point",))
        self.layout = card(self._text, classes=("point-card",))
        self.layout.visible = False

    def close(self) -> None:
        self._occupancy.stop()

    def update(self) -> None:
        shown, key = self._chart.shown, self._chart.view.point
        revision = self.context.overview.revision
        made = (id(shown), key, self._chart.neighbours, revision, self._occupancy.answered, self.context.palette)
        if made == self._made:
            return
        self._made = made
        is_shown = bool(key) and shown is not None
        if self.layout.visible != is_shown:
            self.layout.visible = is_shown
        if shown is not None and is_shown:
            self._text.show(self._told(rows_of_point(shown.rows, key), shown.placed, key, revision))

    def _told(self, chosen: pl.DataFrame, placed: pl.DataFrame, key: str, revision: int) -> Markup:
        """chosen: rows of the point, one for each memory level shown; none: it is not shown."""
        close = html('<a class="close" role="button" aria-label="Close" href="?point=">✕</a>')
        if chosen.is_empty():
            return html('<div class="point-head"><div>{}</div>{}</div>', GONE, close)
        row = chosen.row(0, named=True)
        memory = next(memory for memory in self._chart.rows.memories if memory.run_id == row["run_id"])
        told = diagnosis(row, _measurement_of(row, memory), self._occupancy_of(row, revision), in_macs=_is_in_macs(memory.run))
        run_title = memory.run.title if memory.run else theme.short_run_id(row["run_id"])
        focus = Markup(' tabindex="0"') if len(told.title) > LONG_TITLE else ""
        levels = [LEVEL_TITLES.get(level, level) for level in chosen["memory_level"]]
        neighbours = [other for other in self._chart.neighbours if other != key] if key in self._chart.neighbours else []
        return joined(
            (
                html('<div class="point-head"><h2{}>{}</h2>{}</div><p class="note">{}</p>', focus, told.title, close, run_title),
                self._verdict(told, is_implausible=bool(row["is_implausible"])),
                html('<p class="headroom">{}</p>', told.headroom) if told.headroom else Markup(),
                html('<ul class="hints">{}</ul>', joined(html("<li>{}</li>", hint) for hint in told.hints)) if told.hints else Markup(),
                _levels(levels, result_rows(chosen)) if chosen.height > 1 else Markup(),
                html('<dl class="terms">{}</dl>', joined(html(TERM, term.name, term.value, term.meaning) for term in told.terms)),
                self._close_by(neighbours, placed),
            )
        )

    def _verdict(self, told: Diagnosis, *, is_implausible: bool) -> Markup:
        palette = self.context.palette
        color = palette.bad if is_implausible else efficiency_style(told.category, palette).color
        symbol = theme.IMPLAUSIBLE_SYMBOL if is_implausible else Outline.of(told.category).symbol
        badge = html('<strong class="badge"><span style="color:{}" aria-hidden="true">{}</span> {}</strong> ', color, symbol, told.category)
        return html('<p class="verdict" role="status">{}{}</p>', badge if told.category else "", told.limit)

    def _close_by(self, neighbours: Sequence[str], placed: pl.DataFrame) -> Markup:
        found = [(key, rows_of_point(placed, key)) for key in neighbours]
        links = joined(html('<a href="?{}">{}</a> ', urlencode({"point": key}), rows["label"][0]) for key, rows in found if rows.height)
        return html('<div class="neighbours"><span class="note">Close by:</span> {}</div>', links) if links else Markup()

    def _occupancy_of(self, row: dict[str, Any], revision: int) -> dict[str, Any] | None:
        """Of a trace's kernel: its launch configuration that took longest."""
        if row["configuration_index"] is not None or not row["kernel_name"]:
            return None
        subject = (row["run_id"], row["kernel_name"])
        of_kernel = (Filter("kernel_name", row["kernel_name"]),)
        query = TableQuery("occupancy", (row["run_id"],), filters=of_kernel, order_by=(SortKey("duration_sum_ns", True),), limit=1)

        async def longest() -> pl.DataFrame:
            return (await self.context.client.table(query)).rows

        self._occupancy.ask(subject, longest, revision)
        answer = self._occupancy.answer_to(subject)
        return None if answer is None or answer.is_empty() else answer.row(0, named=True)


TERM: Final = "<div><dt>{}</dt><dd><strong>{}</strong><span>{}</span></dd></div>"
LEVELS: Final = (
    '<table class="levels"><thead><tr><th>Level</th><th class="n">Byte rate</th><th class="n">Intensity</th>'
    '<th class="n">Efficiency</th></tr></thead><tbody>{}</tbody></table>'
)
LEVEL: Final = '<tr><td>{}</td><td class="n">{}</td><td class="n">{}</td><td class="n">{}</td></tr>'


def _levels(names: Sequence[str], rows: Sequence[ResultRow]) -> Markup:
    figures = [
        (theme.byte_rate(row.achieved_bytes_per_s), theme.intensity(row.intensity_flop_per_byte), theme.percent(row.efficiency_ratio))
        for row in rows
    ]
    return html(LEVELS, joined(html(LEVEL, name, *values) for name, values in zip(names, figures, strict=True)))


def _measurement_of(row: dict[str, Any], memory: RunMemory) -> dict[str, Any] | None:
    measurements = memory.table("measurements")
    if row["configuration_index"] is None or measurements is None:
        return None
    found = measurements.filter(pl.col("configuration_index") == row["configuration_index"])
    return None if found.is_empty() else found.row(-1, named=True)


def _is_in_macs(run: Run | None) -> bool:
    """Operations of an accelerator are counted so."""
    return run is not None and isinstance(run.spec.work, ImportedTrace) and run.spec.work.format == "commands"


LAYERS: Final = ("ceilings", "names", "points", "rings")
MAX_LISTED_POINTS: Final = 200
MAX_NEIGHBOURS: Final = 6
MAX_FILE_PROBLEMS: Final = 10
"""Lines under the chart: more push the points off the screen, and the log has all of them."""

REACH_PX: Final = 22.0
"""From a click to the point that it means: half the width of a finger."""

UNMEASURED_FRAME_PX: Final = (800.0, 400.0)
"""Of a chart whose browser has not told its size yet."""

NO_POINTS: Final[dict[str, str]] = {
    "kernel": "Choose a run, or start one: kernalyse bench matmul_tiled.",
    "layer": "Layers are those of models and of traces in which the work of kernels is known. Choose one, or points by kernel.",
}
NO_WORK: Final = (
    "None of its kernels has a point: how many flop and bytes they need is not known. PyTorch tells it with record_shapes=True, "
    "and a report of ncu that is imported with the trace."
)
COLUMN_OF: Final[dict[str, str]] = {
    "category": "category",
    "efficiency": "efficiency_category",
    "dtype": "dtype",
    "kernel": "kernel_name",
    "variant": "variant",
    "run": "run_id",
}


def _empty_roofline(palette: Palette, height_px: int, has_rings: bool) -> hv.Overlay:
    """has_rings: a layer for those around chosen points."""
    no_ceilings = empty_columns(roofline.CEILING_NUMBERS, roofline.CEILING_TEXTS)
    span = roofline.Span(*roofline.NO_POINT_SPAN)
    return roofline.roofline_chart(roofline.no_points(), no_ceilings, span, palette, height_px, roofline.no_ring() if has_rings else None)


LIVE_ROOFLINE: Final = RenderedChart(_empty_roofline, 320, False)
ROOFLINE: Final = RenderedChart(_empty_roofline, 520, True)


class RooflineRows(Component):
    """What the page's components stand on: rows of the shown runs under their ceilings, filtered.

    Attributes:
        held: rows before the filters; None: none have arrived.
        ceilings: of the runs' devices.
        memories: of the runs.
    """

    def __init__(self, context: Context, view: RooflineView) -> None:
        super().__init__(context)
        self.view = view
        self.held: HeldRows | None = None
        self.ceilings: pl.DataFrame | None = None
        self.memories: tuple[RunMemory, ...] = ()
        self.counted: Question[pl.DataFrame] = Question(context.wake)
        self.version = 0  # another when rows or ceilings are others
        self._update_count = -1
        self._parts: tuple[object, ...] | None = None
        self._arrived: object = None

    def update(self) -> None:
        if self._update_count == self.context.update_count:
            return
        self._update_count = self.context.update_count
        run_ids = tuple(self.context.shown_run_ids())
        self.memories = self.context.memories(list(run_ids))
        overview, view = self.context.overview, self.view
        watched = (*TABLE_OF_POINTS.values(), "ceilings", "counter_reports")
        positions = tuple(memory.since(name, 2**62).position for memory in self.memories for name in watched)
        if view.level != "auto" and run_ids:
            name = COUNTED_TABLE_OF_POINTS[view.points]
            ask = partial(self.context.client.run_table, name, run_ids)
            self.counted.ask((view.points, run_ids), ask, (overview.revision, *positions), min_interval_s=1.0)
        arrived = (run_ids, positions, view.points, view.level, view.ceilings, self.counted.answered, self.counted.is_on_its_way)
        if arrived == self._arrived:
            return
        self._arrived = arrived
        self.version += 1
        runs = [rows_of_run(memory, view.points) for memory in self.memories]
        self.ceilings = named_ceilings(runs, overview, view.ceilings)
        self._hold(runs)

    def _hold(self, runs: Sequence[OfRun]) -> None:
        view = self.view
        counted = self.counted.answer_to((view.points, tuple(run.run_id for run in runs)))
        # The frames themselves, not their ids: what they are of stays as long as it is compared with.
        parts = (view.points, view.level, view.ceilings, counted, *(run.rows for run in runs))
        if self._parts is None or any(new is not old for new, old in zip_longest(parts, self._parts)):
            self._parts, self.held = parts, held_rows(runs, counted, view.level, view.ceilings)

    def close(self) -> None:
        self.counted.stop()


class RooflineChart(Component):
    """Kernels or layers under the ceilings of their devices, with the chosen point in a ring.

    Args:
        rows: None: its own, where the chart stands alone.
    """

    def __init__(self, context: Context, view: RooflineView, rows: RooflineRows | None = None) -> None:
        super().__init__(context)
        self.view = view
        self.rows = rows or RooflineRows(context, view)
        self.shown: Shown | None = None  # None: no rows have arrived
        self.neighbours: tuple[str, ...] = ()  # keys of points under the last click
        self.figure = Figure("roofline", ROOFLINE, context.palette, LAYERS)
        self.figure.figure.on_event("tap", on_loop(self._tapped))
        for span in (self.figure.figure.x_range, self.figure.figure.y_range):
            span.on_change("start", on_loop(self._moved))
            span.on_change("end", on_loop(self._moved))
        self._drawn: object = None
        self._ringed: object = None
        self._file_problems: Question[TablePage] = Question(context.wake)
        self._files = Text(classes=("note", "file-problems"))
        self.card = ChartCard("Roofline", self.figure, self._files)
        self.layout = self.card.layout

    def close(self) -> None:
        self.rows.close()
        self._file_problems.stop()

    def update(self) -> None:
        self.rows.update()
        view = self.view
        filtered = tuple(getattr(self.context.view, name) for name in self.context.view.names())
        looks = (view.color_by, view.sizes, tuple(view.hidden), self._view() if self._is_thinned else None)
        if (self.rows.version, filtered, looks) != self._drawn:
            self._drawn = (self.rows.version, filtered, looks)
            self._draw()
        self._draw_rings()
        self._show_file_problems()

    # ------------------------------------------------------------ clicks

    def _tapped(self, event: Any) -> None:
        """Choose the point nearest to the click, among all that there are, drawn or not; next to none, none."""
        if self.shown is None:
            return
        placed = self.shown.placed
        width_px, height_px = self.figure.frame_px or UNMEASURED_FRAME_PX
        found = near(placed, self._view(), event.x, event.y, width_px, height_px, REACH_PX)
        keys = tuple(dict.fromkeys(point_key(placed.row(row, named=True)) for row in found[: 4 * MAX_NEIGHBOURS]))
        self.neighbours = keys[:MAX_NEIGHBOURS]
        self.view.point = keys[0] if keys else ""
        self.context.wake()

    def _view(self) -> Span:
        across, up = self.figure.figure.x_range, self.figure.figure.y_range
        return Span(across.start, across.end, up.start, up.end)

    def _moved(self, _name: str, _old: float, _new: float) -> None:
        """Of many points others are drawn in another view."""
        if self._is_thinned:
            self.context.wake()

    @property
    def _is_thinned(self) -> bool:
        return self.shown is not None and self.shown.placed.height > MAX_DRAWN_POINTS

    # ------------------------------------------------------------ drawing

    def _draw(self) -> None:
        view, held = self.view, self.rows.held
        if held is None:
            self.shown = None
            known = roofline.shown_ceilings(self.rows.ceilings, (), view.ceilings, drawn_levels(view.level, None))
            span = roofline.span_of(roofline.no_points(), known)
            self._follow(span)
            self._replace(roofline.no_points(), known, span)
            self.card.show_legend([])
            self.card.note.show(_no_points(view.points, self.rows.memories))
            return
        rows = filters.filtered(held.rows, self.context.view, filters.LAYER_NAMES if view.points == "layer" else ("kernel_name",))
        self.shown = self._shown_of(rows, held.missing_count)
        self.card.show_legend(legend_entries(self.shown, self.context.palette, view.hidden), **roofline.marks_of(self.shown.points))
        self.card.note.show(" ".join(note for note in self._notes(self.shown) if note))

    def _shown_of(self, rows: pl.DataFrame, missing_count: int) -> Shown:
        view, column = self.view, COLUMN_OF[self.view.color_by]
        placeable = roofline.drawable(rows)
        present = placeable[column].drop_nulls().unique(maintain_order=True).to_list()
        values = theme.values_with(present) if column == "category" else tuple(present)
        hidden = hidden_names(["", *present], view.hidden)
        placed = placeable.filter(~pl.col(column).fill_null("").is_in(list(hidden))) if hidden else placeable
        dtypes = tuple(sorted(placed["dtype"].drop_nulls().unique()))
        shown = roofline.shown_ceilings(self.rows.ceilings, dtypes, view.ceilings, drawn_levels(view.level, placed))
        extent = {"intensity": placed["intensity_flop_per_byte"].to_numpy(), "rate": placed["achieved_flop_per_s"].to_numpy()}
        span = roofline.span_of(extent, shown)
        self._follow(span)
        drawn = thinned(placed, self._view(), column)
        points = roofline.point_columns(drawn, self.context.palette, column, values, view.sizes)
        self._replace(points, shown, span)
        listed, listed_as = foremost(rows, with_level=view.level == "all")
        titles = _titles(self.rows.memories)
        return Shown(rows, listed, listed_as, placeable, placed, drawn, points, shown, column, values, missing_count, titles)

    def _replace(self, points: Columns, shown: tuple[roofline.CeilingRow, ...], span: Span) -> None:
        lines = roofline.ceiling_columns(shown, span, self.context.palette)
        self.figure.replace("points", points)
        self.figure.replace("ceilings", lines)
        self.figure.replace("names", roofline.label_columns(lines))

    def _follow(self, span: Span) -> None:
        self.figure.follow("x", span.x_start, span.x_end)
        self.figure.follow("y", span.y_start, span.y_end)

    def _draw_rings(self) -> None:
        shown, key = self.shown, self.view.point
        if self._ringed == (key, id(shown)):
            return
        self._ringed = (key, id(shown))
        rings = roofline.no_ring()
        if shown is not None and key:
            chosen = rows_of_point(shown.placed, key)
            rings = roofline.ring_columns(roofline.point_columns(chosen, self.context.palette, shown.column, shown.values, self.view.sizes))
        if self.figure.row_count("rings") or len(rings["rate"]):
            self.figure.replace("rings", rings)

    # ------------------------------------------------------------ what is said of it

    def _notes(self, shown: Shown) -> list[str]:
        rows, view, counted = shown.rows, self.view, self.rows.counted
        notes = [f"Ridge of {name}: {theme.intensity(value)}." for name, value in roofline.ridges(shown.ceilings)]
        unplaced_count = rows.height - shown.placeable.height
        if unplaced_count:
            notes.append(f"{unplaced_count} without a flop count cannot be placed here, only listed below.")
        if self._is_thinned:
            counts = f"{theme.count(shown.drawn.height)} of {theme.count(shown.placed.height)} points"
            notes.append(f"{counts} are drawn, one of those that cover each other; zoom in for more. A click finds the nearest of all.")
        notes.append(level_note(view.level, shown.missing_count, counted.is_on_its_way))
        notes.append(counted.problem if view.level != "auto" else "")
        notes.append(roofline.over_ceiling_note(rows))
        notes.append(choice_note(view.ceilings, rows, any(row["is_preferred"] for row in shown.ceilings)))
        if any(not row["is_preferred"] for row in shown.ceilings):
            notes.append("Solid ceilings are the ones that efficiency is computed with; dashed ones come from another source.")
        return notes

    def _show_file_problems(self) -> None:
        """Show what the readers of the shown lists found wrong in them, above all why an operation has no place here."""
        listed = [memory for memory in self.rows.memories if memory.run is not None and memory.run.is_imported and not memory.run.is_trace]
        if not listed:
            self._files.show("")
            return
        run_ids = tuple(memory.run_id for memory in listed)
        query = TableQuery("log_lines", run_ids, filters=(Filter("level", LogLevel.WARNING.value),), limit=MAX_FILE_PROBLEMS)
        self._file_problems.ask(run_ids, partial(self.context.client.table, query), tuple(memory.state_count for memory in listed))
        answer = self._file_problems.answer_to(run_ids)
        if answer is None or answer.rows.is_empty():
            self._files.show("")
            return
        lines = joined(html("<li>{}</li>", line) for line in answer.rows["line"])
        left_out = answer.total_row_count - answer.rows.height
        more = html("<li>and {} more, in the run's log</li>", theme.count(left_out)) if left_out > 0 else ""
        self._files.show(html("Wrong or missing in the file: {}.<ul>{}{}</ul>", theme.count(answer.total_row_count), lines, more))


class PointTable(Component):
    """The foremost points of the chart as rows; a click on one chooses it."""

    def __init__(self, context: Context, chart: RooflineChart) -> None:
        super().__init__(context)
        self._chart = chart
        self._results = Results(self._choose)
        self._note = Text(classes=("note",))
        self._made: object = None
        self.layout = card(Text(html("<h2>Points</h2>")), self._note, self._results.table)

    def update(self) -> None:
        shown, view = self._chart.shown, self._chart.view
        made = (id(shown), view.point)
        if made == self._made:
            return
        self._made = made
        listed = [] if shown is None else shown.listed
        self._results.show_results(listed, with_run=len(self.context.view.runs) > 1, chosen=view.point)
        is_cut = shown is not None and shown.rows.height > MAX_LISTED_POINTS
        self._note.show(f"the {MAX_LISTED_POINTS} {shown.listed_as} of {theme.count(shown.rows.height)}" if shown and is_cut else "")

    def _choose(self, key: str) -> None:
        self._chart.view.point = key


class RooflineFilters(Filters):
    """Filters with the choices of what points and ceilings are."""

    def __init__(self, context: Context, rows: RooflineRows) -> None:
        names = ("color_by", "points", "sizes", "level", "ceilings")
        super().__init__(context, *(field(pn.widgets.Select, rows.view.param[name]) for name in names))
        self._rows = rows

    def update(self) -> None:
        self._rows.update()
        self.offer({} if self._rows.held is None else self._rows.held.filter_values)


def foremost(rows: pl.DataFrame, *, with_level: bool) -> tuple[list[ResultRow], str]:
    """Return those to list, and what they are: of traces the kernels that take longest, of sweeps the most efficient configurations.

    with_level: labels name the memory level.
    """
    is_of_traces = rows["duration_sum_ns"].count() > 0
    key, what = ("duration_sum_ns", "that take longest") if is_of_traces else ("efficiency_ratio", "most efficient")
    listed = rows.sort(key, descending=True, nulls_last=True, maintain_order=True).head(MAX_LISTED_POINTS)
    found = result_rows(listed, with_points=True)
    if with_level:
        level = pl.col("memory_level").replace(LEVEL_TITLES)
        labels = listed.select(pl.coalesce(pl.format("{} · {}", "label", level), "label")).to_series()
        found = [row._replace(label=label) for row, label in zip(found, labels, strict=True)]
    return found, what


def _titles(memories: Sequence[RunMemory]) -> Mapping[str, str]:
    """By run_id; those of one title are told apart."""
    titles = {memory.run_id: memory.run.title if memory.run else theme.short_run_id(memory.run_id) for memory in memories}
    counts = Counter(titles.values())
    return {run_id: title if counts[title] == 1 else f"{title} {theme.short_run_id(run_id)}" for run_id, title in titles.items()}


def _no_points(points: str, memories: Sequence[RunMemory]) -> str:
    """Why nothing is drawn, with the remedy."""
    runs = [memory.run for memory in memories]
    is_read = bool(runs) and all(run is not None and run.is_trace and run.state.is_final for run in runs)
    return NO_WORK if points == "kernel" and is_read else NO_POINTS[points]


# ---------------------------------------------------------------- legend


NOT_KNOWN = "not known"


def legend_entries(shown: Shown, palette: Palette, hidden: Collection[str]) -> list[LegendEntry]:
    """hidden: keys of series that are not drawn."""
    present = set(shown.placeable[shown.column].unique().fill_null("").to_list())
    order = EFFICIENCY_CATEGORIES if shown.column == "efficiency_category" else shown.values
    names = [name for name in (*order, *sorted(present - set(order))) if name in present]
    if names == [""]:
        return []
    markers = _markers_of(shown)
    entries = hideable([_series_entry(name, shown, palette, markers) for name in names], hidden, names)
    if shown.column != "efficiency_category":
        return entries
    categories = shown.placeable["category"].drop_nulls().unique().to_list()
    shapes = [name for name in (*CATEGORIES, *sorted(set(categories) - set(CATEGORIES))) if name in categories]
    symbols = {name: SYMBOLS.get(markers.get(name, ""), SYMBOLS["circle"]) for name in shapes}
    return [*entries, *(LegendEntry(name, palette.muted, symbols[name], meaning="The shape of this kind") for name in shapes)]


def _series_entry(name: str, shown: Shown, palette: Palette, markers: dict[str, str]) -> LegendEntry:
    title = shown.run_titles.get(name, name) or NOT_KNOWN
    style = point_style(name, shown.column, shown.values, palette)
    if shown.column == "efficiency_category":
        return LegendEntry(title, style.color, Outline.of(name).symbol)
    return LegendEntry(title, style.color, SYMBOLS.get(markers.get(name, style.marker), SYMBOLS[style.marker]))


def _markers_of(shown: Shown) -> dict[str, str]:
    """The one shape of each series, and of each category, whose points all have the same, apart from what is marked as wrong."""
    rows = (
        shown.drawn.select(pl.col(shown.column).alias("series"), "category")
        .with_columns(pl.Series("marker", shown.points["marker"].tolist(), dtype=pl.String))
        .filter(~pl.col("marker").is_in([IMPLAUSIBLE_MARKER, *FAILED_MARKERS.values()]))
    )
    found: dict[str, str] = {}
    for column in ("category", "series"):
        for name, markers in rows.group_by(column).agg(pl.col("marker").unique()).iter_rows():
            if name is not None and len(markers) == 1:
                found[name] = markers[0]
    return found
