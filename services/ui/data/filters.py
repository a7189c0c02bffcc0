"""Filters that hold for every chart and table of the shown runs, on every page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from kernalyse.services.core.model import Filter
from kernalyse.services.ui.data.names_wanted import is_wanted, named
from kernalyse.services.ui.view import View


@dataclass(frozen=True, slots=True)
class RowFilter:
    """One filter. name: of the parameter of View. column: of the tables that it holds for."""

    name: str
    column: str
    title: str


PART_OF_NAME: Final = "kernel"
LAYER_NAMES: Final = ("label", "layer")
"""Columns of points of layers: links name the layer, people what they read."""

CHOICES: Final = (
    RowFilter("category", "category", "Category"),
    RowFilter("dtype", "dtype", "Data type"),
    RowFilter("model", "model_name", "Model"),
    RowFilter("batch_size", "batch_size", "Batch size"),
    RowFilter("device", "device_id", "Device"),
    RowFilter("efficiency", "efficiency_category", "Efficiency"),
)
"""Those with a list of values to choose from; a table without the column is not filtered by it."""


def has_any(state: View) -> bool:
    return any(getattr(state, name) for name in (PART_OF_NAME, *(choice.name for choice in CHOICES)))


def filtered(rows: pl.DataFrame, state: View, name_columns: Sequence[str] = ("kernel_name",)) -> pl.DataFrame:
    """Rows that the view's filters leave. name_columns: one of them has to be what the filter of names lets through."""
    present = [name for name in name_columns if name in rows.columns]
    if state.kernel and present:
        rows = rows.filter(pl.any_horizontal(is_wanted(pl.col(name), state.kernel) for name in present))
    for choice in CHOICES:
        value = getattr(state, choice.name)
        if value and choice.column in rows.columns:
            rows = rows.filter(pl.col(choice.column).cast(pl.String) == value)
    return rows


def query_filters(state: View, columns: Collection[str], name_column: str = "kernel_name") -> tuple[Filter, ...]:
    """The same for a table that the analyzer answers; columns: those that it has."""
    parts = [named(name_column, state.kernel)] if state.kernel and name_column in columns else []
    chosen = [(choice.column, getattr(state, choice.name)) for choice in CHOICES]
    return (*parts, *(Filter(column, value) for column, value in chosen if value and column in columns))


def values_of(rows: pl.DataFrame) -> dict[str, tuple[str, ...]]:
    """What each filter can be set to, by its name: the values that occur."""
    found: dict[str, tuple[str, ...]] = {}
    for choice in CHOICES:
        if choice.column in rows.columns:
            found[choice.name] = tuple(rows[choice.column].drop_nulls().unique().sort().cast(pl.String).to_list())
    return found


def together(found: Iterable[Mapping[str, Sequence[str]]]) -> dict[str, tuple[str, ...]]:
    """Values of several tables."""
    merged: dict[str, dict[str, None]] = {}
    for values in found:
        for name, some in values.items():
            merged.setdefault(name, {}).update(dict.fromkeys(some))
    return {name: tuple(some) for name, some in merged.items()}
