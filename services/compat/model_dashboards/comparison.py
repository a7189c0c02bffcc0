"""The comparison dashboard: two implementations of models side by side, AS-IS and TO-BE, from comparison_data.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from services.compat.model_dashboards.dashboard import Dashboard, Entries
from services.compat.model_dashboards.profile_document import Document, disturbance_in, sides_of
from services.core.disturbance import DISTURBED_SYMBOL
from services.core.errors import InvalidRequestError
from services.core.quantities import change
from services.ui import theme
from services.ui.charts.models import Bar, bar_chart
from services.ui.report.document import Chart, FigureTable, Key
from services.ui.theme import LIGHT

MAX_LAYER_COUNT: Final = 10
"""Bars of one chart; on a narrow screen more of them have no room for their names."""


class ComparisonDashboard(Dashboard):
    """Two implementations of models, and the page that shows them. data: as comparison_data.json has it."""

    title = "AS-IS and TO-BE"
    data_file = "comparison_data.json"
    dashboard_file = "comparison_dashboard.html"
    entries_member = "comparisons"
    lacking = ("models that were compared", "Call load_data.")

    def summary_lines(self) -> list[str]:
        """A sentence for each model."""
        entries = self._entries
        return [
            f"{name}: {to_be} has ×{_speedup(entries[name], before, after):.3g} the speed of {as_is}"
            + (f" {basis}" if isinstance(basis := entries[name].get("speedup_basis"), str) else "")
            + (f", {str(entries[name]['verdict']).lower()}: {entries[name]['reason']}" if entries[name].get("verdict") else "")
            for name, (as_is, before, to_be, after) in _paired(entries).items()
        ]

    def _table(self, entries: Entries) -> FigureTable:
        return _table(entries)

    def _charts(self, entries: Entries) -> Sequence[Chart]:
        return _charts(entries)

    def _disturbances(self, entries: Entries) -> Sequence[str | None]:
        return [disturbance_in(side) for entry in entries.values() for side in sides_of(entry).values()]


def _pair(entry: Document) -> tuple[str, Document, str, Document]:
    """The first two sides: name and times of what is compared with, then of what is judged."""
    (as_is, before), (to_be, after) = list(sides_of(entry).items())[:2]
    return as_is, before, to_be, after


def _paired(entries: Entries) -> dict[str, tuple[str, Document, str, Document]]:
    found = {name: _pair(entry) for name, entry in entries.items() if len(sides_of(entry)) > 1}
    if not found:
        raise InvalidRequestError(
            "comparison", found="one implementation of each model", expected="two", remedy="Measure both, for example with --benchmark."
        )
    return found


def _table(entries: Entries) -> FigureTable:
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


def _charts(entries: Entries) -> Sequence[Chart]:
    pairs = _paired(entries)
    names = list(pairs)
    sides = {pair[0]: None for pair in pairs.values()}, {pair[2]: None for pair in pairs.values()}
    key = [Key(" / ".join(side), LIGHT.series[place]) for place, side in enumerate(sides)]
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
    """As measured in pairs, where it was; else of the means."""
    stated = entry.get("speedup")
    return float(stated) if isinstance(stated, int | float) else _ratio_of_means(before, after)


def _ratio_of_means(before: Document, after: Document) -> float:
    return float(before["mean_ms"] / after["mean_ms"])


def _stated_speedup(entry: Document) -> str:
    """With what it is the ratio of, as far as the file says that."""
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
    mark = f" {DISTURBED_SYMBOL}" if disturbance_in(side) else ""
    return (mean if deviation is None else f"{mean} ± {theme.duration(deviation * 1e6)}") + mark
