"""Expressions that several analyses share."""

from __future__ import annotations

import polars as pl


def null_safe_ratio(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Return part / whole; null where the whole is 0, as for kernels whose durations were not recorded."""
    return pl.when(whole > 0).then(part / whole)
