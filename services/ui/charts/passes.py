"""Whole passes of models, of one or several runs: rows of table models as bars, lines and points of charts/models.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.models import Bar, Line, Point

COLUMNS: Final = (
    *("run_id", "model_name", "variant", "batch_size", "sequence_length", "layer_count", "head_count", "width", "sample_count"),
    *("duration_mean_ns", "duration_standard_deviation_ns", "duration_min_ns", "duration_median_ns"),
    *("duration_p95_ns", "duration_p99_ns", "duration_max_ns", "tokens_per_s", "memory_bytes", "disturbance"),
)
"""Of table models."""

PERCENTILES: Final[dict[str, str]] = {
    "min": "duration_min_ns",
    "median": "duration_median_ns",
    "p95": "duration_p95_ns",
    "p99": "duration_p99_ns",
    "max": "duration_max_ns",
}
MAX_PASSES: Final = 24
"""Names of more would not be readable under their bars."""

Value = Callable[[Mapping[str, Any]], Bar | None]
Sides = list[list[Bar | None]]


@dataclass(frozen=True, slots=True)
class Passes:
    """names: of models with variant and, where it tells them apart, size. rows: by name and run. run_ids: in order."""

    names: tuple[str, ...]
    run_ids: tuple[str, ...]
    rows: Mapping[tuple[str, str], Mapping[str, Any]]
    titles: Mapping[str, str]

    def without_runs(self, run_ids: Collection[str]) -> Passes:
        """The places of theirs stay empty: the others keep colours and places."""
        return replace(self, rows={key: row for key, row in self.rows.items() if key[1] not in run_ids}) if run_ids else self

    def sides(self, bar_of: Value) -> Sides:
        """Bars of each run, one for each name."""
        return [[None if (row := self.rows.get((name, run_id))) is None else bar_of(row) for name in self.names] for run_id in self.run_ids]

    def latency(self) -> Sides:
        """Mean with its standard deviation, ns."""
        return self.sides(lambda row: _latency(self.title(row), row))

    def figures(self, column: str, show: Callable[[float | None], str]) -> Sides:
        """A figure of each pass."""
        return self.sides(lambda row: _bar(self.title(row), row[column], show))

    def is_known(self, *columns: str) -> bool:
        """Whether some pass has a value in one of them."""
        return any(row[column] is not None for row in self.rows.values() for column in columns)

    def percentiles(self) -> list[Line]:
        """From the shortest pass to the longest, ns."""
        return [Line(self.title(row), [row[column] for column in PERCENTILES.values()]) for row in self.rows.values()]

    def throughput_of_layers(self) -> list[Point]:
        """Width of the embedding, and tokens a second over the count of layers: what one layer of this width costs."""
        return [
            Point(self.title(row), float(row["width"]), row["tokens_per_s"] / row["layer_count"], place)
            for place, row in enumerate(self.rows.values())
            if row["width"] and row["layer_count"] and row["tokens_per_s"]
        ]

    def title(self, row: Mapping[str, Any]) -> str:
        return row["name"] if len(self.run_ids) == 1 else f"{row['name']} ({theme.short_run_id(row['run_id'])})"


def passes_of(rows: pl.DataFrame, titles: Mapping[str, str]) -> Passes:
    """Input: rows of table models with COLUMNS. titles: of runs by run_id; those of one name are told apart by their number."""
    sizes = {(row["batch_size"], row["sequence_length"]) for row in rows.select("batch_size", "sequence_length").to_dicts()}
    run_ids = tuple(run_id for run_id in titles if run_id in set(rows["run_id"].to_list()))
    named: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows.filter(pl.col("run_id").is_in(run_ids)).to_dicts(), key=lambda row: run_ids.index(row["run_id"])):
        name = _name(row, with_size=len(sizes) > 1)
        named.setdefault((name, row["run_id"]), {**row, "name": name})
    names = tuple(dict.fromkeys(name for name, _ in named))[:MAX_PASSES]
    short = {run_id: f"{titles[run_id][:40]} ({theme.short_run_id(run_id)})" for run_id in run_ids}
    return Passes(names, run_ids, {key: row for key, row in named.items() if key[0] in names}, short)


def _name(row: Mapping[str, Any], *, with_size: bool) -> str:
    size = f"{row['batch_size'] or '?'} × {row['sequence_length'] or '?'}" if with_size else ""
    return " ".join(part for part in (row["model_name"] or "model", row["variant"], size) if part)


def _latency(title: str, row: Mapping[str, Any]) -> Bar | None:
    mean, deviation = row["duration_mean_ns"], row["duration_standard_deviation_ns"]
    if mean is None:
        return None
    passes = f"{theme.count(row['sample_count'])} passes"
    if deviation is None:
        return Bar(mean, text=f"{title}: {theme.duration(mean)} so far, {passes}")
    return Bar(
        mean, max(0.0, mean - deviation), mean + deviation, f"{title}: {theme.duration(mean)} ± {theme.duration(deviation)}, {passes}"
    )


def _bar(title: str, value: float | None, show: Callable[[float | None], str]) -> Bar | None:
    return None if value is None else Bar(float(value), text=f"{title}: {show(value)}")
