"""The points that a run has so far, worked out once for all tabs that show it as it goes on."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, Self

import numpy as np
import polars as pl

from kernalyse.services.ui.charts import roofline
from kernalyse.services.ui.charts.elements import Columns
from kernalyse.services.ui.data.memory import NewRows, RunMemory
from kernalyse.services.ui.data.roofline_rows import ResultRow, result_rows
from kernalyse.services.ui.theme import Palette

MAX_PIECES: Final = 32
"""Of a frame before its rows are joined: each piece costs memory for each column."""

MAX_RESULT_ROWS: Final = 30

MAX_LIVE_POINTS: Final = 1_200
"""Drawn at once. A browser without a GPU takes 10 µs for each at every update, and those of a sweep of thousands lie on each other."""


@dataclass(frozen=True, eq=False)
class LivePoints:
    """Rows of the table roofline up to a position, the newest of each configuration; None before the first.

    count: of the rows that have a place on the chart, and whose configurations are not hidden. dtypes: theirs. points: of as many of
    them as are drawn. added: the last of these; None: all of them are other ones than before.
    """

    rows: pl.DataFrame | None = None
    count: int = 0
    dtypes: frozenset[str] = frozenset()
    points: Columns = field(default_factory=roofline.no_points)
    added: Columns | None = None
    placed_indexes: frozenset[int | None] = frozenset()  # of configurations

    @property
    def drawn_count(self) -> int:
        return len(self.points["rate"])

    @cached_property
    def note(self) -> str:
        """What to know of points above a ceiling, and of disturbed and counted ones; see `over_ceiling_note`."""
        return "" if self.rows is None else roofline.over_ceiling_note(self.rows)

    @cached_property
    def newest_results(self) -> list[ResultRow]:
        """As the table of results shows them: the newest first."""
        return [] if self.rows is None else list(reversed(result_rows(self.rows.tail(MAX_RESULT_ROWS))))

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
        new_indexes = frozenset(new.frame["configuration_index"])
        indexes = self.placed_indexes | new_indexes
        if len(new_indexes) < new.frame.height or new_indexes & self.placed_indexes:
            newest = roofline.newest_rows(rows)
            placed = roofline.drawable(rows_but(newest, hidden_indexes))
            return type(self)(newest, placed.height, frozenset(placed["dtype"].fill_null("")), _points_of(placed, palette), None, indexes)
        added = roofline.point_columns(rows_but(new.frame, hidden_indexes), palette)
        count, dtypes = self.count + len(added["rate"]), self.dtypes.union(added["dtype"])
        if self.drawn_count + len(added["rate"]) > MAX_LIVE_POINTS:
            points = _points_of(roofline.drawable(rows_but(rows, hidden_indexes)), palette)
            return type(self)(rows, count, dtypes, points, None, indexes)
        points = {name: np.concatenate([self.points[name], column]) for name, column in added.items()}
        return type(self)(rows, count, dtypes, points, added, indexes)


def _points_of(placed: pl.DataFrame, palette: Palette) -> Columns:
    """Half as many as there is room for, where they are more: the next time is then as many points away."""
    if placed.height <= MAX_LIVE_POINTS:
        return roofline.point_columns(placed, palette)
    intensity, rate = (placed[name].to_numpy() for name in ("intensity_flop_per_byte", "achieved_flop_per_s"))
    view = roofline.span_of({"intensity": intensity, "rate": rate}, ())
    return roofline.point_columns(roofline.thinned(placed, view, "category", MAX_LIVE_POINTS // 2), palette)


def rows_but(rows: pl.DataFrame, hidden_indexes: Set[int]) -> pl.DataFrame:
    """Without those of hidden configurations; the rows themselves where none is."""
    if not hidden_indexes:
        return rows
    return rows.filter(~pl.col("configuration_index").is_in(list(hidden_indexes)).fill_null(value=False))
