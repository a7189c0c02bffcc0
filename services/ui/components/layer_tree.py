"""The tree of a run's layers: what is asked of the analyzer, the layer that is looked into, and the figure."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from bokeh.events import Tap

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.core.formatting import relative_layer_name
from kernalyse.services.core.ml_models import layers_note
from kernalyse.services.core.model import Filter, FilterOperator, ModelRun, Run, SortKey, TableQuery
from kernalyse.services.ui.charts import icicle
from kernalyse.services.ui.components.base import Component, Text, html, joined, on_loop
from kernalyse.services.ui.components.chart import ChartCard, LegendEntry, hidden_names, hideable
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.components.table import REFRESH_INTERVAL_S, progress_of
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.filters import whole
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.view import LayersView, View, changed_href, to_query

if TYPE_CHECKING:
    import holoviews as hv

    from kernalyse.services.ui.tab import Context
    from kernalyse.services.ui.theme import Palette

MAX_LAYER_COUNT: Final = 20_000
"""Those that take longest, asked for at once; a layer takes no longer than the one around it, so none hangs in the air."""

MAX_KERNEL_ROWS: Final = 2_000
FIRST_WIDTH_PX: Final = 1_180.0
"""Of the figure, until the browser has told how wide it is."""

WIDTH_STEP_PX: Final = 2.0
"""A scroll bar that comes and goes is no reason to draw anew."""

LONGEST_FIRST: Final = (SortKey("duration_sum_ns", True),)
TREE_COLUMNS: Final = (
    *icicle.CHARTED,
    *("variant", "depth", "call_count", "own_duration_sum_ns", "source", "work_source", "worked_share_ratio", "memory_bytes"),
    *("disturbance", "pass_duration_median_ns"),
)
NO_RUN: Final = "Choose a run of a model or a trace, or start one: kernalyse model gpt-nano --variant baseline --variant fused"
NO_LAYERS: Final = "This run tells no layers. Runs of models and traces do: kernalyse model gpt-nano, or import a trace of PyTorch or nsys."
BEING_READ: Final = "The trace is being read: its layers appear here."
NOT_TIMED: Final = "No layer has been timed yet: each appears here with its first sample."
ASKING: Final = "Asking the analyzer for the layers."
HELP: Final = "As wide as their time, in the order of their first start; a click looks into a layer, Escape goes out again."
NO_EFFICIENCY: Final = (
    "No efficiency is known: either the work of these kernels is not, which PyTorch records with record_shapes=True and a report of ncu "
    "brings, or no ceiling of their device."
)


def _empty_icicle(palette: Palette) -> hv.Overlay:
    return icicle.icicle_chart(icicle.no_boxes(), icicle.no_names(), palette)


ICICLE: Final = RenderedChart(_empty_icicle)


class LayerPlace:
    """The layer that is looked into, among the layers of one run.

    Args:
        layers: rows of table layer_tree, of all variants.
        layer: its path; empty, or of no layer: all are looked into.
        variant: empty, or none of the run's: the first.

    Attributes:
        variant: None: the run has none.
        tree: rows of this variant.
        lineage: rows of the layer and of those around it, outermost first; empty: all layers are looked into.
    """

    def __init__(self, layers: pl.DataFrame, layer: str, variant: str) -> None:
        self.variants: tuple[str, ...] = tuple(layers["variant"].drop_nulls().unique().sort().to_list())
        self.variant = variant if variant in self.variants else next(iter(self.variants), None)
        self.tree = layers.filter(variant=self.variant) if self.variant else layers
        self.lineage = self._lineage_of(layer)
        self.layer = str(self.lineage[-1]["layer_path"]) if self.lineage else ""
        self.missing = layer if layer and not self.lineage else ""

    def _lineage_of(self, layer: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        current: str | None = layer or None
        while current is not None:
            row = self.tree.filter(layer_path=current).head(1).to_dicts()
            if not row:
                return []
            found.append(row[0])
            current = row[0]["parent_path"]
        return found[::-1]

    @property
    def around(self) -> str:
        """Path of the layer around the one that is looked into; empty: all."""
        return str(self.lineage[-2]["layer_path"]) if len(self.lineage) > 1 else ""

    @property
    def outermost(self) -> pl.DataFrame:
        """Rows of the layers that no other is around."""
        return self.tree.filter(pl.col("parent_path").is_null())

    @property
    def pass_ns(self) -> float | None:
        """How long a whole pass takes; None: of a trace, or not timed."""
        known: list[float] = self.tree["pass_duration_median_ns"].drop_nulls().head(1).to_list()
        return known[0] if known else None

    def point_name(self) -> str:
        """Return what the filter of names has to say for the layer's point under the roofline.

        A model's layer with others in it has no point of its own: they are meant.
        """
        if not self.lineage:
            return ""
        if self.variant is None:
            return whole(self.lineage[-1]["layer"])
        has_parts = self.tree.filter(parent_path=self.layer).height > 0
        return f"{self.layer}." if has_parts else whole(f"{self.layer} {self.variant}")


class LayerRun(Component):
    """What the components of layers stand on: the run, its tree, and the kernels of the layer that is looked into.

    Attributes:
        runs: those shown, in the order in which they were chosen.
        run: the first of them, whose layers are shown; None: there is none.
        place: None: the layers are not known yet.
        kernels: rows of table layer_kernels of the layer; None: they are on their way.
        runners: such rows of the kernels that the filters leave, of the layers that launch them; None: all do, or they are on their way.
        missing: why there are no layers to show; empty: there are some.
        version: another when any of these is.
    """

    def __init__(self, context: Context, view: LayersView) -> None:
        super().__init__(context)
        self.view = view
        self.runs: list[Run] = []
        self.run: Run | None = None
        self.place: LayerPlace | None = None
        self.kernels: pl.DataFrame | None = None
        self.runners: pl.DataFrame | None = None
        self.missing = ""
        self.version = 0
        self._tree: Question[pl.DataFrame] = Question(context.wake)
        self._kernels: Question[pl.DataFrame] = Question(context.wake)
        self._runners: Question[pl.DataFrame] = Question(context.wake)
        self._update_count = -1
        self._shown: object = None
        self._placed: object = None

    def close(self) -> None:
        for question in (self._tree, self._kernels, self._runners):
            question.stop()

    @property
    def kernel_filters(self) -> tuple[Filter, ...]:
        """Which kernels are looked for, of table layer_kernels; empty: all."""
        return filters.query_filters(self.context.view, ("kernel_name", "category", "dtype"))

    @property
    def has_none(self) -> bool:
        """Whether the run has no layers, or there is no run."""
        return self.missing in (NO_RUN, NO_LAYERS)

    @property
    def kernels_problem(self) -> str:
        return self._kernels.problem

    @property
    def progress(self) -> tuple[object, ...]:
        """What changes with the rows: a model's layers do with every pass, not only when one of them is done."""
        overview = self.context.overview
        is_going_on = any(isinstance(run.spec.work, ModelRun) and not run.state.is_final for run in self.runs)
        return (progress_of(self.runs, overview), overview.problem, is_going_on and int(time.time() / REFRESH_INTERVAL_S))

    def update(self) -> None:
        if self._update_count == self.context.update_count:
            return
        self._update_count = self.context.update_count
        self.runs = self.context.known_runs(self.context.shown_run_ids())
        self.run = next(iter(self.runs), None)
        self.kernels = self.runners = None
        if self.run is None:
            self.place, self.missing = None, NO_RUN
        else:
            self._ask(self.run)
        shown = (self.run, id(self.place), id(self.kernels), id(self.runners), self.missing, self._kernels.problem, self.kernel_filters)
        if shown != self._shown:
            self._shown = shown
            self.version += 1

    def _ask(self, run: Run) -> None:
        self._tree.ask(run.run_id, partial(self._ask_tree, run.run_id), self.progress, REFRESH_INTERVAL_S)
        tree = self._tree.answer_to(run.run_id)
        placed = (id(tree), self.view.layer, self.view.variant)
        if tree is None:
            self.place = None
        elif placed != self._placed:
            self.place = LayerPlace(tree, self.view.layer, self.view.variant)
        self._placed = placed if tree is not None else None
        if self.place is None:
            self.missing = self._tree.problem or ASKING
            return
        self.missing = self._hope(run) if self.place.tree.is_empty() else ""
        variant = self.place.variant
        of_variant = (Filter("variant", variant),) if variant else ()
        of_layer = Filter("layer_path", self.place.layer) if self.place.layer else Filter("depth", "0")
        wanted = self.kernel_filters
        self.kernels = self._answer(self._kernels, run, (of_layer, *wanted, *of_variant))
        if wanted:
            own = Filter("own_launch_count", "0", FilterOperator.GREATER)
            self.runners = self._answer(self._runners, run, (*wanted, own, *of_variant))

    def _answer(self, question: Question[pl.DataFrame], run: Run, conditions: tuple[Filter, ...]) -> pl.DataFrame | None:
        query = TableQuery("layer_kernels", run_ids=(run.run_id,), filters=conditions, order_by=LONGEST_FIRST, limit=MAX_KERNEL_ROWS)
        question.ask(query, partial(self._rows_of, query), self.progress, REFRESH_INTERVAL_S)
        return question.answer_to(query)

    async def _ask_tree(self, run_id: str) -> pl.DataFrame:
        return await self._rows_of(
            TableQuery("layer_tree", run_ids=(run_id,), order_by=LONGEST_FIRST, limit=MAX_LAYER_COUNT, columns=TREE_COLUMNS)
        )

    async def _rows_of(self, query: TableQuery) -> pl.DataFrame:
        return (await self.context.client.table(query)).rows

    def _hope(self, run: Run) -> str:
        if isinstance(run.spec.work, ModelRun) and not run.state.is_final:
            return NOT_TIMED
        return BEING_READ if run.state.is_final and not run.is_settled else NO_LAYERS


class LayerTree(Component):
    """The figure: a box for each layer, as wide as its time, inside of what calls it.

    Args:
        layers: None: its own, where the chart stands alone.
    """

    def __init__(self, context: Context, view: LayersView, layers: LayerRun | None = None) -> None:
        super().__init__(context)
        self.view = view
        self._layers = layers or LayerRun(context, view)
        self.figure = Figure("icicle", ICICLE, context.palette, ("boxes", "names"))
        self.figure.figure.on_event(Tap, on_loop(self._tapped))
        self.figure.figure.on_change("inner_width", on_loop(self._resized))
        self._width_px = FIRST_WIDTH_PX
        self._icicle: icicle.Icicle | None = None
        self._drawn: object = None
        self._crumbs = Text(classes=("crumbs",))
        self._card = ChartCard("Model tree", self.figure)
        self.layout: Any = self._card.layout
        self.layout.insert(1, self._crumbs)

    def close(self) -> None:
        self._layers.close()

    def update(self) -> None:
        self._layers.update()
        place, view = self._layers.place, self.view
        drawn = (self._layers.version, view.layer_color, tuple(view.hidden), self._width_px)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        is_shown = place is not None and not self._layers.missing
        self._card.show_figure(is_shown=is_shown)
        if place is None or not is_shown:
            self._crumbs.show("")
            self._card.show_legend(())
            self._card.note.show(html('<p class="empty">{}</p>', self._layers.missing))
            return
        legend = icicle.legend_of(place.tree, view.layer_color, self.context.palette)
        self._draw(place, hidden_names((name for name, _ in legend), view.hidden))
        self._crumbs.show(crumbs(place))
        self._card.show_legend(hideable((LegendEntry(name, color, "■") for name, color in legend), view.hidden))
        self._card.note.show(self._note(place))

    def _draw(self, place: LayerPlace, hidden: Collection[str]) -> None:
        runners = self._layers.runners
        bright = None if runners is None else frozenset(runners["layer_path"].to_list())
        drawn = icicle.icicle(place.tree, place.layer, self.view.layer_color, self.context.palette, self._width_px, bright, hidden)
        self._icicle = drawn
        self.figure.replace("boxes", drawn.boxes)
        self.figure.replace("names", drawn.names)
        self.figure.follow("x", 0.0, drawn.span_ns)
        self.figure.follow("y", float(-drawn.level_count), 0.0)

    def _note(self, place: LayerPlace) -> str:
        work = None if self._layers.run is None else self._layers.run.spec.work
        notes = [HELP, layers_note(work, float(place.outermost["duration_sum_ns"].sum()), place.pass_ns)]
        notes.append(disturbance_note(place.tree["disturbance"]))
        if place.tree["efficiency_ratio"].null_count() == place.tree.height:
            notes.append(NO_EFFICIENCY)
        return " ".join(note for note in notes if note)

    def _tapped(self, event: Tap) -> None:
        """A box leads into its layer; that of the layer that is looked into leads out."""
        place = self._layers.place
        if self._icicle is None or place is None or event.x is None or event.y is None:
            return
        path = self._icicle.path_at(event.x, event.y)
        if path is not None:
            self.view.layer = place.around if path == place.layer else path

    def _resized(self, _name: str, _old: int, new: int) -> None:
        if new and abs(new - self._width_px) > WIDTH_STEP_PX:
            self._width_px = float(new)
            self.context.wake()


def crumbs(place: LayerPlace) -> str:
    """Return links to the layers around the one that is looked into."""
    parts = [("All layers", "")]
    parts += [(relative_layer_name(row["layer"], row["parent_path"]), str(row["layer_path"])) for row in place.lineage]
    links = [html('<li><a href="{}" title="{}">{}</a></li>', changed_href(layer=path), name, name) for name, path in parts[:-1]]
    here = html('<li><span aria-current="location" title="{0}">{0}</span></li>', parts[-1][0])
    shown = html('<nav aria-label="Layers around the one shown"><ol>{}</ol></nav>', joined([*links, here]))
    if place.missing:
        shown = html('<p class="problem">This run has no layer {}; all of them are shown.</p>{}', place.missing, shown)
    return shown


def out_of(place: LayerPlace | None, view: View, page: LayersView) -> str:
    """Return the address that shows the layer around the one that is looked into; empty: all are shown already."""
    return f"/layers?{to_query(view, page, layer=place.around)}" if place is not None and place.lineage else ""
