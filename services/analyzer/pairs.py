"""Rows by two columns at once, as process and device, or process and thread: one code for each pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from services.analyzer.correlation import Indexes, Integers, coded
from services.analyzer.table import COUNT, DataType

UNKNOWN: Final = -(2**63)
"""Stands for null: no process, device, stream or thread has this number."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """codes: of the rows, from 0 in order of first appearance; first, second: the values of each code, UNKNOWN for null."""

    codes: Indexes
    first: Integers
    second: Integers

    @property
    def count(self) -> int:
        return self.first.size

    def series(self, codes: Indexes) -> tuple[pl.Series, pl.Series]:
        """The values of some codes."""
        return _nulled(self.first[codes]), _nulled(self.second[codes])


def coded_pairs(first: str, second: str, *frames: pl.DataFrame) -> tuple[Pairs, ...]:
    """For each frame the pairs of its two columns of whole numbers; codes and values are those of all frames together."""
    firsts = coded(*(_numbers(frame, first) for frame in frames))
    seconds = coded(*(_numbers(frame, second) for frame in frames))
    step = max((part.keys.size for part in seconds), default=0)
    keys = [part.codes.astype(np.int64) * step + other.codes for part, other in zip(firsts, seconds, strict=True)]
    pairs = coded(*keys)
    all_firsts, all_seconds, found = firsts[-1].keys, seconds[-1].keys, pairs[-1].keys
    step = max(step, 1)
    return tuple(Pairs(part.codes, all_firsts[found // step], all_seconds[found % step]) for part in pairs)


def _numbers(frame: pl.DataFrame, column: str) -> Integers:
    values: Integers = frame[column].cast(COUNT).fill_null(UNKNOWN).to_numpy()
    return values


def _nulled(values: Integers, dtype: DataType = COUNT) -> pl.Series:
    series = pl.Series(values, dtype=dtype)
    return series.set(series == UNKNOWN, None)
