"""Layers of a run: its tree as an icicle, one for each variant, and its kinds of layers as bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import holoviews as hv
import polars as pl

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.core.ml_models import layers_note
from kernalyse.services.ui.charts import icicle, layers
from kernalyse.services.ui.report.document import Chart, Key
from kernalyse.services.ui.theme import LIGHT, MARKERS, SYMBOLS

ICICLE_PX: Final = 800.0
"""Wide that names are made to fit into: of a printed page, where letters are wider than in a browser."""

LEVEL_PX: Final = 34
TREE_AXIS_PX: Final = 80
MAX_VARIANT_COUNT: Final = 4


def layer_charts(tables: Mapping[str, pl.DataFrame]) -> Iterator[Chart]:
    """tables: by their names, of which layer_tree and layers may be missing."""
    yield from _icicles(tables.get("layer_tree", pl.DataFrame()))
    yield from _kinds(tables.get("layers", pl.DataFrame()))


def _icicles(tree: pl.DataFrame) -> Iterator[Chart]:
    if tree.is_empty():
        return
    variants = tree["variant"].unique(maintain_order=True).to_list()[:MAX_VARIANT_COUNT]
    for variant in variants:
        rows = tree.filter(pl.col("variant").eq_missing(pl.lit(variant)))
        drawn = icicle.icicle(rows, "", "efficiency", LIGHT, ICICLE_PX)
        if drawn.placed.is_empty():
            continue
        element = icicle.icicle_chart(drawn.boxes, drawn.names, LIGHT, TREE_AXIS_PX + LEVEL_PX * drawn.level_count).opts(
            hv.opts.Overlay(xlim=(0, drawn.span_ns), ylim=(-float(drawn.level_count), 0))
        )
        key = [Key(name, color) for name, color in icicle.legend_of(rows, "efficiency", LIGHT)]
        title = "Layers" if variant is None or len(variants) == 1 else f"Layers, {variant}"
        all_ns = rows.filter(pl.col("parent_path").is_null())["duration_sum_ns"].sum()
        notes = (
            "As wide as their time, inside of those around them; colours tell how near to the roof.",
            layers_note(None, all_ns, rows["pass_duration_median_ns"].max()),  # type: ignore[arg-type]
            disturbance_note(rows["disturbance"]),
        )
        yield Chart(title, element, "wide", " ".join(note for note in notes if note), key)


def _kinds(rows: pl.DataFrame) -> Iterator[Chart]:
    kinds = rows if rows.is_empty() else layers.kinds_of(rows)
    if kinds.is_empty():
        return
    bars, names = layers.bar_columns(kinds, LIGHT)
    highest = max(1.0, float(bars["top"].max(initial=0)))
    element = layers.layer_chart(bars, LIGHT, 340).opts(
        hv.opts.Overlay(xticks=[*names.items()], xlim=(-0.5, max(1, len(names)) - 0.5), ylim=(0, highest * 1.08))
    )
    variants = [name for name in layers.variants_of(kinds) if name]
    key = [Key(name, LIGHT.series[place % len(LIGHT.series)], SYMBOLS[MARKERS[1]]) for place, name in enumerate(variants)]
    note = f"Layers that differ by a number alone together. {disturbance_note(rows['disturbance'])}".rstrip()
    yield Chart("Time by kind of layer", element, "wide", note, key)
