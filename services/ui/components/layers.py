"""What the page Layers says around its tree: filters, the layer that is looked into, its kernels, kinds of layers, and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import panel as pn
import polars as pl
from markupsafe import Markup

from kernalyse.services.core.formatting import relative_layer_name
from kernalyse.services.core.ml_models import layers_note
from kernalyse.services.core.model import ModelRun, Run, SortKey, TableQuery
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import icicle
from kernalyse.services.ui.charts import layers as layer_charts
from kernalyse.services.ui.components.base import Component, Text, card, field, html, joined
from kernalyse.services.ui.components.chart import ChartCard, LegendEntry, hidden_names, hideable
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.components.filters import Filters, NameInput
from kernalyse.services.ui.components.kernels import DTYPES, RunChoice
from kernalyse.services.ui.components.layer_tree import NO_RUN, LayerPlace, LayerRun
from kernalyse.services.ui.components.table import ASKING, NO_MATCH, REFRESH_INTERVAL_S, TableRows, efficiency_cell
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.filters import whole
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.data.table_columns import NAME_COLUMNS, TableName
from kernalyse.services.ui.theme import MARKERS, SYMBOLS
from kernalyse.services.ui.view import LayersView, View, changed_href, to_query

if TYPE_CHECKING:
    import holoviews as hv

    from kernalyse.services.ui.tab import Context
    from kernalyse.services.ui.theme import Palette

MAX_LISTED: Final = 12
MAX_CHARTED_LAYERS: Final = 20_000
"""Rows asked for to sum them by kind; those beyond the longest ones are too short for a bar."""

CHARTED: Final = ("layer", "variant", "launch_count", "duration_sum_ns", "share_ratio", "efficiency_ratio", "pass_duration_median_ns")
NO_KERNEL: Final = "No layer of this run launches such a kernel."
INSIDE: Final = (
    '<div class="scroll" tabindex="0"><table><thead><tr><th>Layer</th><th class="n">Time</th><th class="n">Share</th>'
    '<th class="n">Kernels</th><th class="n">Efficiency</th><th>Bound</th></tr></thead><tbody>{}</tbody></table></div>'
)
KERNELS: Final = (
    '<div class="scroll" tabindex="0"><table><thead><tr><th>Kernel</th><th class="n">Launches</th><th class="n">Time</th>'
    '<th class="n">Share</th><th class="n">Efficiency</th><th>Bound</th><th>Look at</th></tr></thead><tbody>{}</tbody></table></div>'
)


class LayerFilters(Filters):
    """Filters with the choice of a run, of its variant, and of the tree's colours."""

    def __init__(self, context: Context, view: LayersView, layers: LayerRun) -> None:
        self._run = RunChoice(context, "the newest")
        color = field(pn.widgets.Select, view.param.layer_color)
        self._variant = pn.widgets.Select(label="Variant", options=[], visible=False, sizing_mode="stretch_width", min_width=0, margin=0)
        super().__init__(context, self._run.widget, color, self._variant)
        self._view = view
        self._layers = layers
        self._variant.param.watch(self._choose_variant, "value")

    def update(self) -> None:
        self._layers.update()
        self._run.update(self._layers.runs)
        place = self._layers.place
        self.offer(self._values(place))
        variants = [] if place is None else list(place.variants)
        if place is not None and (self._variant.options, self._variant.value) != (variants, place.variant):
            self._variant.param.update(options=variants, value=place.variant, visible=len(variants) > 1)

    def _values(self, place: LayerPlace | None) -> dict[str, tuple[str, ...]]:
        """Those of a layer's kernels, and of passes."""
        memories = self.context.memories(self.context.shown_run_ids())
        tables = (memory.table("configurations") for memory in memories)
        values = filters.together(filters.values_of(table) for table in tables if table is not None)
        categories = () if place is None else icicle.categories_of(place.tree)
        of_trace = {"dtype": DTYPES} if self._layers.run is not None and self._layers.run.is_trace else {}
        return values | ({"category": categories} if categories else {}) | of_trace

    def _choose_variant(self, event: Any) -> None:
        place = self._layers.place
        if place is not None and event.new != place.variant:
            self._view.variant = event.new or ""


class LayerText(Component):
    """A card of words about the layer that is looked into; it takes no room while there are no layers.

    Args:
        told: makes the words of what is known; empty: the card is left out.
    """

    def __init__(self, layers: LayerRun, told: Callable[[LayerRun, LayerPlace], str], classes: tuple[str, ...] = ()) -> None:
        super().__init__(layers.context)
        self._layers = layers
        self._told = told
        self._version = -1
        self._text = Text(classes=("told",))
        self.layout = card(self._text, classes=classes)
        self.layout.visible = False

    def update(self) -> None:
        self._layers.update()
        if self._version == self._layers.version:
            return
        self._version = self._layers.version
        place = self._layers.place
        self._text.show("" if place is None or self._layers.missing else self._told(self._layers, place))
        if self.layout.visible != self._text.visible:
            self.layout.visible = self._text.visible


# ---------------------------------------------------------------- the layer that is looked into


def layer_facts(layers: LayerRun, place: LayerPlace) -> Markup:
    """Return the figures of the layer, and the way to its point under the roofline."""
    name = place.lineage[-1]["layer"] if place.lineage else "All layers"
    facts = joined(html("<div><dt>{}</dt><dd>{}</dd></div>", title, text) for title, text in _facts(place))
    view = layers.context.view
    link = f"/roofline?{to_query(runs=_run_ids(layers), theme=view.theme, points='layer', kernel=place.point_name())}"
    pattern = '<h2 class="layer-name">{}</h2><dl class="facts">{}</dl><p class="note"><a href="{}">Its point under the roofline</a></p>'
    return html(pattern, name, facts, link)


def _run_ids(layers: LayerRun) -> list[str]:
    return [] if layers.run is None else [layers.run.run_id]


def _facts(place: LayerPlace) -> Iterator[tuple[str, object]]:
    outermost = place.outermost
    row = place.lineage[-1] if place.lineage else {}
    yield "Time in all", theme.duration(row.get("duration_sum_ns", outermost["duration_sum_ns"].sum()))
    yield "Share of all layers", theme.percent(row.get("share_ratio", 1.0))
    if place.pass_ns is not None:
        yield "Whole pass", theme.duration(place.pass_ns)
    yield "Kernels", theme.count(row.get("launch_count", outermost["launch_count"].sum()))
    yield "Layers", theme.count(icicle.inside(place.tree, place.layer).height - bool(place.layer))
    if not row:
        return
    yield "Of its own", theme.duration(row["own_duration_sum_ns"])
    yield "Calls", theme.count(row["call_count"])
    yield "Flop", theme.si(row["flop"], "flop")
    yield "Bytes", theme.memory(row["bytes"])
    yield "Intensity", theme.intensity(row["intensity_flop_per_byte"])
    yield "Achieved", f"{theme.flop_rate(row['achieved_flop_per_s'])}, {theme.byte_rate(row['achieved_bytes_per_s'])}"
    yield "Roof", theme.flop_rate(row["attainable_flop_per_s"])
    yield "Efficiency", theme.percent(row["efficiency_ratio"])
    yield "Bound", row["bound"] or theme.UNKNOWN
    yield "Work known", f"of {theme.percent(row['worked_share_ratio'])} of the time"
    yield "Told by", row["source"] or theme.UNKNOWN
    if row["disturbance"]:
        yield "Disturbed by", row["disturbance"]
    if row["memory_bytes"] is not None:
        yield "Memory", theme.memory(row["memory_bytes"])


def layers_inside(_layers: LayerRun, place: LayerPlace) -> Markup:
    """Return the layers within the one that is looked into, those that take longest first."""
    is_inside = pl.col("parent_path") == place.layer if place.layer else pl.col("parent_path").is_null()
    inside = place.tree.filter(is_inside).sort("duration_sum_ns", descending=True)
    total_ns: Any = (place.lineage[-1]["duration_sum_ns"] if place.lineage else None) or inside["duration_sum_ns"].sum() or 1
    title = html("<h2>Layers inside</h2>")
    if inside.is_empty():
        return title + html('<p class="empty">No layers inside: its kernels are its own.</p>')
    pattern = (
        '<tr><td class="name"><a href="{}" title="{}">{}</a></td><td class="n">{}</td><td class="n">{}</td><td class="n">{}</td>'
        '<td class="n">{}</td><td>{}</td></tr>'
    )
    rows = joined(
        html(
            pattern,
            changed_href(layer=row["layer_path"]),
            row["layer"],
            relative_layer_name(row["layer"], row["parent_path"]),
            theme.duration(row["duration_sum_ns"]),
            efficiency_cell((row["duration_sum_ns"] or 0) / total_ns),
            theme.count(row["launch_count"]),
            theme.percent(row["efficiency_ratio"]),
            row["bound"] or theme.UNKNOWN,
        )
        for row in inside.head(MAX_LISTED).to_dicts()
    )
    return title + html(INSIDE, rows) + _left_out(inside.height, "{} shorter ones are in the figure.")


def _left_out(count: int, pattern: str) -> Markup:
    return html(f'<p class="note">{pattern}</p>', theme.count(count - MAX_LISTED)) if count > MAX_LISTED else Markup()


def layer_kernels(layers: LayerRun, place: LayerPlace) -> Markup:
    """Return the kernels that the layer launches, and the ways to them."""
    title, kernels = html("<h2>Its kernels</h2>"), layers.kernels
    if kernels is None or kernels.is_empty():
        said = "No kernels." if kernels is not None else layers.kernels_problem or ASKING
        return title + html('<p class="empty">{}</p>', said)
    summed = by_kernel(kernels)
    table: TableName = "launched" if place.variant is None else "measurements"
    pattern = (
        '<tr><td class="name" title="{}">{}</td><td class="n">{}</td><td class="n">{}</td><td class="n">{}</td><td class="n">{}</td>'
        '<td>{}</td><td class="look"><a href="{}">its layers</a> <a href="{}">kernel</a> <a href="{}">roofline</a></td></tr>'
    )
    theme_name = layers.context.view.theme

    def row_of(row: dict[str, Any]) -> Markup:
        name = whole(row["kernel_name"])
        query = to_query(runs=_run_ids(layers), theme=theme_name, kernel=name)
        return html(
            pattern,
            row["kernel_name"][:400],
            row["kernel_name"][:200],
            theme.count(row["launch_count"]),
            theme.duration(row["duration_sum_ns"]),
            efficiency_cell(row["share_ratio"] or 0),
            theme.percent(row["efficiency_ratio"]),
            row["bound"] or theme.UNKNOWN,
            changed_href(kernel=name),
            f"/kernels?{query}&table={table}",
            f"/roofline?{query}",
        )

    rows = joined(map(row_of, summed.head(MAX_LISTED).to_dicts()))
    left_out = "{} others take less; all are in the table below under “kernels of each layer”."
    return title + html(KERNELS, rows) + _left_out(summed.height, left_out)


def by_kernel(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return one row per kernel, longest first, of rows of table layer_kernels of layers that are not in each other.

    efficiency_ratio and bound are those of the layer that takes most of its time.
    """
    duration_ns = pl.col("duration_sum_ns")
    return (
        kernels.sort("duration_sum_ns", descending=True, nulls_last=True)
        .group_by("kernel_name", maintain_order=True)
        .agg(pl.col("launch_count").sum(), duration_ns.sum(), pl.col("efficiency_ratio", "bound").first())
        .with_columns(share_ratio=duration_ns / duration_ns.sum())
        .sort("duration_sum_ns", "kernel_name", descending=[True, False])
    )


def kernel_layers(layers: LayerRun, _place: LayerPlace) -> Markup:
    """Return which layers launch the kernels that are looked for; empty: none are."""
    if not layers.kernel_filters:
        return Markup()
    view, runners = layers.context.view, layers.runners
    what = ", ".join(part for part in (view.kernel, view.category, view.dtype) if part)
    every = changed_href(kernel="", category="", dtype="", row="")
    head = html('<div class="detail-head"><h2>Layers that run {}</h2><a class="button" href="{}">all kernels</a></div>', what[:80], every)
    if runners is None:
        return head + html('<p class="note">{}</p>', ASKING)
    found = (
        runners.group_by("layer_path", "layer")
        .agg(pl.col("own_launch_count").sum(), pl.col("duration_sum_ns").sum())
        .sort("duration_sum_ns", "layer_path", descending=[True, False])
    )
    kernel_count, launch_count = runners["kernel_name"].n_unique(), int(runners["own_launch_count"].sum())
    summary = (
        f"{theme.count(launch_count)} launches in {theme.count(found.height)} {'layer' if found.height == 1 else 'layers'}, "
        f"of {theme.count(kernel_count)} {'kernel' if kernel_count == 1 else 'kernels'}; other layers are drawn pale."
    )
    pattern = '<li><a href="{}" title="{}">{}</a> <span class="note">{}, {} launches</span></li>'
    listed = joined(
        html(
            pattern,
            changed_href(layer=row["layer_path"]),
            row["layer_path"],
            row["layer"],
            theme.duration(row["duration_sum_ns"]),
            theme.count(row["own_launch_count"]),
        )
        for row in found.head(MAX_LISTED).to_dicts()
    )
    told = html('<p class="note">{}</p>', summary if found.height else NO_KERNEL)
    return head + told + html('<ul class="layer-list">{}</ul>', listed) + _left_out(found.height, "{} more.")


# ---------------------------------------------------------------- kinds of layers


def _empty_kinds(palette: Palette) -> hv.Overlay:
    return layer_charts.layer_chart(layer_charts.no_bars(), palette)


KINDS: Final = RenderedChart(_empty_kinds)


class LayerKinds(Component):
    """Time of each kind of layer, variants of a model beside each other."""

    def __init__(self, context: Context, view: LayersView, layers: LayerRun | None = None) -> None:
        super().__init__(context)
        self.view = view
        self._layers = layers or LayerRun(context, view)
        self._kinds: Question[pl.DataFrame] = Question(context.wake)
        self._drawn: object = None
        self.figure = Figure("layers", KINDS, context.palette, ("bars",))
        self._card = ChartCard("Time by kind of layer", self.figure)
        self.layout: Any = self._card.layout

    def close(self) -> None:
        self._layers.close()
        self._kinds.stop()

    def update(self) -> None:
        self._layers.update()
        run = self._layers.run
        if run is not None:
            self._kinds.ask(run.run_id, partial(self._ask, run.run_id), self._layers.progress, REFRESH_INTERVAL_S)
        kinds = None if run is None else self._kinds.answer_to(run.run_id)
        drawn = (run, id(kinds), tuple(self.view.hidden), self._kinds.problem)
        if drawn != self._drawn:
            self._drawn = drawn
            self._draw(run, kinds)

    async def _ask(self, run_id: str) -> pl.DataFrame:
        order = (SortKey("duration_sum_ns", True),)
        query = TableQuery("layers", run_ids=(run_id,), order_by=order, limit=MAX_CHARTED_LAYERS, columns=CHARTED)
        return layer_charts.kinds_of((await self.context.client.table(query)).rows)

    def _draw(self, run: Run | None, kinds: pl.DataFrame | None) -> None:
        is_shown = run is not None and kinds is not None and not kinds.is_empty()
        self._card.show_figure(is_shown=is_shown)
        if run is None or kinds is None or not is_shown:
            missing = NO_RUN if run is None else self._kinds.problem or (ASKING if kinds is None else "No layer has a time.")
            self._card.show_legend(())
            self._card.note.show(html('<p class="empty">{}</p>', missing))
            return
        palette, variants = self.context.palette, layer_charts.variants_of(kinds)
        bars, names = layer_charts.bar_columns(kinds, palette, hidden_names(variants, self.view.hidden))
        self.figure.replace("bars", bars)
        self.figure.name_ticks(names, leaves_none_out=True)
        self.figure.follow("x", -0.5, max(1, len(names)) - 0.5)
        if len(bars["top"]):
            self.figure.follow("y", 0.0, float(bars["top"].max()) * 1.08)
        colors = palette.series
        entries = (LegendEntry(name, colors[place % len(colors)], SYMBOLS[MARKERS[1]]) for place, name in enumerate(filter(None, variants)))
        self._card.show_legend(hideable(entries, self.view.hidden))
        what = "one pass, each launch at its median" if isinstance(run.spec.work, ModelRun) else "those that take longest"
        notes = [f"{run.title}: {what}; layers that differ by a number alone together.", *_sums(run, kinds)]
        self._card.note.show(" ".join(notes))


def _sums(run: Run, kinds: pl.DataFrame) -> Iterator[str]:
    """Yield what the layers of each variant take beside its whole passes."""
    for part in kinds.partition_by("variant", maintain_order=True):
        pass_ns: Any = part["pass_duration_median_ns"].max()
        note = layers_note(run.spec.work, float(part["duration_sum_ns"].sum()), pass_ns)
        if note:
            yield f"{part['variant'][0]}: {note}" if part["variant"][0] else note


# ---------------------------------------------------------------- rows


class LayerTable(TableRows):
    """Rows of layers, of their kernels, of variants side by side, or of whole passes, of the runs that are shown."""

    def __init__(self, context: Context, view: LayersView, layers: LayerRun) -> None:
        options = {title: name for title, name in LayersView.param.table.names.items() if name}
        self._table = pn.widgets.Select(label="Table", options=options, sizing_mode="fixed", width=190, margin=0)
        self._name = NameInput(view.param.layer_name, sizing_mode="fixed", width=170)
        super().__init__(context, view, "layers", (self._table, self._name))
        self._view_of_layers = view
        self._layers = layers
        self._table.param.watch(self._choose_table, "value")

    def prepare(self) -> None:
        self._layers.update()
        self._name.follow()
        if self._table.value != self.table:
            self._table.value = self.table

    @property
    def table(self) -> TableName:
        chosen: TableName | None = self._view_of_layers.table or None
        if chosen is not None:
            return chosen
        work = None if self._layers.run is None else self._layers.run.spec.work
        if self.context.view.kernel:
            return "layer_kernels"
        return "layer_variants" if isinstance(work, ModelRun) and len(work.variants) > 1 else "layers"

    @property
    def asked(self) -> View:
        """Rows of layers are filtered by the layer's name, which is no kernel's."""
        view = self.context.view
        kernel = self._view_of_layers.layer_name if self.table in NAME_COLUMNS else view.kernel
        return View(**{**{name: getattr(view, name) for name in view.names()}, "runs": self.context.shown_run_ids(), "kernel": kernel})

    def progress(self) -> object:
        return self._layers.progress

    def runs(self) -> list[Run]:
        return self._layers.runs

    def nothing(self) -> str:
        return self._layers.missing or NO_MATCH

    def _choose_table(self, event: Any) -> None:
        if event.new != self.table:
            self._view_of_layers.table = event.new
