"""Lengths of unions, held against counting every nanosecond."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.numeric.intervals import Intervals, coverage
from tests.examples import examples


@dataclass(frozen=True)
class Interval:
    group: int
    kinds: int
    start: int
    duration: int


intervals = st.lists(st.builds(Interval, st.integers(0, 2), st.integers(0, 255), st.integers(-10, 30), st.integers(-3, 12)), max_size=40)


def as_arrays(rows: list[Interval], *, one_group_after_the_other: bool) -> Intervals:
    rows = sorted(rows, key=lambda row: (-row.group if one_group_after_the_other else 0, row.start))
    return Intervals(
        np.array([row.group for row in rows], dtype=np.int32),
        np.array([row.kinds for row in rows], dtype=np.uint8),
        np.array([row.start for row in rows], dtype=np.int64),
        np.array([row.duration for row in rows], dtype=np.int64),
    )


@given(intervals, intervals, st.booleans())
@examples(300)
def test_the_pass_says_what_counting_says(one: list[Interval], other: list[Interval], of_files: bool) -> None:
    left, right = (as_arrays(rows, one_group_after_the_other=of_files) for rows in (one, other))
    found = coverage(left, right, 3)
    for group in range(3):
        rows = [row for row in (*one, *other) if row.group == group]
        for bit in range(8):
            counted = {moment for row in rows if row.kinds >> bit & 1 for moment in range(row.start, row.start + row.duration)}
            assert found.covered_ns[group, bit] == len(counted)
        assert found.counts[group].tolist() == [sum(row.group == group for row in part) for part in (one, other)]
        if rows:
            last = max(row.start + max(row.duration, 0) for row in rows)
            assert found.span_ns[group] == last - min(row.start for row in rows)
