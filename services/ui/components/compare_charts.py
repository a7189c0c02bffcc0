"""Charts of two runs beside each other: speed-ups, changes of time, and the way of each point on the roofline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import compare, roofline
from kernalyse.services.ui.charts.elements import empty_columns
from kernalyse.services.ui.components.base import Component
from kernalyse.services.ui.components.chart import ChartCard, LegendEntry, hideable, series_key
from kernalyse.services.ui.components.compare import Pair
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.compared_rows import Compared, verdict_legend, with_shown_verdicts
from kernalyse.services.ui.view import CompareView

if TYPE_CHECKING:
    import holoviews as hv

    from kernalyse.services.ui.tab import Context
    from kernalyse.services.ui.theme import Palette


def _empty_speedups(palette: Palette) -> hv.Overlay:
    return compare.speedup_chart(compare.no_speedups(), empty_columns(compare.WHISKER_NUMBERS), palette)


def _empty_changes(palette: Palette) -> hv.Overlay:
    return compare.change_chart(empty_columns(compare.CHANGE_NUMBERS, compare.CHANGE_TEXTS), palette)


def _empty_roofline(palette: Palette) -> hv.Overlay:
    moves = compare.moves_layer(empty_columns(compare.MOVE_NUMBERS, compare.MOVE_TEXTS))
    ceilings = empty_columns(roofline.CEILING_NUMBERS, roofline.CEILING_TEXTS)
    return roofline.roofline_chart(
        roofline.no_points(), ceilings, roofline.Span(*roofline.NO_POINT_SPAN), palette, 420, under_points=(moves,)
    )


SPEEDUPS: Final = RenderedChart(_empty_speedups)
CHANGES: Final = RenderedChart(_empty_changes)
ROOFLINES: Final = RenderedChart(_empty_roofline)


class PairChart(Component):
    """A chart of the page Compare.

    Args:
        pair: None: its own, where the chart stands alone.

    Attributes:
        has_rows: whether there is something to draw, hidden or not.
    """

    def __init__(
        self, context: Context, view: CompareView, pair: Pair | None, title: str, name: str, chart: RenderedChart, layers: tuple[str, ...]
    ) -> None:
        super().__init__(context)
        self.view = view
        self.pair = pair or Pair(context, view)
        self.has_rows = False
        self.figure = Figure(name, chart, context.palette, layers)
        self.card = ChartCard(title, self.figure)
        self.layout = self.card.layout
        self._drawn: object = None
        self._drawn_of: object = None  # which runs, and what of them

    def close(self) -> None:
        self.pair.close()

    def update(self) -> None:
        self.pair.update()
        answer = self.pair.shown
        drawn = (self.pair.version, tuple(self.view.hidden), self.positions())
        if drawn == self._drawn:
            return
        self._drawn = drawn
        self.has_rows = False
        if answer is None:
            return
        drawn_of = (self.pair.run_ids, self.view.points)
        if drawn_of != self._drawn_of:
            self._drawn_of = drawn_of
            self.figure.forget_moves()
        self.draw(answer, self.pair.rows)

    def positions(self) -> object:
        """Return what changes with further rows that the chart draws."""
        return None

    def draw(self, answer: Compared, rows: pl.DataFrame) -> None:
        """Draw the pair. rows: of the answer, filtered."""
        raise NotImplementedError

    def show_places(self, names: dict[int, str]) -> None:
        """Name the places of the vertical axis, and make the chart as high as they need."""
        self.figure.name_ticks(names, leaves_none_out=True, on="y")
        self.figure.follow("y", *compare.place_span(len(names)))
        height_px = compare.chart_height_px(len(names))
        if self.figure.figure.height != height_px:
            self.figure.figure.update(height=height_px, min_height=height_px)


class SpeedupChart(PairChart):
    """The largest speed-ups and slow-downs of measurements, with their intervals."""

    def __init__(self, context: Context, view: CompareView, pair: Pair | None = None) -> None:
        super().__init__(context, view, pair, "Speed-up", "speedups", SPEEDUPS, ("even", "whiskers", "points"))

    def draw(self, answer: Compared, rows: pl.DataFrame) -> None:
        self.has_rows = not answer.is_of_traces
        if answer.is_of_traces:
            return
        hidden = self.view.hidden
        points, whiskers, names = compare.speedup_columns(compare.charted(with_shown_verdicts(rows, hidden)), self.context.palette)
        self.figure.replace("points", points)
        self.figure.replace("whiskers", whiskers)
        self.figure.replace("even", compare.even_columns(len(names)))
        self.show_places(names)
        self.figure.follow("x", *compare.speedup_span(points, whiskers))
        self.card.show_legend(verdict_legend(rows, self.context.palette, hidden))


class ChangeChart(PairChart):
    """The kernels or layers of two traces whose time has changed most."""

    def __init__(self, context: Context, view: CompareView, pair: Pair | None = None) -> None:
        super().__init__(context, view, pair, "Largest changes", "changes", CHANGES, ("bars",))

    def draw(self, answer: Compared, rows: pl.DataFrame) -> None:
        self.has_rows = answer.is_of_traces
        if answer.is_of_traces:
            bars, names = compare.change_columns(rows, answer.name_column, self.context.palette)
            self.figure.replace("bars", bars)
            self.show_places(names)
            self.figure.follow("x", *compare.change_span(bars))


class ComparedRoofline(PairChart):
    """Both runs under the ceilings of their devices, with a line from before to after."""

    def __init__(self, context: Context, view: CompareView, pair: Pair | None = None) -> None:
        layers = ("ceilings", "names", "moves", "points")
        super().__init__(context, view, pair, "Roofline, before and after", "compared_roofline", ROOFLINES, layers)

    @property
    def _table_name(self) -> str:
        answer = self.pair.shown
        return "layer_roofline" if answer is not None and answer.is_of_traces and self.view.points == "layer" else "roofline"

    def positions(self) -> object:
        return tuple(memory.since(name, 2**62).position for memory in self.pair.memories for name in (self._table_name, "ceilings"))

    def draw(self, answer: Compared, rows: pl.DataFrame) -> None:
        memories, palette, hidden = self.pair.memories, self.context.palette, self.view.hidden
        run_ids = tuple(memory.run_id for memory in memories)
        words = dict(zip(run_ids, ("before", "after") if len(run_ids) == 2 else ("this run",), strict=True))
        hidden_ids = [run_id for run_id, word in words.items() if series_key(word) in hidden]
        tables = [memory.table(self._table_name) for memory in memories]
        found = [roofline.newest_rows(table) for table in tables if table is not None and table.height]
        points = roofline.no_points()
        if found:
            names = filters.LAYER_NAMES if self._table_name == "layer_roofline" else ("kernel_name",)
            placed = filters.filtered(pl.concat(found, how="vertical_relaxed"), self.context.view, names)
            self.has_rows = roofline.drawable(placed).height > 0
            seen = placed.filter(~pl.col("run_id").is_in(hidden_ids)) if hidden_ids else placed
            points = roofline.point_columns(seen, palette, "run_id", run_ids)
        ceilings = [table for memory in memories if (table := memory.table("ceilings")) is not None]
        dtypes = tuple(sorted(set(points["dtype"].tolist()) - {""}))
        shown = roofline.shown_ceilings(pl.concat(ceilings, how="vertical_relaxed") if ceilings else None, dtypes)
        span = roofline.span_of(points, shown)
        lines = roofline.ceiling_columns(shown, span, palette)
        moves = empty_columns(compare.MOVE_NUMBERS, compare.MOVE_TEXTS)
        if found and len(found) == len(tables) and not hidden_ids:
            moves = compare.move_columns(found[0], found[-1], _matches(answer, rows), palette)
        for layer, columns in (("points", points), ("moves", moves), ("ceilings", lines), ("names", roofline.label_columns(lines))):
            self.figure.replace(layer, columns)
        self.figure.follow("x", span.x_start, span.x_end)
        self.figure.follow("y", span.y_start, span.y_end)
        styles = [(word, theme.style_of(run_id, run_ids, palette)) for run_id, word in words.items()]
        entries = [LegendEntry(word, style.color, theme.SYMBOLS[style.marker]) for word, style in styles]
        self.card.show_legend(hideable(entries, hidden), **roofline.marks_of(points))


def _matches(answer: Compared, rows: pl.DataFrame) -> pl.DataFrame:
    """Return what is in both runs, as `move_columns` takes it."""
    matched = rows.filter(pl.col("occurrence") == "MATCHED")
    if answer.is_of_traces:
        verdict = pl.when(pl.col("duration_ratio") > 1).then(pl.lit("SLOWER")).otherwise(pl.lit("FASTER"))
        before, key = f"baseline_{answer.name_column}", answer.name_column
        return matched.select(key_before=before, key=key, key_name=pl.lit(key), verdict=verdict).drop_nulls()
    key = "configuration_index"
    return matched.select(key_before=f"baseline_{key}", key=key, key_name=pl.lit(key), verdict="verdict").drop_nulls("key")
