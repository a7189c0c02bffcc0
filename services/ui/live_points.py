"""The points that a run has so far, worked out once for all tabs that show it as it goes on."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

import numpy as np
import polars as pl

from services.ui.charts import roofline
from services.ui.charts.elements import Columns
from services.ui.memory import NewRows, RunMemory
from services.ui.pages.roofline_figure import no_points
from services.ui.theme import Palette

MAX_PIECES: Final = 32
"""Of a frame before its rows are joined: each piece costs memory for each column."""


@dataclass(frozen=True, slots=True, eq=False)
class LivePoints:
    """Rows of the table roofline up to a position, the newest of each configuration; None before the first.

    points: of the rows that have a place on the chart, and whose configurations are not hidden. added: the last of them;
    None: all of them are other ones than before.
    """

    rows: pl.DataFrame | None = None
    points: Columns = field(default_factory=no_points)
    added: Columns | None = None
    placed_indexes: frozenset[int | None] = frozenset()  # of configurations

    @property
    def count(self) -> int:
        return len(self.points["rate"])

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.points["dtype"].tolist())))

    def and_new(self, new: NewRows, palette: Palette, hidden_indexes: frozenset[int], memory: RunMemory) -> Self:
        """With rows that have come since.

        Args:
            hidden_indexes: of configurations that are not drawn, the same as before.
            memory: of the rows' run; it keeps what one tab has worked out for the next.
        """
        key = ("points", new.span, palette, hidden_indexes)
        return memory.made_of_all.get(key, partial(self._extended, new, palette, hidden_indexes))

    def _extended(self, new: NewRows, palette: Palette, hidden_indexes: Set[int]) -> Self:
        if new.frame is None:
            return self
        before = self.rows
        rows = (
            new.frame if before is None else pl.concat([before, new.frame], how="vertical_relaxed", rechunk=before.n_chunks() >= MAX_PIECES)
        )
        indexes = frozenset(new.frame["configuration_index"])
        if len(indexes) < new.frame.height or indexes & self.placed_indexes:
            newest = roofline.newest_rows(rows)
            return type(self)(
                newest, roofline.point_columns(rows_but(newest, hidden_indexes), palette), None, self.placed_indexes | indexes
            )
        added = roofline.point_columns(rows_but(new.frame, hidden_indexes), palette)
        points = {name: np.concatenate([self.points[name], column]) for name, column in added.items()}
        return type(self)(rows, points, added, self.placed_indexes | indexes)


def rows_but(rows: pl.DataFrame, hidden_indexes: Set[int]) -> pl.DataFrame:
    """Without those of hidden configurations; the rows themselves where none is."""
    if not hidden_indexes:
        return rows
    return rows.filter(~pl.col("configuration_index").is_in(list(hidden_indexes)).fill_null(value=False))
