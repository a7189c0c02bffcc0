"""How Nsight Systems packs numbers, and columns of numbers as columns of frames."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from services.analyzer.correlation import NONE, Indexes, Integers
from services.analyzer.readers.sqlite_pages import NULL_INTEGER

PROCESS_SHIFT: Final = 24
ID_MASK: Final = 0xFFFFFF
"""globalTid: hardware (8 bits), virtual machine (8), process (24), thread (24); globalPid is the same with thread 0."""


def process_keys(global_ids: Integers) -> Integers:
    """What names a process, of globalPid or globalTid: machine and process id."""
    keys: Integers = global_ids >> PROCESS_SHIFT
    keys[global_ids == NULL_INTEGER] = NULL_INTEGER
    return keys


def process_id(process_key: int) -> int:
    return process_key & ID_MASK


def numbers(values: Integers) -> pl.Series:
    """NULL_INTEGER as null."""
    return _nulled(pl.Series(values), values == NULL_INTEGER)


def indexes(values: Indexes) -> pl.Series:
    """NONE as null."""
    return _nulled(pl.Series(values, dtype=pl.Int32), values == NONE)


def small_numbers(values: Integers) -> pl.Series:
    """Whole numbers in four bytes; what does not fit is null."""
    return numbers(values).cast(pl.Int32, strict=False)


def _nulled(series: pl.Series, is_null: npt.NDArray[np.bool_]) -> pl.Series:
    return series.set(pl.Series(is_null), None) if bool(is_null.any()) else series


def durations(start_ns: Integers, end_ns: Integers) -> Integers:
    """End less start; NULL_INTEGER where one of them is."""
    found = end_ns - start_ns
    unknown = (start_ns == NULL_INTEGER) | (end_ns == NULL_INTEGER)
    if bool(unknown.any()):
        found[unknown] = NULL_INTEGER
    return found


def taken(values: Integers, places: Indexes) -> Integers:
    """values[place]; NULL_INTEGER where the place is NONE."""
    if values.size == 0:
        return np.full(places.size, NULL_INTEGER, dtype=np.int64)
    found = values[places]  # of NONE, -1, the last
    found[places == NONE] = NULL_INTEGER
    return found
