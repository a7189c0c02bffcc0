"""The performance dashboard and the comparison dashboard of ML models, from documents with their times."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from kernalyse.services.compat.model_dashboards.document import (
    BYTES_PER_GB,
    BYTES_PER_MB,
    Document,
    list_implementations,
    read_document,
    stated_disturbance,
    write_document,
)
from kernalyse.services.core.disturbance import DISTURBED_SYMBOL, disturbance_note
from kernalyse.services.core.errors import InvalidRequestError, InvalidTraceError
from kernalyse.services.core.formatting import change
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.models import Bar, Line, Point, Share, bar_chart, layer_map, line_chart, scatter_chart
from kernalyse.services.ui.report.document import Chart, FigureTable, Key, write_page
from kernalyse.services.ui.report.document import Document as Page
from kernalyse.services.ui.theme import LIGHT, MARKERS, SYMBOLS

# ---------------------------------------------------------------- dashboard

OUTPUT_DIRECTORY: Final = "profiling_results"

Entries = Mapping[str, Document]


class Dashboard:
    """The base of both dashboards: it reads and writes a document, and writes its page.

    data: the document; empty until something is loaded or measured.
    """

    title: ClassVar[str]
    data_file: ClassVar[str]
    dashboard_file: ClassVar[str]
    entries_member: ClassVar[str]  # of the document
    lacking: ClassVar[tuple[str, str]]  # for the error without data: expected, and remedy

    def __init__(self, output_dir: str | Path = OUTPUT_DIRECTORY) -> None:
        self.output_dir = Path(output_dir)
        self.data: Document = {}
        self.kept_file: Path | None = None

    def load_data(self, path: str | Path) -> Document:
        """Read a document.

        Raises:
            InvalidTraceError: the file cannot be read, or has another layout.
        """
        self.data = read_document(Path(path), self.entries_member)
        return self.data

    def save_data(self, path: str | Path | None = None) -> Path:
        """Write the data and return the path. An existing file with further models is renamed first, to `kept_file`."""
        self._require_data()
        found = Path(path) if path is not None else self.output_dir / self.data_file
        self.kept_file = self._keep_other_models(found)
        write_document(self.data, found)
        return found

    def generate_dashboard(self, path: str | Path | None = None) -> Path:
        """Write the page as one file that needs no server, and return its path."""
        self._require_data()
        found = Path(path) if path is not None else self.output_dir / self.dashboard_file
        facts = system_facts(self.data.get("metadata") or {})
        table, charts = self._table(self._entries), self._charts(self._entries)
        disturbed = disturbance_note(self._disturbances(self._entries))
        if disturbed:
            facts.append(("Disturbed", disturbed))
            table = replace(table, note=f"{table.note} {disturbed}")
            charts = [replace(chart, note=f"{chart.note} {disturbed}".lstrip()) for chart in charts]
        write_page(found, Page(self.title, facts, list(charts), [table]))
        return found

    def _keep_other_models(self, path: Path) -> Path | None:
        """Rename an existing file that has models which the new data lacks; None: there is no such file."""
        try:
            before = read_document(path, self.entries_member)[self.entries_member]
        except InvalidTraceError:
            return None
        if set(before) <= set(self._entries):
            return None
        written = time.strftime("%Y%m%d-%H%M%S", time.localtime(path.stat().st_mtime))
        renamed = path.with_name(f"{path.stem}-{written}{path.suffix}")
        path.replace(renamed)
        return renamed

    @property
    def _entries(self) -> Entries:
        entries: Entries = self.data[self.entries_member]
        return entries

    def _table(self, entries: Entries) -> FigureTable:
        raise NotImplementedError

    def _charts(self, entries: Entries) -> Sequence[Chart]:
        raise NotImplementedError

    def _disturbances(self, entries: Entries) -> Sequence[str | None]:
        """Return the disturbance of every measurement that the page shows."""
        return [stated_disturbance(entry) for entry in entries.values()]

    def _require_data(self) -> None:
        if not self.data:
            expected, remedy = self.lacking
            raise InvalidRequestError("dashboard", found="no data", expected=expected, remedy=remedy)


# ---------------------------------------------------------------- comparison
# Two implementations of ML models side by side, AS-IS and TO-BE, from comparison_data.json.

MAX_LAYER_COUNT: Final = 10
"""Most bars of one chart; on a narrow screen, the names of more would not fit."""


class ComparisonDashboard(Dashboard):
    """Two implementations of ML models, and the page that shows them. data: the content of comparison_data.json."""

    title = "AS-IS and TO-BE"
    data_file = "comparison_data.json"
    dashboard_file = "comparison_dashboard.html"
    entries_member = "comparisons"
    lacking = ("models that were compared", "Call load_data.")

    def summary_lines(self) -> list[str]:
        """Return a sentence for each model."""
        entries = self._entries
        return [
            f"{name}: {to_be} has ×{_speedup(entries[name], before, after):.3g} the speed of {as_is}"
            + (f" {basis}" if isinstance(basis := entries[name].get("speedup_basis"), str) else "")
            + (f", {str(entries[name]['verdict']).lower()}: {entries[name]['reason']}" if entries[name].get("verdict") else "")
            for name, (as_is, before, to_be, after) in _paired(entries).items()
        ]

    def _table(self, entries: Entries) -> FigureTable:
        return _comparison_table(entries)

    def _charts(self, entries: Entries) -> Sequence[Chart]:
        return _comparison_charts(entries)

    def _disturbances(self, entries: Entries) -> Sequence[str | None]:
        return [stated_disturbance(implementation) for entry in entries.values() for implementation in list_implementations(entry).values()]


def _pair(entry: Document) -> tuple[str, Document, str, Document]:
    """Return the first two implementations: name and times of the baseline, then of the candidate."""
    (as_is, before), (to_be, after) = list(list_implementations(entry).items())[:2]
    return as_is, before, to_be, after


def _paired(entries: Entries) -> dict[str, tuple[str, Document, str, Document]]:
    found = {name: _pair(entry) for name, entry in entries.items() if len(list_implementations(entry)) > 1}
    if not found:
        raise InvalidRequestError(
            "comparison", found="one implementation of each model", expected="two", remedy="Measure both, for example with --benchmark."
        )
    return found


def _comparison_table(entries: Entries) -> FigureTable:
    headings = ("model", "AS-IS", "AS-IS mean", "TO-BE", "TO-BE mean", "ratio of means", "speed-up", "interval", "verdict", "why")
    rows = []
    for name, (as_is, before, to_be, after) in _paired(entries).items():
        entry = entries[name]
        low, high = entry.get("speedup_low"), entry.get("speedup_high")
        verdict = entry.get("verdict")
        rows.append(
            (
                name,
                as_is,
                _time(before),
                to_be,
                _time(after),
                f"×{_ratio_of_means(before, after):.3g}",
                _stated_speedup(entry),
                theme.UNKNOWN if low is None or high is None else f"×{low:.3g} to ×{high:.3g}",
                str(verdict).lower() if verdict else theme.UNKNOWN,
                entry.get("reason") or "The file states no interval, and without one there is no verdict.",
            )
        )
    note = "Means with their standard deviations. Ratios are AS-IS over TO-BE; interval and verdict are of the speed-up."
    return FigureTable("Verdict", headings, ("AS-IS mean", "TO-BE mean", "ratio of means", "speed-up", "interval"), rows, note)


def _comparison_charts(entries: Entries) -> Sequence[Chart]:
    pairs = _paired(entries)
    names = list(pairs)
    implementation_names = {pair[0]: None for pair in pairs.values()}, {pair[2]: None for pair in pairs.values()}
    key = [Key(" / ".join(group), LIGHT.series[index]) for index, group in enumerate(implementation_names)]
    befores = [_bar(name, as_is, before) for name, (as_is, before, _, _) in pairs.items()]
    afters = [_bar(name, to_be, after) for name, (_, _, to_be, after) in pairs.items()]
    speedups = [_speedup_bar(name, entries[name], before, after) for name, (_, before, _, after) in pairs.items()]
    charts = [
        Chart(
            "Latency side by side",
            bar_chart(names, [befores, afters], "mean", LIGHT, ticks=theme.MILLISECOND_TICKS),
            key=key,
            note="Mean of the passes; whiskers of one standard deviation, where it is known.",
        ),
        Chart(
            "Speed-up",
            bar_chart(names, [speedups], "AS-IS ÷ TO-BE", LIGHT, ticks=theme.RATIO_TICKS, base=1.0),
            note=f"Above 1 TO-BE is faster; whiskers are the interval of the ratio. {_speedup_note(entries)}",
        ),
    ]
    for name in names:
        layers = sorted(entries[name].get("layers") or (), key=_longest, reverse=True)[:MAX_LAYER_COUNT]
        if layers:
            kinds = [layer["layer"] for layer in layers]
            bars = [[_layer_bar(layer, member) for layer in layers] for member in ("as_is_ms", "to_be_ms")]
            title = f"Layers of {name}"
            charts.append(
                Chart(
                    title, bar_chart(kinds, bars, "time of a pass", LIGHT, 340, theme.MILLISECOND_TICKS), "wide", _layer_note(layers), key
                )
            )
    return charts


def _bar(name: str, side_name: str, side: Document) -> Bar:
    mean, deviation = side["mean_ms"], side.get("std_ms")
    text = f"{name}, {side_name}: {_time(side)}"
    return Bar(mean, text=text) if deviation is None else Bar(mean, mean - deviation, mean + deviation, text)


def _speedup_bar(name: str, entry: Document, before: Document, after: Document) -> Bar:
    ratio = _speedup(entry, before, after)
    return Bar(ratio, entry.get("speedup_low"), entry.get("speedup_high"), f"{name}: ×{ratio:.3g}")


def _speedup(entry: Document, before: Document, after: Document) -> float:
    """Return the speedup from paired measurements where there are some, else from the means."""
    stated = entry.get("speedup")
    return float(stated) if isinstance(stated, int | float) else _ratio_of_means(before, after)


def _ratio_of_means(before: Document, after: Document) -> float:
    return float(before["mean_ms"] / after["mean_ms"])


def _stated_speedup(entry: Document) -> str:
    """Return the speedup with its basis, as far as the file states it."""
    stated, basis = entry.get("speedup"), entry.get("speedup_basis")
    return f"×{stated:.3g} {basis if isinstance(basis, str) else 'as stated'}" if isinstance(stated, int | float) else theme.UNKNOWN


def _speedup_note(entries: Entries) -> str:
    bases = dict.fromkeys(
        str(entry.get("speedup_basis") or ("as stated" if entry.get("speedup") else "of means")) for entry in entries.values()
    )
    return f"Ratio {', '.join(bases)}."


def _longest(layer: Document) -> float:
    return max(layer.get("as_is_ms") or 0.0, layer.get("to_be_ms") or 0.0)


def _layer_bar(layer: Document, member: str) -> Bar | None:
    value = layer.get(member)
    return None if value is None else Bar(value, text=f"{layer['layer']}: {theme.duration(value * 1e6)}")


def _layer_note(layers: Sequence[Document]) -> str:
    matched = [layer for layer in layers if layer.get("as_is_ms") and layer.get("to_be_ms")]
    if not matched:
        return ""
    most = max(matched, key=lambda layer: abs(layer["as_is_ms"] - layer["to_be_ms"]))
    changed = change(most["to_be_ms"] / most["as_is_ms"])
    return f"Changed most: {most['layer']}, {changed} of time. Those that take longest; layers of all blocks together."


def _time(side: Mapping[str, Any]) -> str:
    deviation = side.get("std_ms")
    mean = theme.duration(side["mean_ms"] * 1e6)
    mark = f" {DISTURBED_SYMBOL}" if stated_disturbance(side) else ""
    return (mean if deviation is None else f"{mean} ± {theme.duration(deviation * 1e6)}") + mark


# ---------------------------------------------------------------- performance
# Latency, throughput, percentiles, architecture and efficiency of ML models, from profiling_data.json.

PERCENTILES: Final = ("min", "median", "p95", "p99", "max")
SHAPE: Final = {"Layers": "n_layer", "Width": "n_embd", "Heads": "n_head"}
BLOCK_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")


class PerformanceDashboard(Dashboard):
    """Metrics of ML models, and the page that shows them. data: the content of profiling_data.json."""

    title = "Performance of models"
    data_file = "profiling_data.json"
    dashboard_file = "performance_dashboard.html"
    entries_member = "benchmarks"
    lacking = ("models that were timed", "Call load_data or run_profiling.")

    def _table(self, entries: Entries) -> FigureTable:
        return _performance_table(entries)

    def _charts(self, entries: Entries) -> Sequence[Chart]:
        return _performance_charts(entries)


def _performance_table(entries: Entries) -> FigureTable:
    throughput = "tokens/s of mean" if all(_tokens_of_mean(entry) is not None for entry in entries.values()) else "tokens/s"
    headings = ("model", "mean ± sd", "median", "p95", "p99", throughput, "config", "peak memory")
    rows = []
    for name, entry in entries.items():
        timing, memory_mb = entry["timing"], entry.get("peak_memory_mb")
        config = entry.get("config") or {}
        shape = ", ".join(f"{config[key]}{letter}" for key, letter in (("n_layer", "L"), ("n_head", "H"), ("n_embd", "D")) if key in config)
        rows.append(
            (
                name,
                f"{_ms(timing['mean'])} ± {_ms(timing.get('std'))}" + (f" {DISTURBED_SYMBOL}" if stated_disturbance(entry) else ""),
                *(_ms(timing.get(statistic)) for statistic in ("median", "p95", "p99")),
                theme.si(_throughput(entry), "").strip(),
                shape or theme.UNKNOWN,
                theme.memory(None if memory_mb is None else memory_mb * BYTES_PER_MB),
            )
        )
    return FigureTable("Summary", headings, ("mean ± sd", "median", "p95", "p99", throughput, "peak memory"), rows, _fastest(entries))


def _fastest(entries: Entries) -> str:
    name = min(entries, key=lambda model: entries[model]["timing"]["mean"])
    entry = entries[name]
    rate = theme.si(_throughput(entry), "tokens/s")
    return f"Fastest: {name}, {_ms(entry['timing']['mean'])} a pass by the mean, {rate}."


def _performance_charts(entries: Entries) -> Sequence[Chart]:
    names = list(entries)
    colors = [
        Key(name, LIGHT.series[index % len(LIGHT.series)], SYMBOLS[MARKERS[index % len(MARKERS)]]) for index, name in enumerate(names)
    ]
    charts = [
        Chart(
            "Latency of a pass",
            bar_chart(names, [[_latency(name, entries[name]) for name in names]], "mean", LIGHT, ticks=theme.MILLISECOND_TICKS),
            note="Mean of the passes; whiskers of one standard deviation.",
        ),
        Chart("Throughput", bar_chart(names, [[_rate_bar(name, entries[name]) for name in names]], "tokens/s of the mean", LIGHT)),
        Chart(
            "Percentiles of latency",
            line_chart(
                PERCENTILES,
                [Line(name, [entries[name]["timing"].get(statistic) for statistic in PERCENTILES]) for name in names],
                "latency",
                LIGHT,
            ),
            key=colors,
        ),
        Chart(
            "Throughput for each layer",
            scatter_chart(_throughput_points(entries), ("width of the embedding", "tokens/s ÷ layers"), LIGHT),
            note="Tokens a second over the count of layers: what one layer of this width costs.",
        ),
        *_bandwidth(entries),
        *(
            Chart(f"Architecture: {title.lower()}", bar_chart(names, [_shape_bars(entries, member)], title.lower(), LIGHT, 240), "third")
            for title, member in SHAPE.items()
            if any(member in (entry.get("config") or {}) for entry in entries.values())
        ),
    ]
    cells = [cell for name, entry in entries.items() for cell in _layer_cells(name, entry)]
    if any(cell.efficiency_ratio is not None for cell in cells):
        note = "Percent of what the device's roofline allows, launches of all blocks together. Kinds of layers in the order of a pass."
        charts.append(Chart("Efficiency of each kind of layer", layer_map(cells, LIGHT), "wide", note))
    return charts


def _latency(name: str, entry: Document) -> Bar:
    mean, deviation = entry["timing"]["mean"], entry["timing"].get("std")
    text = f"{name}: {_ms(mean)} ± {_ms(deviation)}"
    return Bar(mean, text=text) if deviation is None else Bar(mean, mean - deviation, mean + deviation, text)


def _rate_bar(name: str, entry: Document) -> Bar | None:
    rate = _throughput(entry)
    return None if rate is None else Bar(rate, text=f"{name}: {theme.si(rate, 'tokens/s')}")


def _bandwidth(entries: Entries) -> list[Chart]:
    """Return a chart of the bytes of a pass over its mean time, the latency of the neighbouring chart; none if no bytes are known."""
    rates = {name: _byte_rate(entry) for name, entry in entries.items()}
    if all(rate is None for rate in rates.values()):
        return []
    bars, shares = [], []
    for name, rate in rates.items():
        ceiling_gb_per_s, level = entries[name].get("memory_ceiling_gb_per_s"), entries[name].get("memory_level")
        text = f"{name}: {theme.byte_rate(rate)}"
        if rate is not None and ceiling_gb_per_s:
            share = theme.percent(rate / (ceiling_gb_per_s * BYTES_PER_GB))
            shares.append(f"{name} {share}")
            text += f", {share} of the {theme.byte_rate(ceiling_gb_per_s * BYTES_PER_GB)} that {level or 'memory'} can"
        bars.append(None if rate is None else Bar(rate, text=text))
    note = "Bytes of a pass, each counted once that a launch has to move, over the mean."
    if shares:
        note += f" Of what memory can: {', '.join(shares)}."
    return [Chart("Memory bandwidth in use", bar_chart(list(entries), [bars], "bytes ÷ mean, B/s", LIGHT), "wide", note)]


def _byte_rate(entry: Document) -> float | None:
    """Return the rate in bytes per second."""
    moved_bytes = entry.get("bytes")
    return None if moved_bytes is None else float(moved_bytes) / entry["timing"]["mean"] * 1e3


def _throughput(entry: Document) -> float | None:
    """Return the throughput at the mean, on which the entire page is based; without batch or sequence, the one that the file states."""
    of_mean, stated = _tokens_of_mean(entry), entry.get("throughput_tokens_per_sec")
    return of_mean if of_mean is not None or stated is None else float(stated)


def _tokens_of_mean(entry: Document) -> float | None:
    batch_size, sequence_length = entry.get("batch_size"), entry.get("seq_len")
    return None if batch_size is None or sequence_length is None else batch_size * sequence_length / entry["timing"]["mean"] * 1e3


def _throughput_points(entries: Entries) -> list[Point]:
    points = []
    for place, (name, entry) in enumerate(entries.items()):
        config, rate = entry.get("config") or {}, _throughput(entry)
        if rate is not None and config.get("n_layer") and config.get("n_embd"):
            points.append(Point(name, float(config["n_embd"]), rate / config["n_layer"], place))
    return points


def _shape_bars(entries: Entries, member: str) -> list[Bar | None]:
    values = {name: (entry.get("config") or {}).get(member) for name, entry in entries.items()}
    return [None if value is None else Bar(float(value), text=f"{name}: {value}") for name, value in values.items()]


def _layer_cells(model_name: str, entry: Document) -> list[Share]:
    """Return the shares of the kinds of layers, summed over all blocks; efficiency is time at the ceiling over time taken."""
    kinds: dict[str, list[Document]] = {}
    for layer in entry.get("layers") or ():
        kinds.setdefault(BLOCK_NUMBER.sub(".*", layer["layer"]), []).append(layer)
    cells = []
    for kind, layers in kinds.items():
        known = [layer for layer in layers if layer.get("efficiency") is not None and layer["time"] > 0]
        time_ms, known_ms = sum(layer["time"] for layer in layers), sum(layer["time"] for layer in known)
        ratio = sum(layer["efficiency"] * layer["time"] for layer in known) / known_ms if known_ms else None
        share = sum(layer.get("share") or 0.0 for layer in layers)
        text = f"{model_name}, {kind}: {theme.percent(ratio)} of the roof, {_ms(time_ms)}, {theme.percent(share)} of all layers"
        cells.append(Share(model_name, kind, ratio, text))
    return cells


def _ms(value: Any) -> str:
    return theme.UNKNOWN if value is None else theme.duration(float(value) * 1e6)


# ---------------------------------------------------------------- system panel

FACTS: Final = {
    "gpu_name": "Device",
    "compute_capability": "Compute capability",
    "cuda_version": "CUDA",
    "driver_version": "Driver",
    "runtime": "Runtime",
    "backend": "Backend",
    "cpu_model": "Host",
    "batch_size": "Batch size",
    "seq_len": "Sequence length",
    "variant": "Variant",
    "as_is": "AS-IS",
    "to_be": "TO-BE",
    "timestamp": "Measured",
    "not_timed": "Not timed",
    "kernalyse_version": "kernalyse",
    "run_id": "First run",
}
"""Labels of known entries of a document's metadata; others are shown under their own names."""


def system_facts(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and value of each fact about the machine, known names first, without those that have no value."""
    names = [*(name for name in FACTS if name in metadata), *(name for name in metadata if name not in FACTS)]
    return [(FACTS.get(name, name), _text(name, metadata[name])) for name in names if _is_shown(metadata[name])]


def _is_shown(value: object) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _text(name: str, value: object) -> str:
    return str(value).replace("T", " ").split(".")[0] if name == "timestamp" else str(value)
