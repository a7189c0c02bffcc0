"""The page Layers: the tree of a model or a trace, the layer that is looked into, kinds of layers, whole passes, and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import panel as pn

from kernalyse.services.ui.components.base import Component, lay_out
from kernalyse.services.ui.components.first_visit import FirstVisit
from kernalyse.services.ui.components.layer_tree import LayerRun, LayerTree, out_of
from kernalyse.services.ui.components.layers import (
    LayerFilters,
    LayerKinds,
    LayerTable,
    LayerText,
    kernel_layers,
    layer_facts,
    layer_kernels,
    layers_inside,
)
from kernalyse.services.ui.components.passes import (
    ARCHITECTURE,
    PassBars,
    PassEfficiency,
    PassHead,
    PassPercentiles,
    PassRows,
    is_of_model,
)
from kernalyse.services.ui.view import LayersView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


class LayersPage(Component):
    """Lays out what the page shows; what tells of layers and of whole passes is left out where the run has none."""

    def __init__(self, context: Context, view: LayersView) -> None:
        super().__init__(context)
        self._view = view
        self._layers = layers = LayerRun(context, view)
        choices, tree, kinds = LayerFilters(context, view, layers), LayerTree(context, view, layers), LayerKinds(context, view, layers)
        runners, facts = LayerText(layers, kernel_layers), LayerText(layers, layer_facts)
        inside, kernels = LayerText(layers, layers_inside), LayerText(layers, layer_kernels)
        table = LayerTable(context, view, layers)
        self._passes: pn.Column | None = None
        self._first = FirstVisit(context, "layers")
        self.parts = (layers, choices, tree, runners, facts, inside, kernels, kinds, table, self._first)
        of_layer = pn.Column(inside, kernels, css_classes=["of-layer"], sizing_mode="stretch_width")
        self._always = (choices, tree)
        self._of_layers = (runners, facts, of_layer, kinds)
        self._table = table
        self._stage = self.layout = pn.Column(*self._always, table, css_classes=["stage"], sizing_mode="stretch_width")

    def update(self) -> None:
        super().update()
        self.out = out_of(self._layers.place, self.context.view, self._view)
        has_passes = any(map(is_of_model, self._layers.runs))
        if has_passes and self._passes is None:
            self._passes = self._made_passes()
        has_layers = self._layers.place is not None and not self._layers.missing
        wanted = [*self._always, *(self._of_layers if has_layers else ()), *([self._passes] if has_passes else ()), self._table]
        wanted = [self._first] if self._first.is_shown else wanted
        lay_out(self.context, self._stage, [getattr(part, "layout", part) for part in wanted])

    def _made_passes(self) -> pn.Column:
        """Made where they are needed: seven figures of which a trace has none."""
        context, view = self.context, self._view
        rows = PassRows(context, view, self._layers)
        head = PassHead(context, view, rows)
        latency, throughput, memory, *architecture = (
            PassBars(context, view, name, rows) for name in ("latency", "throughput", "memory", *ARCHITECTURE)
        )
        percentiles, efficiency = PassPercentiles(context, view, rows), PassEfficiency(context, view, rows)
        charts = (latency, throughput, percentiles, efficiency, memory, *architecture)
        for part in (rows, head, *charts):
            part.update()
        self.parts = (*self.parts, rows, head, *charts)
        grid = pn.Column(*charts[:5], css_classes=["charts"], sizing_mode="stretch_width")
        thirds = pn.Column(*architecture, css_classes=["thirds"], sizing_mode="stretch_width")
        return pn.Column(head, grid, thirds, css_classes=["stage", "passes"], sizing_mode="stretch_width")
