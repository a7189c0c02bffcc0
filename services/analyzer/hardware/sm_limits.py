"""What a multiprocessor of each compute capability holds at once: sm_limits.csv, one row per capability."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

import polars as pl

THREADS_PER_WARP: Final = 32

_TEXTS: Final = {"compute_capability": pl.String, "source": pl.String}


@cache
def sm_limits() -> pl.DataFrame:
    """Rows of the file, counts and bytes as whole numbers.

    partition_count: parts that the registers of a multiprocessor are divided into, each for warps of its own. shared_unit_bytes,
    register_unit_count: of which a block's shared memory and a warp's registers take whole ones.
    """
    text = resources.files(__package__).joinpath("sm_limits.csv").read_bytes()
    return pl.read_csv(text, schema_overrides=_TEXTS)
