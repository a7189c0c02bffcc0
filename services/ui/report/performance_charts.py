"""Heatmap and split charts of a run: where in the sweep it is fast, and how its kernels stand beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import holoviews as hv
import polars as pl

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.ui.charts import heatmap, split
from kernalyse.services.ui.charts.elements import tick_formatter
from kernalyse.services.ui.charts.metrics import METRICS, Metric, MetricName
from kernalyse.services.ui.charts.names import elided
from kernalyse.services.ui.charts.performance_rows import ANNOUNCED, FAILED, LAUNCHED, PLACED, axis_values, performance_rows
from kernalyse.services.ui.report.document import Chart, Key
from kernalyse.services.ui.theme import LIGHT, style_of, values_with

SWEEP_TABLES: Final = {"configurations": ANNOUNCED, "roofline": PLACED, "failures": FAILED, "kernels": LAUNCHED}
PREFERRED: Final[tuple[MetricName, ...]] = ("flop_rate", "byte_rate", "duration")
ROW_PX: Final = 30
HEATMAP_AXIS_PX: Final = 170


def performance_charts(tables: Mapping[str, pl.DataFrame]) -> Iterator[Chart]:
    """tables: by their names; none of them may be missing, all may be empty."""
    if not all(name in tables for name in SWEEP_TABLES):
        return
    announced, placed, failed, kernels = (tables[name].select(columns) for name, columns in SWEEP_TABLES.items())
    rows = performance_rows(announced, placed, failed, kernels.filter(pl.col("launch_count") > 0))
    if rows.is_empty():
        return
    # The median times of a trace's kernels say little of each other.
    metric = next((METRICS[name] for name in PREFERRED if _knows(rows, METRICS[name]) and (name != "duration" or announced.height)), None)
    if metric is None:
        return
    if announced.height:
        yield from _heatmap(rows, metric)
    yield from _split(rows, metric)


def _knows(rows: pl.DataFrame, metric: Metric) -> bool:
    return bool(rows[metric.column].cast(pl.Float64).is_finite().any())


def _heatmap(rows: pl.DataFrame, metric: Metric) -> Iterator[Chart]:
    values = axis_values(rows)
    axes = heatmap.chosen_axes(values, "", "")
    if axes is None:
        return
    made = heatmap.heatmap(rows, values, axes, metric)
    if made.scale is None:
        return
    element = heatmap.heatmap_chart(made.cells, made.gaps, made.marks, LIGHT, HEATMAP_AXIS_PX + ROW_PX * max(3, len(made.y.places)))
    cells = next(iter(element))
    bar = hv.Store.lookup_options("bokeh", cells, "plot").kwargs["colorbar_opts"]
    cells.opts(clabel=metric.title, colorbar_opts={**bar, "title": metric.title, "major_label_overrides": made.scale.labels(metric)})
    element = element.opts(
        hv.opts.Overlay(
            xlim=(-0.5, len(made.x.places) - 0.5),
            ylim=(-0.5, len(made.y.places) - 0.5),
            xticks=[(place, elided(label, 24)) for place, label in enumerate(made.x.labels)],
            yticks=[(place, elided(label, 24)) for place, label in enumerate(made.y.labels)],
            xlabel=made.x.name,
            ylabel=made.y.name,
        )
    )
    notes = [f"{metric.title} of the best configuration at each place; {heatmap.BEST_MARK} is the best of all."]
    if made.scale.is_logarithmic:
        notes.append("Colours are logarithmic.")
    texts = set(made.marks["text"].tolist())
    notes += [f"{mark} {meaning}." for mark, meaning in heatmap.MARK_MEANINGS.items() if mark in texts]
    notes.append(_disturbances(rows))
    yield Chart(f"Heatmap of {metric.title.lower()}", element, "wide", " ".join(note for note in notes if note))


def _disturbances(rows: pl.DataFrame) -> str:
    return disturbance_note(rows.filter("is_measured")["disturbance"])


def _split(rows: pl.DataFrame, metric: Metric) -> Iterator[Chart]:
    made = split.split_bars(rows, metric, LIGHT)
    if not made.names:
        return
    present = split.categories_of(rows)
    key = [Key(category, style_of(category, values_with(present), LIGHT).color) for category in present]
    what = "Configurations of one kernel" if made.is_of_configurations else "The best configuration of each kernel"
    left_out = f" Logarithmic. {split.left_out_text(made)}" if made.left_out else " Logarithmic."
    disturbed = _disturbances(rows)
    left_out += f" {disturbed}" if disturbed else ""
    if len(made.intensities["top"]):
        element = _named(split.intensity_chart(made.intensities, LIGHT), made, made.intensities["top"])
        yield Chart("Arithmetic intensity", element, "half", f"{what}.{left_out}", key)
    element = split.performance_chart(made.performances, made.roofs, LIGHT)
    element = _named(element, made, [*made.performances["top"], *made.roofs["y0"]]).opts(
        hv.opts.Overlay(ylabel=metric.axis_label, yformatter=tick_formatter(metric.ticks))
    )
    yield Chart(metric.title, element, "half", f"{what}; ▬ is what the device could reach.{left_out}", key)


def _named(element: hv.Overlay, made: split.SplitBars, heights: Iterable[float]) -> hv.Overlay:
    count = len(made.names)
    return element.opts(hv.opts.Overlay(xticks=[*made.names.items()], xlim=(-0.5, count - 0.5), ylim=split.height_range(heights)))
