"""Parts of a whole."""

from __future__ import annotations

import polars as pl


def share_of(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Null where the whole is nothing, as the time of kernels is whose durations were not recorded."""
    return pl.when(whole > 0).then(part / whole)
