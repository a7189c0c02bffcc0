"""The performance dashboard: latency, throughput, percentiles, architecture and efficiency of models, from profiling_data.json."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from services.compat.model_dashboards.dashboard import Dashboard, Entries
from services.compat.model_dashboards.profile_document import BYTES_PER_GB, BYTES_PER_MB, Document, disturbance_in
from services.core.disturbance import DISTURBED_SYMBOL
from services.ui import theme
from services.ui.charts.models import Bar, Line, Point, Share, bar_chart, layer_map, line_chart, scatter_chart
from services.ui.report.document import Chart, FigureTable, Key
from services.ui.theme import LIGHT, MARKERS, SYMBOLS

PERCENTILES: Final = ("min", "median", "p95", "p99", "max")
SHAPE: Final = {"Layers": "n_layer", "Width": "n_embd", "Heads": "n_head"}
BLOCK_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")


class PerformanceDashboard(Dashboard):
    """Figures of models, and the page that shows them. data: as profiling_data.json has it."""

    title = "Performance of models"
    data_file = "profiling_data.json"
    dashboard_file = "performance_dashboard.html"
    entries_member = "benchmarks"
    lacking = ("models that were timed", "Call load_data or run_profiling.")

    def _table(self, entries: Entries) -> FigureTable:
        return _table(entries)

    def _charts(self, entries: Entries) -> Sequence[Chart]:
        return _charts(entries)


def _table(entries: Entries) -> FigureTable:
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
                f"{_ms(timing['mean'])} ± {_ms(timing.get('std'))}" + (f" {DISTURBED_SYMBOL}" if disturbance_in(entry) else ""),
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


def _charts(entries: Entries) -> Sequence[Chart]:
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
    """Bytes of a pass over its mean time, as the latency beside it; none where no bytes are known."""
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
    """In bytes a second."""
    moved_bytes = entry.get("bytes")
    return None if moved_bytes is None else float(moved_bytes) / entry["timing"]["mean"] * 1e3


def _throughput(entry: Document) -> float | None:
    """What the mean comes to: all of the page is by it. Where batch or sequence are not known, as the file states it."""
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
    """Kinds of layers, those of all blocks together: efficiency is time at the roof over time taken."""
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
