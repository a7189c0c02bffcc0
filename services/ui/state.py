"""What a page shows, as plain data that its URL carries: a link shows a colleague the same view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args
from urllib.parse import parse_qs, unquote, urlencode

from kernalyse.services.ui.names_wanted import MAX_LENGTH
from kernalyse.services.ui.table_columns import TableName
from kernalyse.services.ui.theme import ThemeName

Page = Literal["live", "roofline", "kernels", "layers", "timeline", "compare", "history", "nodes", "start"]
PAGE_TITLES: Final[dict[Page, str]] = {
    "live": "Live",
    "roofline": "Roofline",
    "kernels": "Kernels",
    "layers": "Layers",
    "timeline": "Timeline",
    "compare": "Compare",
    "history": "History",
    "nodes": "Nodes",
    "start": "Run / Import",
}
"""In the order of the navigation."""

StartTab = Literal["sweep", "command", "model", "prompt", "ceilings", "import"]

ColorBy = Literal["category", "efficiency", "dtype", "kernel", "variant", "run"]
CeilingChoice = Literal["best", "datasheet", "clock", "measured"]
PointsOf = Literal["kernel", "layer"]
PointSize = Literal["share", "same"]
LevelChoice = Literal["auto", "dram", "l2", "l1", "all"]
MetricName = Literal["flop_rate", "byte_rate", "efficiency", "duration"]
LayerColor = Literal["efficiency", "bound", "category"]
CallRows = Literal["shown", "hidden"]
HistoryMetric = Literal[
    "duration_median_ns",
    "duration_mean_ns",
    "duration_min_ns",
    "duration_p95_ns",
    "duration_p99_ns",
    "duration_sum_ns",
    "noise_ratio",
    "achieved_flop_per_s",
    "achieved_bytes_per_s",
    "efficiency_ratio",
    "tokens_per_s",
]
Across = Literal["time", "runs"]
MAX_RUNS: Final = 8
"""Runs overlaid at once; more than the palette has colours could not be told apart."""

ROW_COUNTS: Final = (25, 50, 100, 250)
"""Rows of a table that can be shown at once; more cells than 250 rows have make a browser slow to lay them out."""


@dataclass(frozen=True, slots=True)
class ViewState:
    """One view of one page. The defaults are what a bare URL shows."""

    runs: tuple[str, ...] = ()  # empty: the newest, following along
    theme: ThemeName = "light"
    kernel: str = ""  # part of a kernel's name, or all of it in quotes; empty: all
    category: str = ""
    dtype: str = ""
    model: str = ""
    batch_size: str = ""  # a number, or empty: all
    device: str = ""  # device_id
    efficiency: str = ""  # category of efficiency, e.g. "memory bound"
    color_by: ColorBy = "category"
    ceilings: CeilingChoice = "best"  # source that points are held against
    points: PointsOf = "kernel"  # of traces: a point for each kernel, or for each layer
    sizes: PointSize = "share"  # of traces and models: by share of the time
    level: LevelChoice = "auto"  # memory that points are held against; auto: the one that their bytes came from
    point: str = ""  # the chosen one, see point_key; empty: none
    hidden: tuple[str, ...] = ()  # series of charts that a click in the legend took away, see legend.series_key
    table: TableName = "measurements"
    columns: tuple[str, ...] = ()  # empty: those the page chooses
    sort: str = ""  # column; empty: the analyzer's order
    descending: bool = False
    row: int = 0  # first row shown
    baseline: str = ""  # run_id that the candidate is judged by; empty: one that is like it
    candidate: str = ""  # run_id; empty: the newest
    allow: str = ""  # differences between the two that were allowed to be, comma-separated
    verdict: str = ""  # of the rows compared; empty: all
    metric: HistoryMetric = "duration_median_ns"  # of the history
    series: str = ""  # whose history is shown, by its key; empty: the first of the list
    subject: str = ""  # of the history's series: configuration, model, layer or kernel; empty: all
    across: Across = "time"  # what lies along the history's axis
    node: str = ""  # address; empty: the first that serves
    row_count: int = ROW_COUNTS[0]  # rows shown at once
    figure: MetricName | Literal[""] = ""  # of the charts of kernels; empty: the first that is known
    heat_x: str = ""  # axis of the heatmap; empty: the page chooses
    heat_y: str = ""
    configuration: str = ""  # chosen row, "run_id.configuration_index"; empty: none
    listing: str = ""  # artifact of its compiler that is shown; empty: the first
    form: StartTab = "sweep"  # of the page that starts runs
    layer: str = ""  # path of the layer that is looked into; empty: all of the model
    layer_name: str = ""  # part of a layer's name, or all of it in quotes, of tables of layers; empty: all
    layer_color: LayerColor = "efficiency"  # what the boxes of layers are coloured by
    variant: str = ""  # of a model; empty: the first
    window: str = ""  # of the timeline, "start..end" in nanoseconds; empty: all of it
    stretch: str = ""  # marked on it, written the same way
    event: str = ""  # chosen on it, e.g. "kernels.17"
    search: str = ""  # part of names on it
    calls: CallRows = "shown"  # its rows of API calls
    folded: str = ""  # its groups of rows that somebody folded or opened, separated by commas

    @property
    def run(self) -> str | None:
        return self.runs[0] if self.runs else None

    def with_run_toggled(self, run_id: str) -> ViewState:
        """Adds the run to those overlaid, or takes it away. The newest addition is kept when there are too many."""
        kept = tuple(other for other in self.runs if other != run_id)
        return replace(self, runs=kept if run_id in self.runs else (*kept[-(MAX_RUNS - 1) :], run_id))

    def changed(self, name: str, value: str) -> ViewState:
        """With one field set from text, as widgets and links send it; unknown names and values change nothing.

        A filter or a sort order starts again at the first row; other series than before are all shown.
        """
        if name not in _FIELD_NAMES:
            return self
        changed = from_query({**_as_lists(to_query(self)), name: [value]}, self.theme)
        if name in ("color_by", "layer_color", "runs"):
            changed = replace(changed, hidden=())
        return changed if name in _WITHOUT_ROWS else replace(changed, row=0)

    def with_series_toggled(self, key: str) -> ViewState:
        """Hides the series of charts, or shows it again."""
        kept = tuple(other for other in self.hidden if other != key)
        return replace(self, hidden=kept if key in self.hidden else (*kept, key))


KEPT_BETWEEN_PAGES: Final = ("runs", "theme", "kernel", "category", "dtype", "model", "batch_size", "device", "efficiency")
"""Runs and filters: what is chosen on one page holds on the others."""

_WITHOUT_ROWS: Final = (
    *("row", "theme", "columns", "hidden", "point", "figure", "heat_x", "heat_y", "configuration", "listing"),
    *("layer", "layer_color", "variant"),
)
"""What changes without the table's rows becoming others."""

_FIELD_NAMES: Final = frozenset(field.name for field in fields(ViewState))
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "theme": get_args(ThemeName),
    "color_by": get_args(ColorBy),
    "ceilings": get_args(CeilingChoice),
    "points": get_args(PointsOf),
    "sizes": get_args(PointSize),
    "level": get_args(LevelChoice),
    "table": get_args(TableName),
    "metric": get_args(HistoryMetric),
    "across": get_args(Across),
    "figure": get_args(MetricName),
    "form": get_args(StartTab),
    "layer_color": get_args(LayerColor),
    "calls": get_args(CallRows),
}


def from_query(arguments: Mapping[str, Iterable[str]], theme: ThemeName = "light") -> ViewState:
    """The view that query parameters name. What cannot be read takes its default: an old link still opens a page.

    Args:
        arguments: values by name, as parse_qs gives them.
        theme: where the query names none.
    """
    values: dict[str, Any] = {"theme": theme}
    for name, given in arguments.items():
        last = next(reversed(tuple(given)), "")[: MAX_LENGTH * MAX_RUNS]
        if name in _CHOICES:
            if last in _CHOICES[name]:
                values[name] = last
        elif name == "runs":
            values[name] = tuple(dict.fromkeys(unquote(part) for part in last.split(",") if part))[:MAX_RUNS]
        elif name in ("columns", "hidden"):
            values[name] = tuple(dict.fromkeys(unquote(part) for part in last.split(",") if part))
        elif name == "row":
            values[name] = int(last) if last.isdecimal() and len(last) < 12 else 0
        elif name == "row_count":
            values[name] = next((count for count in ROW_COUNTS if str(count) == last), ROW_COUNTS[0])
        elif name == "descending":
            values[name] = last == "1"
        elif name == "layer":
            values[name] = last  # as deep as layers go
        elif name in _FIELD_NAMES:
            values[name] = last[:MAX_LENGTH]
    return ViewState(**values)


def to_query(state: ViewState) -> str:
    """The query string that gives the view back; fields at their default are left out, the theme excepted."""
    default = ViewState()
    pairs: list[tuple[str, str]] = []
    for field in fields(state):
        value = getattr(state, field.name)
        if value == getattr(default, field.name) and field.name != "theme":
            continue
        pairs.append((field.name, _text(value)))
    return urlencode(pairs, safe=",")


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(part.replace("%", "%25").replace(",", "%2C") for part in value)
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def _as_lists(query: str) -> dict[str, list[str]]:
    return parse_qs(query, keep_blank_values=True)
