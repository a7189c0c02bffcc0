"""The tree of a run's layers on the Layers page: what is asked of the analyzer, the icicle, and the layer that is looked into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import holoviews as hv
import polars as pl
from bokeh.events import Tap

from kernalyse.services.core.model import Filter, FilterOperator, SortKey, TableQuery, Work
from kernalyse.services.ui.charts import icicle
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.legend import hidden_names
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.pages.layer_panel import LayerPanel, kernel_filters
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.state import ViewState
from kernalyse.services.ui.theme import Palette

MAX_LAYER_COUNT: Final = 20_000
"""Those that take longest, asked for at once; a layer takes no longer than the one around it, so none hangs in the air."""

MAX_KERNEL_ROWS: Final = 2_000
FIRST_WIDTH_PX: Final = 1_180.0  # until the browser has told how wide the figure is
WIDTH_STEP_PX: Final = 2.0  # a scroll bar that comes and goes is no reason to draw anew
REFRESH_INTERVAL_S: Final = 1.5
"""Between questions while a run goes on."""

LONGEST_FIRST: Final = (SortKey("duration_sum_ns", True),)
TREE_COLUMNS: Final = (
    *icicle.CHARTED,
    *("variant", "depth", "call_count", "own_duration_sum_ns", "source", "work_source", "worked_share_ratio", "memory_bytes"),
    *("disturbance", "pass_duration_median_ns"),
)


@EmptyChart
def _chart(palette: Palette) -> hv.Overlay:
    return icicle.icicle_chart(icicle.no_boxes(), icicle.no_names(), palette)


@dataclass(frozen=True, slots=True)
class ShownRun:
    """The run whose layers are shown. progress: what changes when there is more of them."""

    run_id: str
    progress: tuple[object, ...]
    hope: str = ""  # what to say while it tells no layers; empty: it will tell none
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class LookedAt:
    """What is asked for: kernels of a layer. layer: path, empty for all; variant: None where there are none; kernels: filters of them."""

    run_id: str
    layer: str
    variant: str | None
    kernels: tuple[Filter, ...]

    def filters(self) -> tuple[Filter, ...]:
        """Of table layer_kernels."""
        of_layer = Filter("layer_path", self.layer) if self.layer else Filter("depth", "0")
        return (of_layer, *self.kernels, *self.of_variant())

    def of_variant(self) -> tuple[Filter, ...]:
        return (Filter("variant", self.variant),) if self.variant else ()


class LayerTree:
    """Figure and fragments. On the server's loop.

    Args:
        go_into: called with the path of the layer to look into.
    """

    def __init__(self, client: AnalyzerClient, palette: Palette, wake: Callable[[], None], go_into: Callable[[str], None]) -> None:
        self._client = client
        self._palette = palette
        self._wake = wake
        self._go_into = go_into
        self.figure = LiveFigure("icicle", _chart, palette, ("boxes", "names"))
        self.figure.figure.on_event(Tap, self._tapped)
        self.figure.figure.on_change("inner_width", self._resized)
        self._width_px = FIRST_WIDTH_PX
        self._tree: Question[pl.DataFrame] = Question(wake)
        self._kernels: Question[pl.DataFrame] = Question(wake)
        self._runners: Question[pl.DataFrame] = Question(wake)
        self._drawn: tuple[object, ...] = ()
        self._icicle: icicle.Icicle | None = None
        self._panel: LayerPanel | None = None

    def close(self) -> None:
        for question in (self._tree, self._kernels, self._runners):
            question.stop()

    @property
    def categories(self) -> tuple[str, ...]:
        """Kinds of kernels that the layers are of."""
        return () if self._panel is None else icicle.categories_of(self._panel.tree)

    def fragments(self, run: ShownRun | None, state: ViewState) -> dict[str, str]:
        """Asks for what is missing, draws what has come, and says it in words."""
        if run is None:
            return LayerPanel.of_no_run()
        self._tree.ask(run.run_id, partial(self._ask_tree, run.run_id), run.progress, REFRESH_INTERVAL_S)
        tree = self._tree.answer_to(run.run_id)
        if tree is None:
            return LayerPanel.of_question(self._tree.problem)
        panel = LayerPanel(run.run_id, tree, state, run.work)
        self._panel = panel
        at = LookedAt(run.run_id, panel.layer, panel.variant, kernel_filters(state))
        self._kernels.ask(at, partial(self._ask_kernels, at), run.progress, REFRESH_INTERVAL_S)
        runners = self._runners_of(state, at, run)
        self._draw(panel, state, runners)
        return panel.fragments(self._kernels.answer_to(at), self._kernels.problem, runners, hope=run.hope)

    # ------------------------------------------------------------ asking

    async def _ask_tree(self, run_id: str) -> pl.DataFrame:
        query = TableQuery("layer_tree", run_ids=(run_id,), order_by=LONGEST_FIRST, limit=MAX_LAYER_COUNT, columns=TREE_COLUMNS)
        return (await self._client.table(query)).rows

    async def _ask_kernels(self, at: LookedAt) -> pl.DataFrame:
        return await self._layer_kernels(at.run_id, at.filters())

    def _runners_of(self, state: ViewState, at: LookedAt, run: ShownRun) -> pl.DataFrame | None:
        """Layers that launch kernels that the filters leave, wherever they are. None: all do, or the answer is on its way."""
        of_kernels = kernel_filters(state)
        if not of_kernels:
            return None
        subject = (at.run_id, at.variant, of_kernels)
        own = Filter("own_launch_count", "0", FilterOperator.GREATER)
        self._runners.ask(
            subject, partial(self._layer_kernels, at.run_id, (*of_kernels, own, *at.of_variant())), run.progress, REFRESH_INTERVAL_S
        )
        return self._runners.answer_to(subject)

    async def _layer_kernels(self, run_id: str, filters: tuple[Filter, ...]) -> pl.DataFrame:
        query = TableQuery("layer_kernels", run_ids=(run_id,), filters=filters, order_by=LONGEST_FIRST, limit=MAX_KERNEL_ROWS)
        return (await self._client.table(query)).rows

    # ------------------------------------------------------------ drawing

    def _draw(self, panel: LayerPanel, state: ViewState, runners: pl.DataFrame | None) -> None:
        color_by = state.layer_color
        wanted = (id(self._tree.answer), panel.layer, panel.variant, color_by, self._width_px, id(runners), state.hidden)
        if wanted == self._drawn:
            return
        self._drawn = wanted
        bright = None if runners is None else frozenset(runners["layer_path"].to_list())
        hidden = hidden_names((name for name, _ in icicle.legend_of(panel.tree, color_by, self._palette)), state.hidden)
        drawn = icicle.icicle(panel.tree, panel.layer, color_by, self._palette, self._width_px, bright, hidden)
        self._icicle = drawn
        self.figure.replace("boxes", drawn.boxes)
        self.figure.replace("names", drawn.names)
        self.figure.follow("x", 0.0, drawn.span_ns)
        self.figure.follow("y", float(-drawn.level_count), 0.0)

    def _tapped(self, event: Tap) -> None:
        """A box leads into its layer; that of the layer that is looked into leads out."""
        if self._icicle is None or self._panel is None or event.x is None or event.y is None:
            return
        path = self._icicle.path_at(event.x, event.y)
        if path is not None:
            self._go_into(self._panel.around if path == self._panel.layer else path)

    def _resized(self, _name: str, _old: int, new: int) -> None:
        if new and abs(new - self._width_px) > WIDTH_STEP_PX:
            self._width_px = float(new)
            self._wake()
