"""Lengths of unions, held against counting every nanosecond."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.analyzer.coverage import covered_ns


@dataclass(frozen=True)
class Interval:
    group: int
    kinds: int
    start: int
    duration: int


intervals = st.lists(st.builds(Interval, st.integers(0, 2), st.integers(0, 255), st.integers(-10, 30), st.integers(-3, 12)), max_size=40)


@given(intervals)
@settings(max_examples=300, deadline=None)
def test_the_pass_says_what_counting_says(rows: list[Interval]) -> None:
    rows.sort(key=lambda row: row.start)
    found = covered_ns(
        np.array([row.group for row in rows], dtype=np.int32),
        np.array([row.kinds for row in rows], dtype=np.uint8),
        np.array([row.start for row in rows], dtype=np.int64),
        np.array([row.duration for row in rows], dtype=np.int64),
        3,
    )
    for group in range(3):
        for bit in range(8):
            counted = {
                moment
                for row in rows
                if row.group == group and row.kinds >> bit & 1
                for moment in range(row.start, row.start + row.duration)
            }
            assert found[group, bit] == len(counted)
