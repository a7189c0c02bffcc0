"""What a kernel does as its name tells it: the last resort, for kernels of which no range and no module is known."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.core.kernel_categories import NAME_PATTERNS

PATTERNS: Final = tuple((f"{category} kernels", pattern) for category, pattern in NAME_PATTERNS)
"""The layer that kernels are counted for by their names. What names tell nothing of stays without a layer."""

GUESSED: Final = "guessed"


def guessed_layer(kernel_name: pl.Expr) -> pl.Expr:
    """The layer of kernels of these names; null where a name tells nothing."""
    return pl.coalesce(pl.when(kernel_name.str.contains(pattern)).then(pl.lit(layer)) for layer, pattern in PATTERNS)


def guessed_category(kernel_name: pl.Expr) -> pl.Expr:
    """Return what kernels of these names are for, e.g. matmul; null where a name tells nothing."""
    return pl.coalesce(pl.when(kernel_name.str.contains(pattern)).then(pl.lit(category)) for category, pattern in NAME_PATTERNS)
