"""What the dashboard shows, as parameters that a URL carries: a link shows a colleague the same view.

`View` holds on every page, the other classes on one page each. Widgets are bound to the parameters, components read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlencode

import param

from kernalyse.services.ui.data.table_columns import TABLE_TITLES

MAX_RUNS: Final = 8
"""Runs laid over each other; more than the palette has colours could not be told apart."""

MAX_TEXT_LENGTH: Final = 20_000
"""Of one parameter in a URL; longer ones are refused by browsers and proxies."""


class Parameters(param.Parameterized):
    """Parameters that the query of a URL carries, each under its own name."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)

    def read(self, query: Mapping[str, str]) -> None:
        """Set every parameter, to what the query says or to its default. What cannot be read is left out: an old link still opens."""
        values = {name: _value(self.param[name], query.get(name)) for name in self.names()}
        self.param.update(**values)
        self.param.update(**values)  # what others of them reset when they changed, as a new colouring shows hidden series again

    def written(self) -> dict[str, str]:
        """Return the query that `read` gives these values back from; parameters at their default are left out."""
        values = {name: getattr(self, name) for name in self.names()}
        return {name: _text(value) for name, value in values.items() if value != self.param[name].default}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the parameters in the order of their declaration."""
        return tuple(name for name in cls.param if name != "name")


def to_query(*parts: Parameters, **changes: object) -> str:
    """Return the query string of a view. changes: values that differ from those of the parts, by the parameter's name."""
    written = {name: text for part in parts for name, text in part.written().items()}
    written.update({name: _text(value) for name, value in changes.items()})
    return urlencode({name: text for name, text in written.items() if text or name not in changes}, safe=",")


def changed_href(**changes: object) -> str:
    """Return a link to what is shown with these parameters changed; the browser takes the rest from its address."""
    return "?" + urlencode({name: _text(value) for name, value in changes.items()})


def _value(parameter: Any, text: str | None) -> Any:
    if text is None:
        return list(parameter.default) if isinstance(parameter, param.List) else parameter.default
    match parameter:
        case param.Selector():
            return next((value for value in parameter.objects if str(value) == text), parameter.default)
        case param.List():
            longest = None if parameter.bounds is None else parameter.bounds[1]
            return [unquote(part) for part in dict.fromkeys(text.split(",")) if part][:longest]
        case param.Boolean():
            return text == "1"
        case param.Integer():
            return int(text) if text.isdecimal() and len(text) < 12 else parameter.default
        case _:
            return text[:MAX_TEXT_LENGTH]


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(part).replace("%", "%25").replace(",", "%2C") for part in value)
    return str(int(value)) if isinstance(value, bool) else str(value)


class View(Parameters):
    """Runs, filters and theme, which hold on every page."""

    runs = param.List(default=[], item_type=str, bounds=(0, MAX_RUNS), doc="Ids of the runs shown; none: the newest, following along.")
    kernel = param.String(default="", label="Kernel", doc="Part of a kernel's name, or in quotes the whole; empty: all.")
    category = param.String(default="", label="Category")
    dtype = param.String(default="", label="Data type")
    model = param.String(default="", label="Model")
    batch_size = param.String(default="", label="Batch size")
    device = param.String(default="", label="Device", doc="A device_id.")
    efficiency = param.String(default="", label="Efficiency", doc='A category such as "memory bound".')
    theme: param.Selector[Any] = param.Selector(default="light", objects=["light", "dark"])

    def runs_with(self, run_id: str) -> list[str]:
        """Return the runs with this one added, or without it where it is among them. Of too many the newest additions stay."""
        others = [other for other in self.runs if other != run_id]
        return others if run_id in self.runs else [*others[-(MAX_RUNS - 1) :], run_id]


class PageView(Parameters):
    """What each page has besides."""

    hidden = param.List(default=[], item_type=str, doc="Keys of series that a click in a legend took away.")

    def toggle_series(self, key: str) -> None:
        """Hide the series of the charts, or show it again."""
        others = [other for other in self.hidden if other != key]
        self.hidden = others if key in self.hidden else [*others, key]


class LiveView(PageView):
    """What the page Live shows: its run's series."""


class RooflineView(PageView):
    """What the page Roofline shows."""

    color_by: param.Selector[Any] = param.Selector(
        default="category",
        objects={
            "category": "category",
            "efficiency": "efficiency",
            "data type": "dtype",
            "kernel": "kernel",
            "variant": "variant",
            "run": "run",
        },
        label="Colour and shape",
    )
    points: param.Selector[Any] = param.Selector(default="kernel", objects=["kernel", "layer"], label="Points by")
    sizes: param.Selector[Any] = param.Selector(
        default="share", objects={"share of time": "share", "all the same": "same"}, label="Size of points"
    )
    level: param.Selector[Any] = param.Selector(
        default="auto",
        objects={"automatic": "auto", "DRAM": "dram", "L2 cache": "l2", "L1 cache": "l1", "all, side by side": "all"},
        label="Memory level",
    )
    ceilings: param.Selector[Any] = param.Selector(
        default="best",
        objects={"best known": "best", "datasheet": "datasheet", "at the clock": "clock", "measured": "measured"},
        label="Ceilings",
    )
    point = param.String(default="", doc="Key of the chosen point; empty: none.")

    @param.depends("color_by", watch=True)
    def _show_all_series(self) -> None:
        self.hidden = []


class PagedView(PageView):
    """Where a page has a long table: its order, and which of its rows are shown."""

    sort = param.String(default="", doc="Column; empty: the order that the page chooses.")
    descending = param.Boolean(default=False)
    row = param.Integer(default=0, doc="The first that is shown.")
    row_count: param.Selector[Any] = param.Selector(default=25, objects=[25, 50, 100, 250], label="Rows at once")


class TableView(PagedView):
    """Where a page has a table of the analyzer: its columns."""

    columns = param.List(default=[], item_type=str, doc="Of the table; none: those that the page chooses.")
    layer_name = param.String(default="", label="Layer", doc="Part of a layer's name, or in quotes the whole, of tables of layers.")


class KernelsView(TableView):
    """What the page Kernels shows."""

    table: param.Selector[Any] = param.Selector(
        default="measurements", objects={title: name for name, title in TABLE_TITLES.items()}, label="Table"
    )
    figure: param.Selector[Any] = param.Selector(
        default="", objects=["", "flop_rate", "byte_rate", "efficiency", "duration"], doc="Of the charts; empty: the first that is known."
    )
    heat_x = param.String(default="", doc="Axis of the heatmap; empty: the page chooses.")
    heat_y = param.String(default="")
    configuration = param.String(default="", doc="Key of the chosen row; empty: none.")
    listing = param.String(default="", doc="What its compiler left that is shown, by its name; empty: the first.")

    @param.depends("table", watch=True)
    def _show_as_at_first(self) -> None:
        self.param.update(columns=[], sort="", descending=False, row=0)


class LayersView(TableView):
    """What the page Layers shows."""

    table: param.Selector[Any] = param.Selector(
        default="",
        objects={
            "": "",
            "layers": "layers",
            "kernels of each layer": "layer_kernels",
            "variants side by side": "layer_variants",
            "whole passes": "models",
        },
        doc="Empty: the page chooses.",
    )
    layer = param.String(default="", doc="Path of the layer that is looked into; empty: all.")
    variant = param.String(default="", label="Variant", doc="Of a model; empty: the first.")
    layer_color: param.Selector[Any] = param.Selector(
        default="efficiency",
        objects={"efficiency": "efficiency", "bound": "bound", "kind of kernels": "category"},
        label="Colour",
    )

    @param.depends("layer_color", watch=True)
    def _show_all_series(self) -> None:
        self.hidden = []

    @param.depends("table", watch=True)
    def _show_as_at_first(self) -> None:
        self.param.update(columns=[], sort="", descending=False, row=0)

    @param.depends("layer_name", watch=True)
    def _show_first_rows(self) -> None:
        self.row = 0


class CompareView(PagedView):
    """What the page Compare shows."""

    baseline = param.String(default="", doc="Id of the run that the candidate is judged by; empty: one that is like it.")
    candidate = param.String(default="", doc="Id of a run; empty: the newest.")
    allow = param.String(default="", doc="Differences between the two that were said to be meant, separated by commas.")
    verdict: param.Selector[Any] = param.Selector(
        default="",
        objects={"all": "", "slower": "SLOWER", "faster": "FASTER", "same": "SAME", "undecided": "UNDECIDED", "new": "NEW", "gone": "GONE"},
        label="Verdict",
    )
    points: param.Selector[Any] = param.Selector(default="kernel", objects={"kernels or passes": "kernel", "layers": "layer"}, label="Rows")

    @param.depends("baseline", "candidate", "verdict", "points", watch=True)
    def _show_first_rows(self) -> None:
        self.row = 0


class HistoryView(PagedView):
    """What the page History shows."""

    metric: param.Selector[Any] = param.Selector(
        default="duration_median_ns",
        objects={
            "Median time": "duration_median_ns",
            "Mean time": "duration_mean_ns",
            "Shortest time": "duration_min_ns",
            "95th percentile of time": "duration_p95_ns",
            "99th percentile of time": "duration_p99_ns",
            "Time in all": "duration_sum_ns",
            "Noise": "noise_ratio",
            "Flop rate (flop/s)": "achieved_flop_per_s",
            "Byte rate (B/s)": "achieved_bytes_per_s",
            "Efficiency": "efficiency_ratio",
            "Tokens/s": "tokens_per_s",
        },
        label="Figure",
    )
    series = param.String(default="", doc="Key of the history that is shown; empty: the first of the list.")
    subject: param.Selector[Any] = param.Selector(
        default="",
        objects={"all": "", "configurations": "configuration", "whole passes": "model", "layers": "layer", "kernels of traces": "kernel"},
        label="Of",
    )
    across: param.Selector[Any] = param.Selector(default="time", objects={"time": "time", "runs and commits": "runs"}, label="Along")

    @param.depends("metric", "subject", watch=True)
    def _show_first_rows(self) -> None:
        self.row = 0


class TimelineView(PageView):
    """What the page Timeline shows of its run."""

    color_by: param.Selector[Any] = param.Selector(
        default="category", objects={"category of the kernel": "category", "name": "kernel"}, label="Colour"
    )
    window = param.String(default="", doc='"start..end" in nanoseconds; empty: all of the trace.')
    stretch = param.String(default="", doc="That is marked, written the same way.")
    event = param.String(default="", doc='The chosen one, such as "kernels.17"; empty: none.')
    search = param.String(default="", label="Search", doc="Part of names.")
    calls: param.Selector[Any] = param.Selector(default="shown", objects=["shown", "hidden"], doc="Rows of API calls.")
    folded = param.List(default=[], item_type=str, bounds=(0, 40), doc="Groups of rows that somebody folded, or opened.")

    @param.depends("color_by", watch=True)
    def _show_all_series(self) -> None:
        self.hidden = []


class StartView(PageView):
    """What the page Run / Import shows: the form that is chosen."""

    form: param.Selector[Any] = param.Selector(default="sweep", objects=["sweep", "command", "model", "prompt", "ceilings", "import"])


class NodesView(PageView):
    """What the page Nodes shows."""

    node = param.String(default="", doc="Address of the node; empty: the first that serves.")


class FleetView(PagedView):
    """What the page Fleet shows."""

    search = param.String(default="", label="Search", doc="Part of a node's or a device's name.")
    state: param.Selector[Any] = param.Selector(
        default="",
        objects={"all": "", "with findings": "finding", "gone": "gone", "not checked": "unchecked", "nothing found": "fine"},
        label="State",
    )

    @param.depends("search", "state", watch=True)
    def _show_first_rows(self) -> None:
        self.row = 0
