"""The legend of the Timeline page: categories of kernels and reasons for gaps as buttons, and which of them are hidden."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from kernalyse.services.ui.charts.timeline_looks import CATEGORIES, REASONS, Looks, category_title, gap_title, legend_entries
from kernalyse.services.ui.legend import LegendEntry, hideable, legend_fragment, series_key
from kernalyse.services.ui.state import ViewState
from kernalyse.services.ui.theme import Palette


def timeline_legend(state: ViewState, palette: Palette, reasons: Collection[str]) -> str:
    """reasons: those for which the trace has gaps."""
    entries = legend_entries(palette, reasons, by_name=_is_by_name(state))
    return legend_fragment(hideable((LegendEntry(*entry) for entry in entries), state.hidden))


def looks_of(state: ViewState) -> Looks:
    hidden = (code for code, category in enumerate(CATEGORIES) if series_key(category_title(category)) in state.hidden)
    return Looks(_is_by_name(state), state.search or state.kernel, frozenset(() if _is_by_name(state) else hidden))


def shown_gaps(gaps: pl.DataFrame, state: ViewState) -> pl.DataFrame:
    """Rows of table gaps without those of hidden reasons."""
    hidden = [reason for reason in REASONS if series_key(gap_title(reason)) in state.hidden]
    return gaps.filter(~pl.col("reason").is_in(hidden).fill_null(value=False)) if hidden else gaps


def _is_by_name(state: ViewState) -> bool:
    return state.color_by == "kernel"
